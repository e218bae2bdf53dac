#include "engine/keeper.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/log.h"

namespace lily {

namespace {

// The ids of conversations have a 64th of the budget; of a small one a little more, so that what was said
// last is not forgotten at once.
constexpr uint64_t kIdsShare = 64;
constexpr uint64_t kFewestIds = uint64_t{1} << 16U;
constexpr size_t kMostContinuations = 16;

}  // namespace

Keeper::Keeper(Backend& backend, const Plan& plan, const EngineOptions& options)
    : backend_(backend),
      context_(plan.context),
      budget_(options.cache_bytes - options.cache_bytes / kIdsShare),
      cache_(std::max(options.cache_bytes / kIdsShare / sizeof(int32_t), kFewestIds)) {}

Result<std::unique_ptr<Keeper>> Keeper::create(Backend& backend, const Plan& plan,
                                               const EngineOptions& options, const ReadingRule& rule) {
  std::unique_ptr<Keeper> keeper(new Keeper(backend, plan, options));
  LILY_TRY(auto state, backend.new_state(plan.context));
  LILY_TRY(keeper->empty_, state->save());
  keeper->idle_.push_back(std::move(state));
  if (options.disk && options.cache_bytes > 0) {
    LILY_TRY(keeper->disk_, DiskStore::open(*options.disk, backend, rule.name()));
  }
  return keeper;
}

Result<std::unique_ptr<SequenceState>> Keeper::fresh_state() {
  if (idle_.empty()) return backend_.new_state(context_);
  std::unique_ptr<SequenceState> state = std::move(idle_.back());
  idle_.pop_back();
  return state;
}

Result<void> Keeper::give_back(std::unique_ptr<SequenceState> state) {
  LILY_TRY_VOID(state->resume(*empty_));
  idle_.push_back(std::move(state));
  return {};
}

size_t Keeper::known(std::span<const int32_t> prompt) const {
  const size_t on_disk = disk_ ? disk_->look(prompt).known : 0;
  const std::lock_guard lock(mutex_);
  return std::max<size_t>(cache_.known(prompt), on_disk);
}

std::vector<std::vector<int32_t>> Keeper::continuations(std::span<const int32_t> prefix, int32_t end) const {
  std::vector<std::vector<int32_t>> found;
  {
    const std::lock_guard lock(mutex_);
    found = cache_.continuations(prefix, end, kMostContinuations);
  }
  if (!disk_) return found;
  for (std::vector<int32_t>& one : disk_->continuations(prefix, end, kMostContinuations)) {
    found.push_back(std::move(one));
  }
  return found;
}

std::shared_ptr<DiskStore::Fetch> Keeper::fetch(std::span<const int32_t> prompt, std::function<void()> told) {
  if (!disk_) return nullptr;
  const PrefixCache::Match match = cache_.look(prompt);  // this thread alone changes the tree
  return disk_->fetch(prompt, match.length + kNear, match.kept, std::move(told));
}

void Keeper::take(DiskStore::Fetch& fetch) {
  if (fetch.checkpoint == nullptr || cache_.holds(fetch.tokens)) return;
  make_room();  // before: the prompt that has waited for it is yet to resume from it
  const std::lock_guard lock(mutex_);
  cache_.insert(fetch.tokens, fetch.checkpoint);
}

Result<PromptReuse> Keeper::begin(SequenceState& state, const GenerationRequest& request) {
  if (!enabled()) return PromptReuse{};
  PrefixCache::Match match;
  {
    const std::lock_guard lock(mutex_);
    match = cache_.find(request.prompt);
  }
  PromptReuse reuse = judge(match, request);
  if (match.kept != nullptr) {
    if (Result<void> resumed = state.resume(*match.kept); !resumed) {
      log_warn("a checkpoint of {} tokens could not be resumed, the prompt is read from its start: {}",
               match.length, resumed.error().text());
      LILY_TRY_VOID(state.resume(*empty_));
      reuse.cached = 0;
      reuse.result = PromptReuse::Result::miss;
      reuse.why = PromptReuse::Why::failed;
    }
  }
  count(reuse);
  return reuse;
}

PromptReuse Keeper::judge(const PrefixCache::Match& match, const GenerationRequest& request) const {
  using Why = PromptReuse::Why;
  PromptReuse reuse;
  reuse.cached = match.length;
  reuse.known = match.known;
  reuse.kept_token = match.kept_token;
  reuse.prompt_token = match.prompt_token;
  reuse.recalled = request.recalled;
  if (disk_) {
    if (const DiskIndex::Match stored = disk_->look(request.prompt); stored.known > reuse.known) {
      reuse.known = stored.known;
      reuse.kept_token = stored.kept_token;
      reuse.prompt_token = stored.prompt_token;
    }
  }
  const bool near = reuse.known - reuse.cached <= kNear;
  reuse.result = reuse.cached == 0 ? PromptReuse::Result::miss
                 : near            ? PromptReuse::Result::hit
                                   : PromptReuse::Result::partial;
  if (reuse.cached > 0 && request.prompt.size() - reuse.cached <= kNear) {
    reuse.why = Why::all;
  } else if (!near && match.dropped > reuse.cached) {
    reuse.why = Why::dropped;
  } else {
    reuse.why = reuse.kept_token >= 0 && reuse.known > 0 ? Why::parted : Why::new_text;
  }
  for (const PromptTokens::Turn& turn : request.turns) {
    if (turn.begin > reuse.known || reuse.prompt_token < 0) break;
    reuse.turn = static_cast<uint32_t>(&turn - request.turns.data());
    reuse.role = turn.role;
  }
  return reuse;
}

void Keeper::count(const PromptReuse& reuse) {
  constexpr std::array<std::string_view, 4> kRoles{"system", "user", "assistant", "tool"};
  counts_.hits += reuse.result == PromptReuse::Result::hit ? 1 : 0;
  counts_.partial += reuse.result == PromptReuse::Result::partial ? 1 : 0;
  counts_.misses += reuse.result == PromptReuse::Result::miss ? 1 : 0;
  counts_.dropped += reuse.why == PromptReuse::Why::dropped ? 1 : 0;
  for (size_t i = 0; i < kRoles.size(); ++i) {
    counts_.parted[i] += reuse.why == PromptReuse::Why::parted && reuse.role == kRoles[i] ? 1 : 0;
  }
  counts_.tokens += reuse.cached;
  counts_.recalled += reuse.recalled;
}

namespace {

// What is to be spared, and the stop that spares it, or all but the last of it.
struct Place {
  uint32_t end;
  uint32_t stop;
};

// From where prompts are most likely to be taken up again. What other conversations begin with goes first:
// the system turn and its tools. Then what stays of an answer whose thoughts the template drops later: its
// opening, where reading changes. Then from the end.
std::vector<Place> places(const GenerationRequest& request, const Reading& reading, uint32_t every) {
  const auto prompt = static_cast<uint32_t>(request.prompt.size());
  std::vector<Place> first, others;
  const auto before = [&](uint32_t end) { return Place{end, reading.kept_before(end)}; };
  const auto& turns = request.turns;
  if (turns.size() > 1 && turns[0].role == "system") first.push_back(before(turns[1].begin));
  bool opened = false;
  for (const uint32_t mark : request.marks) {
    if (!reading.turns_single(mark)) {
      others.push_back(before(mark));
      continue;
    }
    if (!std::exchange(opened, true)) first.push_back(before(mark));
    // Who asks for the same again spares one token of the answer to come, too.
    if (mark == request.marks.back()) others.push_back({prompt, mark + 1});
  }
  for (uint32_t at = every; at < prompt; at += every) others.push_back({at, at});
  // Behind a prompt that ends with many rows no state is kept, not even with its answer.
  if (reading.as(prompt - 1) == ReadAs::many) others.push_back(before(prompt - 1));
  std::ranges::sort(others, std::greater(), &Place::stop);
  first.insert(first.end(), others.begin(), others.end());
  return first;
}

}  // namespace

std::vector<uint32_t> Keeper::stops(const GenerationRequest& request, const Reading& reading, uint32_t cached,
                                    uint32_t chunk) const {
  if (!enabled()) return {};
  const auto prompt = static_cast<uint32_t>(request.prompt.size());
  const uint32_t every = (kEvery + chunk - 1) / chunk * chunk;  // where a chunk ends anyway
  std::vector<uint32_t> stops;
  // What spares a few tokens only is left out: those from what is there, or from another stop, to the end.
  const auto worth_it = [&](const Place& place) {
    const auto [end, at] = place;
    return at < prompt && at > cached && end >= cached + kNear &&
           std::ranges::none_of(
               stops, [&](uint32_t stop) { return stop > at ? stop - at < kNear : end - stop < kNear; });
  };
  for (const Place& place : places(request, reading, every)) {
    if (worth_it(place)) stops.push_back(place.stop);
  }
  std::ranges::sort(stops);
  return stops;
}

std::shared_ptr<Checkpoint> Keeper::save(SequenceState& state) {
  Result<std::unique_ptr<Checkpoint>> checkpoint = state.save();
  if (checkpoint) return *std::move(checkpoint);
  log_warn("a checkpoint of {} tokens could not be kept: {}", state.length(), checkpoint.error().text());
  return nullptr;
}

void Keeper::keep(SequenceState& state, std::span<const int32_t> tokens) {
  if (!enabled() || tokens.empty() || cache_.holds(tokens)) return;  // this thread alone changes the tree
  if (std::shared_ptr<Checkpoint> checkpoint = save(state)) keep(tokens, std::move(checkpoint));
}

void Keeper::keep(std::span<const int32_t> tokens, std::shared_ptr<Checkpoint> checkpoint) {
  if (cache_.holds(tokens)) return;
  {
    const std::lock_guard lock(mutex_);
    cache_.insert(tokens, checkpoint);
  }
  if (disk_ && tokens.size() >= kNear) disk_->keep(tokens, std::move(checkpoint));
  make_room();
}

void Keeper::note(std::span<const int32_t> tokens) {
  if (!enabled()) return;
  const std::lock_guard lock(mutex_);
  cache_.note(tokens);
}

void Keeper::computed(uint64_t tokens) {
  {
    const std::lock_guard lock(mutex_);
    cache_.advance(tokens);
  }
  if (disk_) disk_->advance(tokens);
  make_room();
}

// An empty state is made anew in a moment: it goes before anything that was read.
void Keeper::make_room() {
  while (enabled() && backend_.state_bytes() > budget_) {
    if (!idle_.empty()) {
      idle_.pop_back();
      continue;
    }
    std::shared_ptr<Checkpoint> dropped;
    {
      const std::lock_guard lock(mutex_);
      dropped = cache_.evict();
    }
    if (dropped == nullptr) return;
    if (disk_) disk_->let_go(*dropped);
    ++counts_.evictions;
  }
}

CacheMetrics Keeper::metrics() const {
  CacheMetrics metrics = counts_;
  metrics.checkpoints = static_cast<uint32_t>(cache_.size());
  metrics.bytes = backend_.state_bytes();
  return metrics;
}

std::optional<DiskMetrics> Keeper::disk_metrics() const {
  return disk_ ? std::optional(disk_->metrics()) : std::nullopt;
}

}  // namespace lily
