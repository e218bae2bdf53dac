#include "backends/cuda/model.h"

namespace lily::cuda {

Result<void> DeviceModel::moe(uint32_t layer, const Batch& batch) {
  const MoeLayer& w = views().layers[layer].moe;
  if (batch.prefill) {
    return check(prefill_moe(w, prefill_batch(layer, batch)), "experts over many rows");
  }
  float* const router = router_.as<float>();
  const Feed feed = feed_at(batch.first_row);
  LILY_TRY_VOID(project(w.router, feed, Scaling::row, batch.rows, router));
  ExpertArgs args{.dims = dims_,
                  .w = w.gate_up,
                  .router = router,
                  .ld_router = w.router.row_blocks * kTileRows,
                  .rows = batch.rows,
                  .feed = feed,
                  .h = h_.as<uint16_t>(),
                  .experts_used = experts_used() + size_t{layer} * kExpertWords,
                  .routing = {routing_.as<uint32_t>() + 64, routing_.as<uint32_t>(), ++routings_},
                  .to = stream_from(batch.first_row, norm_after_moe(layer)),
                  .stages = 0,
                  .blocks = 0,
                  .shared = 0};
  const auto with = [&](const PackedMatrix& matrix, const LaunchShape& shape) {
    args.w = matrix;
    args.stages = shape.stages;
    args.blocks = shape.blocks;
    args.shared = shape.shared;
  };
  with(w.gate_up, gate_up_shape(w.gate_up, batch.rows, traits_));
  LILY_TRY_VOID(check(launch_gate_up(args, queue_), "gate and up of the experts"));
  with(w.down, down_shape(w.down, batch.rows, traits_));
  return check(launch_down(args, queue_), "down of the experts");
}

}  // namespace lily::cuda
