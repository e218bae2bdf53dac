// Keeps conversations: which state a new request starts from, which checkpoints are taken, and the one budget
// of memory for what runs and what is kept. Used by the device thread alone, except as a TokenMemory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "engine/disk_store.h"
#include "engine/engine.h"
#include "engine/prefix_tree.h"
#include "engine/reading.h"

namespace lily {

class Keeper final : public TokenMemory {
 public:
  // Every so many tokens of a long prompt a checkpoint is kept, whatever stands there.
  static constexpr uint32_t kEvery = 2048;
  // So few tokens are sooner read again than kept: a prompt of which all but these are spared is a hit.
  static constexpr uint32_t kNear = 64;

  // `backend` must outlive it. Makes the first state, so that a device that cannot hold one is refused here.
  static Result<std::unique_ptr<Keeper>> create(Backend& backend, const Plan& plan,
                                                const EngineOptions& options, const ReadingRule& rule);

  bool enabled() const { return budget_ > 0; }
  size_t known(std::span<const int32_t> prompt) const override;
  std::vector<std::vector<int32_t>> continuations(std::span<const int32_t> prefix,
                                                  int32_t end) const override;

  // An empty state: one that was given back, else a new one of Plan::context tokens.
  Result<std::unique_ptr<SequenceState>> fresh_state();
  // Empties a state that is in no pass, so that its keys and values are given back, and holds it for the next
  // sequence while there is room.
  Result<void> give_back(std::unique_ptr<SequenceState> state);

  // Brings `state`, which is empty, to the longest kept beginning of the prompt of `request`.
  Result<PromptReuse> begin(SequenceState& state, const GenerationRequest& request);
  // Where the disk holds more of `prompt` than memory does: begins to read it, and tells when it is done;
  // null otherwise. Then take(), and begin() finds it.
  std::shared_ptr<DiskStore::Fetch> fetch(std::span<const int32_t> prompt, std::function<void()> told);
  void take(DiskStore::Fetch& fetch);
  // Where a prompt of `request`, of which `cached` tokens are there, is to stop for a checkpoint: after its
  // system turn, at its marks, and every kEvery tokens, or as little before as `reading` allows; none that
  // would spare fewer than kNear. `chunk`: rows of a pass.
  std::vector<uint32_t> stops(const GenerationRequest& request, const Reading& reading, uint32_t cached,
                              uint32_t chunk) const;
  // A checkpoint of `state`, which is in no pass. What cannot be saved is logged, and null; nobody fails for
  // it.
  static std::shared_ptr<Checkpoint> save(SequenceState& state);
  // Keeps a checkpoint of a state that has absorbed `tokens`.
  void keep(std::span<const int32_t> tokens, std::shared_ptr<Checkpoint> checkpoint);
  // Both, unless something is kept of these tokens.
  void keep(SequenceState& state, std::span<const int32_t> tokens);
  // Makes a prompt and its answer known at once, before a checkpoint can be taken.
  void note(std::span<const int32_t> tokens);
  // After each pass: `tokens` were computed, states have grown.
  void computed(uint64_t tokens);
  CacheMetrics metrics() const;  // without those of the disk
  // Any thread: what the disk does, it does also while nothing is computed.
  std::optional<DiskMetrics> disk_metrics() const;

 private:
  Keeper(Backend& backend, const Plan& plan, const EngineOptions& options);
  void make_room();
  PromptReuse judge(const PrefixCache::Match& match, const GenerationRequest& request) const;
  void count(const PromptReuse& reuse);

  Backend& backend_;
  const uint32_t context_;
  const uint64_t budget_;              // of states and checkpoints
  std::unique_ptr<Checkpoint> empty_;  // what every state starts from
  std::vector<std::unique_ptr<SequenceState>> idle_;
  mutable std::mutex mutex_;  // of cache_: held for no longer than a look into it takes
  PrefixCache cache_;
  CacheMetrics counts_;  // the totals
  std::unique_ptr<DiskStore> disk_;
};

}  // namespace lily
