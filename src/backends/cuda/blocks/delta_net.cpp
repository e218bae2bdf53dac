#include "backends/cuda/model.h"

namespace lily::cuda {

Result<void> DeviceModel::delta_net(uint32_t layer, const Batch& batch) {
  const LayerViews& views_of = views().layers[layer];
  const auto& w = std::get<DeltaNetLayer>(views_of.mixer);
  if (batch.prefill) {
    return check(prefill_delta_net(w, prefill_batch(layer, batch)), "Gated DeltaNet over many rows");
  }
  float* const mixed = mixed_.as<float>();
  LILY_TRY_VOID(project(w.in_proj, feed_at(batch.first_row), Scaling::row, batch.rows, mixed));
  const Feed heads{heads_x_.as<uint16_t>(), heads_squares_.as<float>()};
  const DeltaStepArgs step{.dims = dims_,
                           .segments = batch.segments,
                           .segment_count = batch.segment_count,
                           .mixed = mixed,
                           .ld = w.in_proj.row_blocks * kTileRows,
                           .layer = w.index,
                           .conv = w.conv,
                           .decay_rate = w.decay_rate,
                           .dt_bias = w.dt_bias,
                           .norm = w.norm,
                           .out = heads,
                           .first_row = batch.first_row,
                           .single = batch.single ? 1U : 0U,
                           .shared = delta_step_shared(w.in_proj, batch.rows, traits_)};
  LILY_TRY_VOID(check(launch_delta_step(step, queue_), "the delta rule"));
  return project_to_stream(w.out_proj, heads, Scaling::head, batch.rows,
                           stream_from(batch.first_row, views_of.moe.post_norm));
}

}  // namespace lily::cuda
