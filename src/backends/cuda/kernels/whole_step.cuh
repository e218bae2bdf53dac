// A whole step: what every block does, from the ids to the logits. The last results of a phase are the first
// inputs of the next one; who has nothing to do in a phase goes on and waits for what it needs.
#pragma once

#include "backends/cuda/kernels/embed.cuh"
#include "backends/cuda/kernels/step_experts.cuh"
#include "backends/cuda/kernels/step_mixers.cuh"
#include "backends/cuda/kernels/step_trace.h"

namespace lily::cuda::step {

// Most units of gate_up that a block has.
LILY_BOTH constexpr uint32_t gate_units(const Dims& d, uint32_t rows, uint32_t blocks) {
  return ((rows * kTopK + 1) * (2 * d.ffn / kTileRows) + blocks - 1) / blocks;
}

// Tokens to the stream and the first feed: each block the outputs of the stream that it keeps.
template <class W>
__device__ __forceinline__ void embed(const Block<W>& b) {
  if (threadIdx.x / 32 * 32 >= W::kRows * kTileRows || blockIdx.x * kTileRows >= W::dims().hidden) {
    return;
  }
  const bool active = b.has_stream();
  float value = 0;
  float norm = 0;
  if (active) {
    value = embedding(b.a.embed, token_of(b.a.embed, b.stream_row()), b.stream_output(), W::dims().hidden);
    norm = b.a.embed.to.next_norm[b.stream_output()];
    b.template place<float>(b.at.stream)[threadIdx.x] = value;
  }
  put_feed(b.words(0) + b.stream_row() * W::board().feed_row, W::dims().hidden, b.stream_output(),
           value * norm, value * value, active, b.a.tag);
}

template <class W>
__device__ __forceinline__ void project_in(const Block<W>& b, uint32_t layer) {
  using P = typename W::In;
  const uint64_t* const feed = b.words(layer);
  float* const scales = b.template place<float>(b.at.scales);
  uint64_t* const to = b.words(layer) + W::board().mixed;
  Inputs<P> in;
  mark(layer, 0);
  in.wait(feed, W::board().feed_row, W::kRows, b.a.tag);
  mark(layer, 1);
  __syncwarp();
  wait_scales<P::kInputs, W::kRows>(scales, feed, W::board().feed_row, b.a.tag);
  multiply_all<W::kRows>(
      b.template place<float>(b.at.parts), b.weights.template in_blocks<W>(layer), in, b.in.slots,
      [&] { b.in.fill(b.weights); },
      [&](uint32_t row, uint32_t output, float value, bool active) {
        if (active) {
          value *= scales[row];
          if (layer == b.a.dims.layers) {
            b.a.logits[size_t{row} * W::kVocab + output] = value;
          } else {
            store_word(to + row * W::board().mixed_row + output, __float_as_uint(value), b.a.tag);
          }
        }
      });
}

template <class P, class W>
__device__ __forceinline__ void project_out(const Block<W>& b, uint32_t layer) {
  if (blockIdx.x * kTileRows >= W::dims().hidden) {
    return;
  }
  const float norm = b.has_stream() ? b.weights.layers[layer].post_norm[b.stream_output()] : 0;
  Inputs<P> in;
  mark(layer, 3);
  in.wait(b.words(layer) + W::board().heads, W::board().heads_row, W::kRows, b.a.tag);
  mark(layer, 4);
  __syncwarp();
  multiply_all<W::kRows>(
      b.template place<float>(b.at.out_parts), W::kStreamBlocks, in, b.rest.slots,
      [&] { b.rest.fill(b.weights, b.routing); },
      [&](uint32_t row, uint32_t output, float value, bool active) {
        float now = 0;
        if (active) {
          float& stream = b.template place<float>(b.at.stream)[threadIdx.x];
          now = stream + value;
          stream = now;
        }
        put_feed(b.words(layer) + W::board().after + row * W::board().feed_row, W::dims().hidden, output,
                 now * norm, now * now, active, b.a.tag);
      });
}

template <class W>
__device__ __forceinline__ void layer_step(const Block<W>& b, uint32_t layer) {
  project_in(b, layer);
  mark(layer, 2);
  if (is_attention(layer)) {
    attention(b, layer);
    project_out<typename W::AttendOut>(b, layer);
    __syncthreads();
    b.in.last = layer + 4;  // attention has given the memory of the in-tape back
    b.in.fill(b.weights);
  } else {
    delta_net(b, layer);
    project_out<typename W::DeltaOut>(b, layer);
  }
  if constexpr (W::kRows > 1) {
    prepare_routing(b.routing, W::kExperts, W::kRows);
  }
  mark(layer, 5);
  const auto rows = bring_rows(b, layer);
  mark(layer, 6);
  router(b, layer, rows);
  mark(layer, 7);
  route(b, layer);
  mark(layer, 8);
  gate_up(b, layer, rows);
  mark(layer, 9);
  down(b, layer);
  mark(layer, 10);
}

// Layers' pointers, barriers and what of the routing never changes; ends with a barrier.
template <class W>
__device__ __forceinline__ void prepare(const Block<W>& b, StepLayer* layers) {
  for (uint32_t i = threadIdx.x; i < b.a.dims.layers * (sizeof(StepLayer) / 8); i += blockDim.x) {
    reinterpret_cast<uint64_t*>(layers)[i] = reinterpret_cast<const uint64_t*>(b.a.layers)[i];
  }
  const uint32_t lane = threadIdx.x & 31;
  if (lane < W::kInSlots) {
    init_copy_barrier(b.in.slots.full + lane);
  }
  if (lane < W::kRestSlots) {
    init_copy_barrier(b.rest.slots.full + lane);
  }
  prepare_routing(b.routing, W::kExperts, W::kRows);
  if (blockIdx.x == gridDim.x - 1) {  // which notes the experts
    for (uint32_t i = threadIdx.x; i < b.a.dims.layers * kStepExpertWords; i += blockDim.x) {
      b.a.experts_used[i] = 0;
    }
  }
  __syncthreads();
}

template <class W>
__device__ __forceinline__ void whole_step(const StepArgs& a, uint8_t* shared) {
  const Shared at = shared_of<W>(gate_units(W::dims(), W::kRows, gridDim.x));
  const uint32_t warp = threadIdx.x / 32;
  StepLayer* const layers = reinterpret_cast<StepLayer*>(shared + at.layers);
  Routing& routing = *reinterpret_cast<Routing*>(shared + at.routing);
  uint64_t* const barriers =
      reinterpret_cast<uint64_t*>(shared + at.barriers) + warp * (W::kInSlots + W::kRestSlots);
  InTape<W> in{{shared + at.in_slots + warp * W::kInSlots * kSlot, barriers, W::kInSlots}};
  RestTape<W> rest{
      {shared + at.rest_slots + warp * W::kRestSlots * kSlot, barriers + W::kInSlots, W::kRestSlots}};
  const Block<W> b{a, shared, at, {layers, a.head, a.dims.layers}, routing, in, rest};
  prepare(b, layers);
  in.fill(b.weights);
  rest.fill(b.weights, routing);
  embed(b);
#pragma unroll 1
  for (uint32_t layer = 0; layer < a.dims.layers; ++layer) {
    layer_step(b, layer);
  }
  project_in(b, a.dims.layers);
  mark(a.dims.layers, 2);
}

}  // namespace lily::cuda::step
