#include "engine/job.h"

#include "base/log.h"

namespace lily {

bool JobRecord::send(Event event) {
  if (cancelled_) return false;
  try {
    sink_(std::move(event));
    return true;
  } catch (const std::exception& error) {
    log_error("an event sink failed, its job is cancelled: {}", error.what());
  } catch (...) {
    log_error("an event sink failed, its job is cancelled");
  }
  cancelled_ = true;
  return false;
}

void JobRecord::end(Event last) {
  end_was_heard_ = send(std::move(last));
  ended_ = true;
  sink_ = nullptr;
}

}  // namespace lily
