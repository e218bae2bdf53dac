#include "backends/cuda/model.h"

namespace lily::cuda {

Result<void> DeviceModel::delta_net(uint32_t layer, const Batch& batch) {
  const auto& w = std::get<DeltaNetLayer>(views().layers[layer].mixer);
  if (batch.prefill) {
    return check(prefill_delta_net(w, prefill_batch(layer, batch)), "Gated DeltaNet over many rows");
  }
  const Places at = places(layer, batch);
  LILY_TRY_VOID(project(w.in_proj, at.before.feed, Scaling::row, batch.rows, at.mixed, at.relays.in_proj));
  const LaunchShape shape = delta_step_shape(w.in_proj, dims_, batch.segment_count, batch.rows, traits_);
  const DeltaStepArgs step{.dims = dims_,
                           .segments = batch.segments,
                           .segment_count = batch.segment_count,
                           .mixed = at.mixed,
                           .ld = w.in_proj.row_blocks * kTileRows,
                           .layer = w.index,
                           .conv = w.conv,
                           .decay_rate = w.decay_rate,
                           .dt_bias = w.dt_bias,
                           .norm = w.norm,
                           .out = at.heads,
                           .first_row = batch.first_row,
                           .single = batch.single ? 1U : 0U,
                           .relay = at.relays.mixer,
                           .blocks = shape.blocks,
                           .stages = shape.stages,
                           .shared = shape.shared};
  LILY_TRY_VOID(check(launch_delta_step(step, queue_), "the delta rule"));
  return project_to_stream(w.out_proj, at.heads, Scaling::head, batch.rows, at.mixer, at.relays.out_proj);
}

}  // namespace lily::cuda
