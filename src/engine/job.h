// A job, from submit() to its last event. The handle, the queue and the device thread share it.
#pragma once

#include <atomic>
#include <chrono>

#include "engine/engine.h"

namespace lily {

using EngineClock = std::chrono::steady_clock;

class JobRecord {
 public:
  JobRecord(GenerationRequest asked, EventSink events)
      : request(std::move(asked)), submitted(EngineClock::now()), sink_(std::move(events)) {}

  const GenerationRequest request;
  const EngineClock::time_point submitted;
  // Whether GenerationRequest::max_seconds have passed.
  bool overdue(EngineClock::time_point now) const {
    return request.max_seconds > 0 &&
           std::chrono::duration<double>(now - submitted).count() >= request.max_seconds;
  }

  // Both on the device thread. An event of a cancelled job is dropped; a sink that throws cancels its job.
  // False: nobody heard it.
  bool send(Event event);
  void end(Event last);  // the last event: drops the sink
  // After end(), on the device thread: whether the owner heard of it. That may be cancelled() already: the
  // owner drops a job as soon as it has heard of its end.
  bool end_was_heard() const { return end_was_heard_; }

  // Any thread.
  bool cancelled() const { return cancelled_; }
  bool ended() const { return ended_; }
  bool wanted() const { return !cancelled_ && !ended_; }
  void cancel() { cancelled_ = true; }
  // For a job that the device thread never sees.
  EventSink take_sink() { return std::move(sink_); }

 private:
  EventSink sink_;
  bool end_was_heard_ = false;
  std::atomic<bool> cancelled_{false};  // by its owner: no event any more
  std::atomic<bool> ended_{false};      // the last event was sent, or dropped because of cancelled_
};

}  // namespace lily
