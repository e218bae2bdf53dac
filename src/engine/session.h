// What a running sequence owns: its job, its state on the device, its text, and how far it is.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "engine/generation.h"
#include "engine/mailbox.h"
#include "engine/scheduler.h"

namespace lily {

class Session {
 public:
  // `context`: tokens that prompt and answer may have together; the prompt must leave room for one.
  Session(std::shared_ptr<JobRecord> job, std::unique_ptr<SequenceState> state, const Tokenizer& tokenizer,
          uint32_t context);

  JobRecord& job() { return *job_; }
  const std::shared_ptr<JobRecord>& shared_job() const { return job_; }
  SequenceState& state() { return *state_; }
  std::unique_ptr<SequenceState> release_state() { return std::move(state_); }

  SequenceProgress progress() const;
  // The slice of `assignment`; its spans point into the session.
  Slice slice(const Assignment& assignment);
  void submitted(const Assignment& assignment, uint64_t pass);

  void start();  // sends Started
  // Takes what a pass gave for `assignment` and sends what follows from it. Not after the end.
  // The error, if any, has not been sent.
  Result<void> take(const Assignment& assignment, const SliceOutput& output, uint32_t vocab);
  bool wanted() const { return job_->wanted(); }
  uint32_t passes_in_flight = 0;  // submitted passes that hold a slice of this session
  bool state_failed = false;      // the state must not be used again
  uint64_t last_turn = 0;         // see SequenceProgress
  // Counted since the last look: what metrics add up.
  uint64_t new_prompt_tokens = 0;
  uint64_t new_tokens = 0;

 private:
  Usage usage() const;
  void finish(FinishReason reason);

  std::shared_ptr<JobRecord> job_;
  std::unique_ptr<SequenceState> state_;
  uint32_t max_tokens_;    // of the answer
  uint32_t absorbed_ = 0;  // prompt tokens in submitted passes
  uint32_t samples_ = 0;   // tokens asked for in submitted passes
  Generation generation_;
  EngineClock::time_point started_{};
  EngineClock::time_point first_token_{};
  EngineClock::time_point last_token_{};
};

}  // namespace lily
