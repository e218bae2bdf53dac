#include "backends/cuda/model.h"

namespace lily::cuda {

Result<void> DeviceModel::attention(uint32_t layer, const Batch& batch) {
  const LayerViews& views_of = views().layers[layer];
  const auto& w = std::get<AttentionLayer>(views_of.mixer);
  if (batch.prefill) {
    return check(prefill_attention(w, prefill_batch(layer, batch)), "attention over many rows");
  }
  float* const mixed = mixed_.as<float>();
  LILY_TRY_VOID(project(w.in_proj, feed_at(batch.first_row), Scaling::row, batch.rows, mixed));
  const Feed heads{heads_x_.as<uint16_t>(), heads_squares_.as<float>()};
  const AttendArgs attend{.dims = dims_,
                          .segments = batch.segments,
                          .row_segment = batch.row_segment,
                          .segment_count = batch.segment_count,
                          .rows = batch.rows,
                          .first_row = batch.first_row,
                          .mixed = mixed,
                          .ld = w.in_proj.row_blocks * kTileRows,
                          .layer = w.index,
                          .q_norm = w.q_norm,
                          .k_norm = w.k_norm,
                          .rotary = rotary_.as<float>(),
                          .partial = partial_.as<float>(),
                          .partial_ml = partial_ml_.as<float>(),
                          .out = heads,
                          .single = batch.single ? 1U : 0U,
                          .warps = attend_warps(traits_)};
  LILY_TRY_VOID(check(launch_attend(attend, queue_), "attention"));
  return project_to_stream(w.out_proj, heads, Scaling::none, batch.rows,
                           stream_from(batch.first_row, views_of.moe.post_norm));
}

}  // namespace lily::cuda
