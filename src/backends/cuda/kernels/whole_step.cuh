// A whole step: what every block does, from the ids to the logits. The last results of a phase are the first
// inputs of the next one; who has nothing to do in a phase goes on and waits for what it needs.
#pragma once

#include "backends/cuda/kernels/embed.cuh"
#include "backends/cuda/kernels/step_experts.cuh"
#include "backends/cuda/kernels/step_mixers.cuh"

namespace lily::cuda::step {

// Most units of gate_up that a block has.
LILY_BOTH constexpr uint32_t gate_units(const Dims& d, uint32_t rows, uint32_t blocks) {
  return ((rows * kTopK + 1) * (2 * d.ffn / kTileRows) + blocks - 1) / blocks;
}

// Tokens to the stream and the first feed: each block the outputs of the stream that it keeps.
template <class W>
__device__ __forceinline__ void embed(const Block<W>& b) {
  if (threadIdx.x / 32 * 32 >= b.a.rows * kTileRows || blockIdx.x * kTileRows >= b.a.dims.hidden) {
    return;
  }
  const bool active = b.has_stream();
  float value = 0;
  float norm = 0;
  if (active) {
    value = embedding(b.a.embed, token_of(b.a.embed, b.stream_row()), b.stream_output(), b.a.dims.hidden);
    norm = b.a.embed.to.next_norm[b.stream_output()];
    b.template place<float>(b.at.stream)[threadIdx.x] = value;
  }
  put_feed(b.words(0) + b.stream_row() * b.board.feed_row, b.a.dims.hidden, b.stream_output(), value * norm,
           value * value, active, b.a.tag);
}

template <class W>
__device__ __forceinline__ void project_in(const Block<W>& b, uint32_t layer) {
  using P = typename W::In;
  const uint64_t* const feed = b.words(layer);
  float* const scales = b.template place<float>(b.at.scales);
  uint64_t* const to = b.words(layer) + b.board.mixed;
  Inputs<P> in;
  in.wait(feed, b.board.feed_row, b.a.rows, b.a.tag);
  __syncwarp();
  wait_scales<P::kInputs>(scales, feed, b.board.feed_row, b.a.rows, b.a.tag);
  multiply_all(
      b.template place<float>(b.at.parts), b.weights.in_blocks(layer), b.a.rows, in, b.in.slots,
      [&] { b.in.fill(b.weights); },
      [&](uint32_t row, uint32_t output, float value, bool active) {
        if (active) {
          value *= scales[row];
          if (layer == b.a.dims.layers) {
            b.a.logits[size_t{row} * b.a.dims.vocab + output] = value;
          } else {
            store_word(to + row * b.board.mixed_row + output, __float_as_uint(value), b.a.tag);
          }
        }
      });
}

template <class P, class W>
__device__ __forceinline__ void project_out(const Block<W>& b, uint32_t layer) {
  if (blockIdx.x * kTileRows >= b.a.dims.hidden) {
    return;
  }
  const float norm = b.has_stream() ? b.weights.layers[layer].post_norm[b.stream_output()] : 0;
  Inputs<P> in;
  in.wait(b.words(layer) + b.board.heads, b.board.heads_row, b.a.rows, b.a.tag);
  __syncwarp();
  multiply_all(
      b.template place<float>(b.at.out_parts), b.a.dims.hidden / kTileRows, b.a.rows, in, b.rest.slots,
      [&] { b.rest.fill(b.weights, b.routing); },
      [&](uint32_t row, uint32_t output, float value, bool active) {
        float now = 0;
        if (active) {
          float& stream = b.template place<float>(b.at.stream)[threadIdx.x];
          now = stream + value;
          stream = now;
        }
        put_feed(b.words(layer) + b.board.after + row * b.board.feed_row, b.a.dims.hidden, output, now * norm,
                 now * now, active, b.a.tag);
      });
}

template <class W>
__device__ __forceinline__ void layer_step(const Block<W>& b, uint32_t layer) {
  project_in(b, layer);
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
  if (b.a.rows > 1) {
    prepare_routing(b.routing, b.a.dims.experts, b.a.rows);
  }
  const auto rows = bring_rows(b, layer);
  router(b, layer, rows);
  route(b, layer);
  gate_up(b, layer, rows);
  down(b, layer);
}

// Layers' pointers, barriers and what of the routing never changes; ends with a barrier.
template <class W>
__device__ __forceinline__ void prepare(const Block<W>& b, StepLayer* layers) {
  for (uint32_t i = threadIdx.x; i < b.a.dims.layers * (sizeof(StepLayer) / 8); i += blockDim.x) {
    reinterpret_cast<uint64_t*>(layers)[i] = reinterpret_cast<const uint64_t*>(b.a.layers)[i];
  }
  const uint32_t lane = threadIdx.x & 31;
  if (lane < kInSlots) {
    init_copy_barrier(b.in.slots.full + lane);
  }
  if (lane < kRestSlots) {
    init_copy_barrier(b.rest.slots.full + lane);
  }
  prepare_routing(b.routing, b.a.dims.experts, b.a.rows);
  if (blockIdx.x == gridDim.x - 1) {  // which notes the experts
    for (uint32_t i = threadIdx.x; i < b.a.dims.layers * kStepExpertWords; i += blockDim.x) {
      b.a.experts_used[i] = 0;
    }
  }
  __syncthreads();
}

template <class W>
__device__ __forceinline__ void whole_step(const StepArgs& a, uint8_t* shared) {
  const Shared at = shared_of<W>(a.rows, gate_units(a.dims, a.rows, gridDim.x));
  const Board board = board_of(a.dims, a.rows);
  const uint32_t warp = threadIdx.x / 32;
  StepLayer* const layers = reinterpret_cast<StepLayer*>(shared + at.layers);
  Routing& routing = *reinterpret_cast<Routing*>(shared + at.routing);
  uint64_t* const barriers =
      reinterpret_cast<uint64_t*>(shared + at.barriers) + warp * (kInSlots + kRestSlots);
  InTape<W> in{{shared + at.in_slots + warp * kInSlots * kSlot, barriers, kInSlots}};
  RestTape<W> rest{{shared + at.rest_slots + warp * kRestSlots * kSlot, barriers + kInSlots, kRestSlots}};
  const Block<W> b{a, shared, at, board, {layers, a.head, a.dims}, routing, in, rest};
  prepare(b, layers);
  in.fill(b.weights);
  rest.fill(b.weights, routing);
  embed(b);
#pragma unroll 1
  for (uint32_t layer = 0; layer < a.dims.layers; ++layer) {
    layer_step(b, layer);
  }
  project_in(b, a.dims.layers);
}

}  // namespace lily::cuda::step
