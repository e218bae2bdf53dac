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
  ended_ = true;  // first: who hears of the end lets go of the job, and that must not cancel it any more
  end_was_heard_ = send(std::move(last));
  sink_ = nullptr;
}

}  // namespace lily
