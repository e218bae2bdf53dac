#include "backends/cuda/model.h"

namespace lily::cuda {

Result<void> DeviceModel::step(const int32_t* ids, const int32_t* const* sampled, Batch batch) {
  batch.relayed = batch.rows <= relay_rows_;
  LILY_TRY_VOID(embed_to(places(0, batch).before, ids, sampled, batch.rows));
  for (uint32_t layer = 0; layer < dims_.layers; ++layer) {
    LILY_TRY_VOID(plan_.shape.is_attention(layer) ? attention(layer, batch) : delta_net(layer, batch));
    LILY_TRY_VOID(moe(layer, batch));
  }
  if (!batch.relayed) {
    return head(nullptr, batch.rows);
  }
  const Places last = relay(dims_.layers, batch.rows);
  return project_head(last.before.feed, batch.rows, last.relays.in_proj);
}

UnwriteArgs DeviceModel::relayed(uint32_t rows) const {
  const uint64_t bytes = uint64_t{dims_.layers + 1} * relay_bytes(dims_, rows);
  return rows <= relay_rows_ ? UnwriteArgs{relay_.bytes(), bytes} : UnwriteArgs{nullptr, 0};
}
Result<void> DeviceModel::unwrite(const UnwriteArgs& args) {
  return check(launch_unwrite(args, queue_), "clearing what kernels hand on");
}

}  // namespace lily::cuda
