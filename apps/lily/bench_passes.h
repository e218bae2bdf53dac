// The passes of `lily bench`: conversations of made-up tokens, read and continued as the engine does it (its
// scheduler, two passes in flight, sampled tokens that stay on the device).
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "apps/lily/bench_rows.h"
#include "backend/backend.h"
#include "base/function_ref.h"

namespace lily::app {

// Sequences that differ from each other, at one depth at a time. Every sequence has a state of its own, so
// that no two share the memory of their keys and values; the state at a depth is made once and kept as a
// checkpoint.
class Conversations {
 public:
  // Uses `backend`, loaded for `plan`, as long as it lives; `cancel` ends the pass that runs.
  Conversations(Backend& backend, const Plan& plan, const std::atomic<bool>* cancel)
      : backend_(backend), plan_(plan), cancel_(cancel) {}

  // Makes `count` empty ones.
  Result<void> create(uint32_t count);
  // Reads on from the last depth, each sequence alone.
  Result<void> go_to_depth(uint32_t depth, FunctionRef<void(double)> progress);
  // Resumes the first sequences at their depth and runs the case. A decode case samples `steps` tokens of
  // each.
  Result<BenchRun> run(const BenchCase& measured, uint32_t steps);

 private:
  struct Conversation {
    std::unique_ptr<SequenceState> state;
    std::unique_ptr<Checkpoint> at_depth;
  };
  class Pipeline;

  Result<void> read(std::span<const Conversation> which, uint32_t until, bool sample, Pipeline& pipeline);
  Result<void> decode(std::span<const Conversation> which, uint32_t steps, Pipeline& pipeline);
  std::vector<int32_t> tokens_of(const Conversation& conversation, uint32_t begin, uint32_t count) const;

  Backend& backend_;
  const Plan plan_;
  const std::atomic<bool>* cancel_;
  std::vector<Conversation> conversations_;
  uint32_t depth_ = 0;
};

}  // namespace lily::app
