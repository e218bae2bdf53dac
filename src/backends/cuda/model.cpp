#include "backends/cuda/model.h"

#include <algorithm>
#include <array>

#include "model/rope.h"

namespace lily::cuda {
namespace {

// What is allocated, in bytes; the members of DeviceModel in order.
struct Sizes {
  uint64_t stream, feed_x, feed_part, head_x, head_part, mixed, heads_x, heads_part, partial, partial_ml,
      router, h, expert_y, routing, logits, best, experts_used, relay, rotary, prefill;
};
Sizes sizes_of(const Plan& plan) {
  const Dims d = dims_of(plan.shape);
  const uint64_t rows = plan.max_rows;
  const uint64_t small = kSmallRows;
  return {.stream = rows * d.hidden * 4,
          .feed_x = rows * d.hidden * 2,
          .feed_part = rows * (d.hidden / kFeedBlock) * 4,
          .head_x = small * d.hidden * 2,
          .head_part = small * (d.hidden / kFeedBlock) * 4,
          .mixed = small * mixed_width(d) * 4,
          .heads_x = small * heads_width(d) * 2,
          .heads_part = small * (heads_width(d) / kFeedBlock) * 4,
          .partial = small * d.q_heads * kMaxSplits * kHeadDim * 4,
          .partial_ml = small * d.q_heads * kMaxSplits * 8,
          .router = small * router_width(d) * 4,
          .h = small * kUses * d.ffn * 2,
          .expert_y = small * kUses * d.hidden * 4,
          .routing = 256 + kPublishedBytes,
          .logits = small * d.vocab * 4,
          .best = small * slices_of(d.vocab) * sizeof(SliceBest),
          .experts_used = uint64_t{d.layers} * DeviceModel::kExpertWords * 4,
          .relay = (d.layers + 1) * relay_bytes(d, std::min(plan.sequences, kRelayedStepRows)),
          .rotary = uint64_t{plan.context} * kRotaryDim * 4,
          .prefill = prefill_workspace_bytes(d, plan.max_rows)};
}

}  // namespace

uint64_t DeviceModel::workspace_bytes(const Plan& plan) {
  const Sizes s = sizes_of(plan);
  return s.stream + s.feed_x + s.feed_part + s.head_x + s.head_part + s.mixed + s.heads_x + s.heads_part +
         s.partial + s.partial_ml + s.router + s.h + s.expert_y + s.routing + 2 * s.logits + s.best +
         s.experts_used + s.relay + s.rotary + s.prefill;
}

DeviceModel::DeviceModel(const Plan& plan, const DeviceTraits& traits, Meter& meter, Stream queue)
    : plan_(plan), dims_(dims_of(plan.shape)), traits_(traits), meter_(meter), queue_(queue) {}

Result<void> DeviceModel::allocate() {
  const Sizes s = sizes_of(plan_);
  const std::array<std::pair<DeviceMemory*, uint64_t>, 21> parts{{{&stream_, s.stream},
                                                                  {&feed_x_, s.feed_x},
                                                                  {&feed_squares_, s.feed_part},
                                                                  {&head_x_, s.head_x},
                                                                  {&head_squares_, s.head_part},
                                                                  {&mixed_, s.mixed},
                                                                  {&heads_x_, s.heads_x},
                                                                  {&heads_squares_, s.heads_part},
                                                                  {&partial_, s.partial},
                                                                  {&partial_ml_, s.partial_ml},
                                                                  {&router_, s.router},
                                                                  {&h_, s.h},
                                                                  {&expert_y_, s.expert_y},
                                                                  {&routing_, s.routing},
                                                                  {&logits_, s.logits},
                                                                  {&adjusted_, s.logits},
                                                                  {&best_, s.best},
                                                                  {&experts_used_, s.experts_used},
                                                                  {&relay_, s.relay},
                                                                  {&rotary_, s.rotary},
                                                                  {&prefill_, s.prefill}}};
  for (const auto& [memory, bytes] : parts) {
    LILY_TRY(*memory, DeviceMemory::allocate(bytes, meter_, "memory for the workspace"));
    LILY_TRY_VOID(clear(memory->bytes(), bytes, queue_));
  }
  return {};
}

Result<void> DeviceModel::load(const ModelWeights& weights, FunctionRef<void(double)> progress) {
  const auto shared = static_cast<uint32_t>(traits_.shared_bytes);
  for (const int prepared : {prepare_project(shared), prepare_experts(shared), prepare_attend(shared),
                             prepare_delta_step(shared), prepare_stream(), prepare_sample()}) {
    LILY_TRY_VOID(check(prepared, "preparing the kernels"));
  }
  LILY_TRY_VOID(residency_.load(plan_.shape, weights, meter_, queue_, progress));
  LILY_TRY_VOID(allocate());
  LILY_TRY(const DeviceMemory frequencies,
           DeviceMemory::allocate(kRotaryPairs * 4, meter_, "memory for frequencies"));
  LILY_TRY_VOID(copy_to_device(frequencies.bytes(), rotary_frequencies().data(), kRotaryPairs * 4, queue_));
  LILY_TRY_VOID(check(launch_rotary(rotary_.as<float>(), frequencies.as<float>(), plan_.context, queue_),
                      "the table of rotations"));
  takes_prefill_ = traits_.compute_capability >= 80;
  for (const LayerViews& layer : views().layers) {
    const auto& [in_proj, out_proj] = std::visit(
        [](const auto& m) {
          return std::pair<const PackedMatrix&, const PackedMatrix&>(m.in_proj, m.out_proj);
        },
        layer.mixer);
    for (const PackedMatrix* matrix :
         {&in_proj, &out_proj, &layer.moe.router, &layer.moe.gate_up, &layer.moe.down}) {
      takes_prefill_ = takes_prefill_ && prefill_takes(*matrix);
    }
    const uint32_t needed = gate_up_shape(layer.moe.gate_up, 1, traits_).shared;
    if (needed > traits_.shared_bytes) {
      return fail(
          ErrorKind::unsupported,
          "the experts: their format needs {} bytes of shared memory for a block of the device, which has {}",
          needed, traits_.shared_bytes);
    }
  }
  relay_rows_ = most_relayed();
  LILY_TRY_VOID(unwrite({relay_.bytes(), relay_.size()}));
  return finish(queue_);
}

Feed DeviceModel::feed_at(uint32_t row) const {
  const size_t parts = size_t{row} * (dims_.hidden / kFeedBlock);
  return {feed_x_.as<uint16_t>() + size_t{row} * dims_.hidden, feed_squares_.as<float>() + parts};
}

StreamArgs DeviceModel::stream_from(uint32_t row, const float* next_norm) const {
  float* const at = stream() + size_t{row} * dims_.hidden;
  return {at, at, next_norm, feed_at(row), dims_.hidden};
}

const float* DeviceModel::norm_before(uint32_t layer) const {
  return layer < dims_.layers ? views().layers[layer].input_norm() : views().final_norm;
}

Result<void> DeviceModel::project(const PackedMatrix& w, const Feed& feed, Scaling scaling, uint32_t rows,
                                  float* y, const Relay& relay) {
  return project_rows({.w = w,
                       .feed = feed,
                       .y = y,
                       .ld_y = padded(w.rows),
                       .rows = rows,
                       .scaling = scaling,
                       .to = {},
                       .relay = relay,
                       .stages = 0,
                       .blocks = 0,
                       .shared = 0});
}

Result<void> DeviceModel::project_to_stream(const PackedMatrix& w, const Feed& feed, Scaling scaling,
                                            uint32_t rows, const StreamArgs& to, const Relay& relay) {
  return project_rows({.w = w,
                       .feed = feed,
                       .y = nullptr,
                       .ld_y = 0,
                       .rows = rows,
                       .scaling = scaling,
                       .to = to,
                       .relay = relay,
                       .stages = 0,
                       .blocks = 0,
                       .shared = 0});
}

// All rows in as many launches as the shared memory of the device asks for.
Result<void> DeviceModel::project_rows(ProjectArgs args) {
  const auto shape_of = [&](uint32_t rows) { return project_shape(args.w, rows, traits_); };
  const size_t inputs = size_t{args.w.k_tiles} * kTileCols;
  for (uint32_t left = args.rows; left > 0; left -= args.rows) {
    args.rows = rows_at_once(left, traits_, shape_of);
    const LaunchShape shape = shape_of(args.rows);
    args.stages = shape.stages;
    args.blocks = shape.blocks;
    args.shared = shape.shared;
    LILY_TRY_VOID(check(launch_project(args, queue_), "a projection"));
    args.feed = args.feed.from(args.rows, inputs);
    args.y = args.y != nullptr ? args.y + size_t{args.rows} * args.ld_y : nullptr;
    args.to = args.y == nullptr ? args.to.from_row(args.rows) : args.to;
  }
  return {};
}

PrefillBatch DeviceModel::prefill_batch(uint32_t layer, const Batch& batch) const {
  return {.dims = dims_,
          .stream = stream() + size_t{batch.first_row} * dims_.hidden,
          .segments = batch.segments,
          .host_segments = batch.host_segments,
          .segment_count = batch.segment_count,
          .rows = batch.rows,
          .rotary = rotary_.as<float>(),
          .experts_used = experts_used() + size_t{layer} * kExpertWords,
          .workspace = prefill_.bytes(),
          .workspace_bytes = prefill_.size(),
          .multiprocessors = traits_.multiprocessors,
          .compute_capability = traits_.compute_capability,
          .queue = queue_};
}

}  // namespace lily::cuda
