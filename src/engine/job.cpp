#include "engine/job.h"

#include "base/log.h"

namespace lily {

void JobRecord::send(Event event) {
  if (cancelled_) return;
  try {
    sink_(std::move(event));
    return;
  } catch (const std::exception& error) {
    log_error("an event sink failed, its job is cancelled: {}", error.what());
  } catch (...) {
    log_error("an event sink failed, its job is cancelled");
  }
  cancelled_ = true;
}

void JobRecord::end(Event last) {
  send(std::move(last));
  ended_ = true;
  sink_ = nullptr;
}

}  // namespace lily
