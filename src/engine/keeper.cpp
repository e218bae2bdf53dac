#include "engine/keeper.h"

#include <algorithm>
#include <functional>

#include "base/log.h"

namespace lily {

Result<PromptReuse> Keeper::begin(SequenceState& state, std::span<const int32_t> prompt) {
  PromptReuse reuse;
  if (!enabled()) return reuse;
  const PrefixCache::Match match = cache_.find(prompt);
  reuse = {.cached = match.length,
           .known = match.known,
           .kept_token = match.kept_token,
           .prompt_token = match.prompt_token};
  if (match.checkpoint != nullptr) {
    if (Result<void> resumed = state.resume(*match.checkpoint); !resumed) {
      log_warn("a checkpoint of {} tokens could not be resumed, the prompt is read from its start: {}",
               match.length, resumed.error().text());
      LILY_TRY_VOID(clear(state));
      reuse.cached = 0;
    }
  }
  count(reuse);
  return reuse;
}

void Keeper::count(const PromptReuse& reuse) {
  if (reuse.cached == 0) {
    ++counts_.misses;
  } else if (reuse.known - reuse.cached <= kNear) {
    ++counts_.hits;
  } else {
    ++counts_.partial;
  }
  counts_.tokens += reuse.cached;
}

std::vector<uint32_t> Keeper::stops(const GenerationRequest& request, uint32_t cached, uint32_t chunk) const {
  if (!enabled()) return {};
  const auto prompt = static_cast<uint32_t>(request.prompt.size());
  std::vector<uint32_t> candidates = request.marks;
  const uint32_t every = (kEvery + chunk - 1) / chunk * chunk;  // where a chunk ends anyway
  for (uint32_t at = every; at < prompt; at += every) candidates.push_back(at);
  std::ranges::sort(candidates, std::greater());
  // From the end, where a prompt is most likely to be taken up again; what spares a few tokens only is left
  // out.
  std::vector<uint32_t> stops;
  for (const uint32_t at : candidates) {
    if (at >= prompt || at < cached + kNear) continue;
    if (stops.empty() || stops.back() >= at + kNear) stops.push_back(at);
  }
  std::ranges::reverse(stops);
  return stops;
}

void Keeper::keep(SequenceState& state, std::span<const int32_t> tokens) {
  if (!enabled() || tokens.empty() || cache_.holds(tokens)) return;
  Result<std::unique_ptr<Checkpoint>> checkpoint = state.save();
  if (!checkpoint) {
    log_warn("a checkpoint of {} tokens could not be kept: {}", tokens.size(), checkpoint.error().text());
    return;
  }
  cache_.insert(tokens, *std::move(checkpoint));
  make_room();
}

void Keeper::computed(uint64_t tokens) {
  cache_.advance(tokens);
  make_room();
}

void Keeper::make_room() {
  while (backend_.state_bytes() > budget_ && cache_.evict()) ++counts_.evictions;
}

CacheMetrics Keeper::metrics() const {
  CacheMetrics metrics = counts_;
  metrics.checkpoints = static_cast<uint32_t>(cache_.size());
  metrics.bytes = backend_.state_bytes();
  return metrics;
}

}  // namespace lily
