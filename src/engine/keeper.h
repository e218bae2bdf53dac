// Keeps conversations: which state a new request starts from, which checkpoints are taken, and the one budget
// of memory for what runs and what is kept. Used by the device thread alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "engine/engine.h"
#include "engine/prefix_cache.h"

namespace lily {

class Keeper {
 public:
  // Every so many tokens of a long prompt a checkpoint is kept, whatever stands there.
  static constexpr uint32_t kEvery = 2048;
  // So few tokens are sooner read again than kept: a prompt of which all but these are spared is a hit.
  static constexpr uint32_t kNear = 64;

  // `backend` must outlive it; `empty` is what every state starts from.
  Keeper(Backend& backend, const EngineOptions& options, std::unique_ptr<Checkpoint> empty)
      : backend_(backend), budget_(options.cache_bytes), empty_(std::move(empty)) {}

  // Brings `state`, which is empty, to the longest kept beginning of `prompt`.
  Result<PromptReuse> begin(SequenceState& state, std::span<const int32_t> prompt);
  // Where a prompt of `request`, of which `cached` tokens are there, is to stop for a checkpoint: at its
  // marks, and every kEvery tokens; none nearer than kNear to another or to what is there. `chunk`: rows of a
  // pass.
  std::vector<uint32_t> stops(const GenerationRequest& request, uint32_t cached, uint32_t chunk) const;
  // Keeps a checkpoint of `state`, which has absorbed `tokens` and is in no pass. What cannot be kept is
  // logged; nobody fails for it.
  void keep(SequenceState& state, std::span<const int32_t> tokens);
  // Makes a state that is in no pass empty.
  Result<void> clear(SequenceState& state) { return state.resume(*empty_); }

  // After each pass: `tokens` were computed, states have grown.
  void computed(uint64_t tokens);
  CacheMetrics metrics() const;

 private:
  bool enabled() const { return budget_ > 0; }
  void make_room();
  void count(const PromptReuse& reuse);

  Backend& backend_;
  const uint64_t budget_;
  std::unique_ptr<Checkpoint> empty_;
  PrefixCache cache_;
  CacheMetrics counts_;  // the totals
};

}  // namespace lily
