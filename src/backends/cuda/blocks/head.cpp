#include "backends/cuda/model.h"

namespace lily::cuda {

Result<void> DeviceModel::head(const uint32_t* rows_of, uint32_t rows) {
  Feed feed = feed_at(0);
  if (rows_of != nullptr) {
    feed = {head_x_.as<uint16_t>(), head_squares_.as<float>()};
    const StreamArgs from{stream(), stream(), views().final_norm, feed, dims_.hidden};
    LILY_TRY_VOID(check(launch_prepare(from, rows_of, rows, queue_), "the feed of the head"));
  }
  return project_head(feed, rows, {});
}

Result<void> DeviceModel::project_head(const Feed& feed, uint32_t rows, const Relay& relay) {
  return project(views().lm_head, feed, Scaling::row, rows, logits(), relay);
}

}  // namespace lily::cuda
