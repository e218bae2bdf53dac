// A job, from submit() to its last event. The handle, the queue and the device thread share it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

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
  // After end(), on the device thread: whether the owner heard of it.
  bool end_was_heard() const { return end_was_heard_; }

  // Any thread.
  bool cancelled() const { return (marks_ & kCancelled) != 0; }
  bool ended() const { return (marks_ & kEnded) != 0; }
  bool wanted() const { return marks_ == 0; }
  // False: it has ended or was cancelled already. Of cancel() and end() one comes first, and both know which.
  bool cancel() {
    uint8_t none = 0;
    return marks_.compare_exchange_strong(none, kCancelled);
  }
  // For a job that the device thread never sees.
  EventSink take_sink() { return std::move(sink_); }

 private:
  static constexpr uint8_t kCancelled = 1;  // by its owner: no event any more
  static constexpr uint8_t kEnded = 2;      // the last event was sent, or dropped because of kCancelled
  bool deliver(Event event);

  EventSink sink_;
  bool end_was_heard_ = false;
  std::atomic<uint8_t> marks_{0};
};

}  // namespace lily
