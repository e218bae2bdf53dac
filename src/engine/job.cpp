#include "engine/job.h"

#include "base/log.h"

namespace lily {

bool JobRecord::send(Event event) { return !cancelled() && deliver(std::move(event)); }

bool JobRecord::deliver(Event event) {
  try {
    sink_(std::move(event));
    return true;
  } catch (const std::exception& error) {
    log_error("an event sink failed, its job is cancelled: {}", error.what());
  } catch (...) {
    log_error("an event sink failed, its job is cancelled");
  }
  marks_ |= kCancelled;
  return false;
}

void JobRecord::end(Event last) {
  // First: who hears of the end lets go of the job, and that must not cancel it any more.
  const bool cancelled = (marks_.fetch_or(kEnded) & kCancelled) != 0;
  end_was_heard_ = !cancelled && deliver(std::move(last));
  sink_ = nullptr;
}

}  // namespace lily
