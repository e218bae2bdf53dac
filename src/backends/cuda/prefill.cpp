// Order and workspace of the prefill kernels: kernels/prefill_launch.h has what each computes.
#include "backends/cuda/kernels/prefill.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "backends/cuda/kernels/prefill_launch.h"

namespace lily::cuda {
namespace {

// Shared memory that a block may ask for, by compute capability (CUDA programming guide, technical
// specifications).
uint32_t shared_bytes_of(uint32_t capability) {
  constexpr uint32_t kKiB = 1024;
  switch (capability) {
    case 80:
    case 87:
      return 163 * kKiB;
    case 90:
    case 100:
    case 103:
      return 227 * kKiB;
    default:
      return 99 * kKiB;
  }
}

prefill::Device device_of(const PrefillBatch& batch) {
  return {.processors = batch.multiprocessors,
          .shared_bytes = shared_bytes_of(batch.compute_capability),
          .queue = batch.queue};
}

// Cuts a workspace into arrays; without memory it only measures.
class Cutter {
 public:
  explicit Cutter(uint8_t* memory) : memory_(memory) {}
  template <typename T>
  T* take(uint64_t count) {
    T* array = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += (count * sizeof(T) + 255) / 256 * 256;
    return array;
  }
  uint64_t used() const { return used_; }

