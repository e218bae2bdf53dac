// What a running sequence owns: its job, its state on the device, its text, and how far it is.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "engine/generation.h"
#include "engine/mailbox.h"
#include "engine/reading.h"
#include "engine/scheduler.h"

namespace lily {

class Session {
 public:
  // `context`: tokens that prompt and answer may have together; the prompt must leave room for one.
  Session(std::shared_ptr<JobRecord> job, std::unique_ptr<SequenceState> state, const Tokenizer& tokenizer,
          uint32_t context);

  // What `state` holds of the prompt already, how the rest is to be read, and where that must stop for a
  // checkpoint (Keeper::stops).
  void resume(const PromptReuse& reuse, Reading reading, std::vector<uint32_t> stops);

  JobRecord& job() { return *job_; }
  const std::shared_ptr<JobRecord>& shared_job() const { return job_; }
  const std::vector<int32_t>& prompt() const { return job_->request.prompt; }
  SequenceState& state() { return *state_; }
  std::unique_ptr<SequenceState> release_state() { return std::move(state_); }

  SequenceProgress progress() const;
  // The slice of `assignment`; its spans point into the session.
  Slice slice(const Assignment& assignment);
  void submitted(const Assignment& assignment, uint64_t pass);

  // Whether the state stands at one of the stops, with no pass on its way: time to keep it, then pass_stop().
  bool at_stop() const;
  void pass_stop() {
    ++next_stop_;
    put_aside(nullptr);
  }
  // The device worked so long on a pass with a chunk of the prompt.
  void worked(double seconds) { unsaved_seconds_ += seconds; }
  // Whether a copy of the state is to be put aside, in case that its client leaves, and none is on its way.
  bool at_risk() const { return unsaved() && passes_in_flight == 0; }
  void put_aside(std::shared_ptr<Checkpoint> checkpoint) {
    aside_ = std::move(checkpoint);
    unsaved_seconds_ = 0;
  }
  // Of a cancelled job what was put aside, a beginning of the prompt, where the state is of no use to who
  // asks for the same again: it failed or has read the whole prompt. Null: nothing.
  std::shared_ptr<Checkpoint> left_aside() const;
  // Whether the state, or what was put aside, is of a proper beginning of `prompt`; once the job has ended or
  // was cancelled. Of what was sampled the last is not known before its pass has come back: not looked at.
  bool leaves_beginning_of(std::span<const int32_t> prompt) const;
  // The tokens that the state has absorbed by all submitted passes; once none is on its way.
  std::span<const int32_t> absorbed_tokens();

  void start();  // sends Started
  SequenceMetrics metrics() const;
  // What a pass sampled, wanted or not; -1 = nothing.
  void sampled(int32_t token) {
    if (token >= 0) sampled_.push_back(token);
  }
  // Takes what a pass gave for `assignment` and sends what follows from it, but for the last event, which it
  // gives back once the answer is whole. Not after the end. The error, if any, has not been sent.
  Result<std::optional<Finished>> take(const Assignment& assignment, const SliceOutput& output,
                                       uint32_t vocab);
  // The time of its job is over: its last event with what there is. None when there is nothing yet.
  std::optional<Finished> cut_off();
  // Prompt and answer, as far as it was sampled.
  std::vector<int32_t> all_tokens() const;
  bool wanted() const { return job_->wanted(); }
  uint32_t passes_in_flight = 0;  // submitted passes that hold a slice of this session
  bool state_failed = false;      // the state must not be used again
  uint64_t last_turn = 0;         // see SequenceProgress
  // EngineOptions::unsaved_seconds; infinite where nothing is kept.
  double most_unsaved = std::numeric_limits<double>::infinity();
  uint64_t number = 0;  // see SequenceMetrics
  // Counted since the last look: what metrics add up.
  uint64_t new_prompt_tokens = 0;
  uint64_t new_tokens = 0;
  bool closed_thinking = false;  // GenerationRequest::close_thinking made it go on

 private:
  Usage usage() const;
  Finished finished(FinishReason reason) const;
  Result<void> check(const Assignment& assignment, const SliceOutput& output, uint32_t vocab) const;
  bool unsaved() const;
  bool over_budget() const;
  bool may_close_thinking() const;

  std::shared_ptr<JobRecord> job_;
  std::unique_ptr<SequenceState> state_;
  uint32_t max_tokens_;  // of the answer
  PromptReuse reuse_;
  Reading reading_;
  std::vector<uint32_t> stops_;
  size_t next_stop_ = 0;
  std::shared_ptr<Checkpoint> aside_;
  double unsaved_seconds_ = 0;    // of work on the prompt since the state was kept or a copy put aside
  uint32_t absorbed_ = 0;         // prompt tokens kept, or in submitted passes
  std::vector<int32_t> history_;  // prompt and answer, once absorbed_tokens() was asked for
  std::vector<int32_t> sampled_;  // tokens of the answer, also after its end
  uint32_t samples_ = 0;          // tokens asked for in submitted passes
  bool think_ended_ = false;      // the budget of thinking ended it, in a submitted pass
  int32_t replaced_ = -1;         // what the next pass absorbs instead of the token sampled last; -1: that
  std::vector<LogitBias> think_end_;  // what makes the next token the end of the think block
  Generation generation_;
  EngineClock::time_point started_{};
  EngineClock::time_point first_token_{};
  EngineClock::time_point last_token_{};
};

}  // namespace lily
