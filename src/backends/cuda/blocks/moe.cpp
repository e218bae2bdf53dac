#include "backends/cuda/model.h"

namespace lily::cuda {

Result<void> DeviceModel::moe(uint32_t layer, const Batch& batch) {
  const MoeLayer& w = views().layers[layer].moe;
  if (batch.prefill) {
    return check(prefill_moe(w, prefill_batch(layer, batch)), "experts over many rows");
  }
  const Places at = places(layer, batch);
  LILY_TRY_VOID(project(w.router, at.mixer.feed, Scaling::row, batch.rows, at.router, at.relays.router));
  const auto rows_of = [&](uint32_t rows) {
    rows = rows_at_once(rows, traits_, [&](uint32_t r) { return gate_up_shape(w.gate_up, r, traits_); });
    return rows_at_once(rows, traits_, [&](uint32_t r) { return down_shape(w.down, r, traits_); });
  };
  uint32_t rows = 0;
  for (uint32_t first = 0; first < batch.rows; first += rows) {
    rows = rows_of(batch.rows - first);
    ExpertArgs args{.dims = dims_,
                    .w = w.gate_up,
                    .router = at.router + size_t{first} * w.router.row_blocks * kTileRows,
                    .ld_router = w.router.row_blocks * kTileRows,
                    .rows = rows,
                    .feed = at.mixer.feed.from(first, dims_.hidden),
                    .h = at.h,
                    .y = expert_y_.as<float>(),
                    .experts_used = experts_used() + size_t{layer} * kExpertWords,
                    .routing = {routing_.as<uint32_t>() + 64, routing_.as<uint32_t>(), ++routings_},
                    .to = at.experts.from_row(first),
                    .relay = {},
                    .stages = 0,
                    .blocks = 0,
                    .shared = 0};
    const auto with = [&](const PackedMatrix& matrix, const LaunchShape& shape) {
      args.w = matrix;
      args.stages = shape.stages;
      args.blocks = shape.blocks;
      args.shared = shape.shared;
    };
    args.relay = at.relays.gate_up;
    with(w.gate_up, gate_up_shape(w.gate_up, rows, traits_));
    LILY_TRY_VOID(check(launch_gate_up(args, queue_), "gate and up of the experts"));
    args.relay = at.relays.down;
    with(w.down, down_shape(w.down, rows, traits_));
    LILY_TRY_VOID(check(launch_down(args, queue_), "down of the experts"));
  }
  return {};
}

}  // namespace lily::cuda