 private:
  uint8_t* memory_;
  uint64_t used_ = 0;
};

struct DeltaSpace {
  uint16_t* normed;
  uint16_t* mixed;
  uint16_t* z;
  float* gates;
  uint16_t *q, *k, *v, *u, *w, *scores, *out;
  float* log_decays;
};

DeltaSpace cut_delta(Cutter& cutter, const Dims& dims, uint64_t rows) {
  const uint64_t keys = rows * dims.k_heads * kDeltaDim;
  const uint64_t values = rows * value_width(dims);
  DeltaSpace space{};
  space.normed = cutter.take<uint16_t>(rows * dims.hidden);
  space.mixed = cutter.take<uint16_t>(rows * conv_channels(dims));
  space.z = cutter.take<uint16_t>(values);
  space.gates = cutter.take<float>(rows * 2 * dims.v_heads);
  space.q = cutter.take<uint16_t>(keys);
  space.k = cutter.take<uint16_t>(keys);
  space.v = cutter.take<uint16_t>(values);
  space.u = cutter.take<uint16_t>(values);
  space.w = cutter.take<uint16_t>(values);
  space.scores = cutter.take<uint16_t>(rows * dims.v_heads * prefill::kChunk);
  space.out = cutter.take<uint16_t>(values);
  space.log_decays = cutter.take<float>(rows * dims.v_heads);
  return space;
}

struct AttentionSpace {
  uint16_t *normed, *mixed, *q, *out;
};

AttentionSpace cut_attention(Cutter& cutter, const Dims& dims, uint64_t rows) {
  AttentionSpace space{};
  space.normed = cutter.take<uint16_t>(rows * dims.hidden);
  space.mixed = cutter.take<uint16_t>(rows * (2 * q_width(dims) + 2 * kv_width(dims)));
  space.q = cutter.take<uint16_t>(rows * q_width(dims));
  space.out = cutter.take<uint16_t>(rows * q_width(dims));
  return space;
}

struct MoeSpace {
  uint16_t *normed, *rest;
  float* logits;
  uint16_t* chosen;
  float* weights;
  uint32_t *counts, *uses;
  uint16_t *inner, *outer;
};

MoeSpace cut_moe(Cutter& cutter, const Dims& dims, uint64_t rows) {
  MoeSpace space{};
  space.normed = cutter.take<uint16_t>(rows * dims.hidden);
  space.rest = cutter.take<uint16_t>(rows * dims.hidden);
  space.logits = cutter.take<float>(rows * prefill::logits_stride(dims.experts));
  space.chosen = cutter.take<uint16_t>(rows * kTopK);
  space.weights = cutter.take<float>(rows * kUses);
  space.counts = cutter.take<uint32_t>(dims.experts);
  space.uses = cutter.take<uint32_t>(rows * dims.experts);
  space.inner = cutter.take<uint16_t>(rows * kUses * dims.ffn);
  space.outer = cutter.take<uint16_t>(rows * kUses * dims.hidden);
  return space;
}

// The input norm of a block.
void enter(const PrefillBatch& batch, const float* weight, uint16_t* normed, uint16_t* rest) {
  prefill::norm({.x = batch.stream,
                 .weight = weight,
                 .y = normed,
                 .rest = rest,
                 .tokens = batch.rows,
                 .width = batch.dims.hidden},
                device_of(batch));
}

// stream += W x, the end of a mixer.
void leave(const PrefillBatch& batch, const PackedMatrix& weights, const uint16_t* x) {
  prefill::DenseArgs args{};
  args.weights = weights;
  args.ranges[0] = {batch.stream, batch.dims.hidden, weights.rows, prefill::Store::add_f32};
  args.x = x;
  args.tokens = batch.rows;
  prefill::dense(args, device_of(batch));
}

prefill::DeltaArgs delta_args(const DeltaNetLayer& layer, const PrefillBatch& batch,
                              const DeltaSpace& space) {
  prefill::DeltaArgs args{};
  args.dims = batch.dims;
  args.layer = layer.index;
  args.segments = batch.segments;
  args.segment_count = batch.segment_count;
  for (uint32_t i = 0; i < batch.segment_count; ++i) {
    args.chunks += prefill::chunks_of(batch.host_segments[i]);
  }
  args.tokens = batch.rows;
  args.conv = layer.conv;
  args.decay_rate = layer.decay_rate;
  args.dt_bias = layer.dt_bias;
  args.norm = layer.norm;
  args.mixed = space.mixed;
  args.z = space.z;
  args.gates = space.gates;
  args.q = space.q;
  args.k = space.k;
  args.v = space.v;
  args.u = space.u;
  args.w = space.w;
  args.scores = space.scores;
  args.log_decays = space.log_decays;
  args.out = space.out;
  return args;
}

}  // namespace

bool prefill_takes(const PackedMatrix& matrix) { return matrix.tiles != nullptr && matrix.k_tiles != 0; }

uint64_t prefill_workspace_bytes(const Dims& dims, uint32_t max_rows) {
  Cutter delta(nullptr);
  cut_delta(delta, dims, max_rows);
  Cutter attention(nullptr);
  cut_attention(attention, dims, max_rows);
  Cutter moe(nullptr);
  cut_moe(moe, dims, max_rows);
  return std::max({delta.used(), attention.used(), moe.used()});
}

int prefill_delta_net(const DeltaNetLayer& layer, const PrefillBatch& batch) {
  const Dims& dims = batch.dims;
  Cutter cutter(batch.workspace);
  const DeltaSpace space = cut_delta(cutter, dims, batch.rows);
  enter(batch, layer.input_norm, space.normed, nullptr);
  prefill::DenseArgs project{};
  project.weights = layer.in_proj;
  const uint32_t channels = conv_channels(dims);
  const uint32_t values = value_width(dims);
  project.ranges[0] = {space.mixed, channels, channels, prefill::Store::bf16};
  project.ranges[1] = {space.z, values, channels + values, prefill::Store::bf16};
  project.ranges[2] = {space.gates, 2 * dims.v_heads, layer.in_proj.rows, prefill::Store::f32};
  project.x = space.normed;
  project.tokens = batch.rows;
  prefill::dense(project, device_of(batch));
  prefill::delta_net(delta_args(layer, batch, space), device_of(batch));
  leave(batch, layer.out_proj, space.out);
  return cudaGetLastError();
}

int prefill_attention(const AttentionLayer& layer, const PrefillBatch& batch) {
  const Dims& dims = batch.dims;
  Cutter cutter(batch.workspace);
  const AttentionSpace space = cut_attention(cutter, dims, batch.rows);
  enter(batch, layer.input_norm, space.normed, nullptr);
  prefill::DenseArgs project{};
  project.weights = layer.in_proj;
  project.ranges[0] = {space.mixed, layer.in_proj.rows, layer.in_proj.rows, prefill::Store::bf16};
  project.x = space.normed;
  project.tokens = batch.rows;
  prefill::dense(project, device_of(batch));
  prefill::attention({.dims = dims,
                      .layer = layer.index,
                      .segments = batch.segments,
                      .host_segments = batch.host_segments,
                      .segment_count = batch.segment_count,
                      .tokens = batch.rows,
                      .q_norm = layer.q_norm,
                      .k_norm = layer.k_norm,
                      .rotary = batch.rotary,
                      .mixed = space.mixed,
                      .q = space.q,
                      .out = space.out},
                     device_of(batch));
  leave(batch, layer.out_proj, space.out);
  return cudaGetLastError();
}

int prefill_moe(const MoeLayer& layer, const PrefillBatch& batch) {
  Cutter cutter(batch.workspace);
  const MoeSpace space = cut_moe(cutter, batch.dims, batch.rows);
  enter(batch, layer.post_norm, space.normed, space.rest);
  prefill::route({.router = layer.router,
                  .x = space.normed,
                  .rest = space.rest,
                  .logits = space.logits,
                  .chosen = space.chosen,
                  .weights = space.weights,
                  .counts = space.counts,
                  .uses = space.uses,
                  .used_bits = batch.experts_used,
                  .experts = batch.dims.experts,
                  .tokens = batch.rows},
                 device_of(batch));
  prefill::experts({.gate_up = layer.gate_up,
                    .down = layer.down,
                    .x = space.normed,
                    .weights = space.weights,
                    .counts = space.counts,
                    .uses = space.uses,
                    .inner = space.inner,
                    .outer = space.outer,
                    .stream = batch.stream,
                    .experts = batch.dims.experts,
                    .tokens = batch.rows},
                   device_of(batch));
  return cudaGetLastError();
}

}  // namespace lily::cuda
