#include "backends/cuda/model.h"

namespace lily::cuda {

Result<void> DeviceModel::attention(uint32_t layer, const Batch& batch) {
  const auto& w = std::get<AttentionLayer>(views().layers[layer].mixer);
  if (batch.prefill) {
    return check(prefill_attention(w, prefill_batch(layer, batch)), "attention over many rows");
  }
  const Places at = places(layer, batch);
  LILY_TRY_VOID(project(w.in_proj, at.before.feed, Scaling::row, batch.rows, at.mixed, at.relays.in_proj));
  const AttendArgs attend{.dims = dims_,
                          .segments = batch.segments,
                          .row_segment = batch.row_segment,
                          .segment_count = batch.segment_count,
                          .rows = batch.rows,
                          .first_row = batch.first_row,
                          .mixed = at.mixed,
                          .ld = w.in_proj.row_blocks * kTileRows,
                          .layer = w.index,
                          .q_norm = w.q_norm,
                          .k_norm = w.k_norm,
                          .rotary = rotary_.as<float>(),
                          .partial = partial_.as<float>(),
                          .partial_ml = partial_ml_.as<float>(),
                          .out = at.heads,
                          .single = batch.single ? 1U : 0U,
                          .relay = at.relays.mixer,
                          .combine = at.relays.combine,
                          .warps = attend_warps(traits_)};
  LILY_TRY_VOID(check(launch_attend(attend, queue_), "attention"));
  return project_to_stream(w.out_proj, at.heads, Scaling::none, batch.rows, at.mixer, at.relays.out_proj);
}

}  // namespace lily::cuda
