#include "engine/disk_store.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/log.h"
#include "base/size_text.h"

namespace lily {
namespace {

namespace fs = std::filesystem;

// What another process does in the folder of a store that is not its own is over in a moment.
constexpr auto kPatience = std::chrono::milliseconds(500);
// Of neighbours so much more than is needed is removed, in parts of the limit: they need not be read each
// time.
constexpr uint64_t kSpare = 32;

Hash128 store_hash(const Hash128& model, const std::string& layout) {
  Hasher hasher;
  hasher.update(std::as_bytes(std::span(&model, 1)));
  hasher.update(layout);
  return hasher.digest();
}

// The threads of the store outlive every fault: what an exception says is the failure of one checkpoint.
template <class F>
auto guarded(F&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    return fail(ErrorKind::internal, "{}", error.what());
  }
}

// The parts of a stored checkpoint in the order in which it is read, each verified as it ends.
class PartsSource final : public ByteSource {
 public:
  void add(DiskReader part) { parts_.push_back(std::move(part)); }
  Result<void> read(std::span<std::byte> into) override {
    while (!into.empty()) {
      if (at_ == parts_.size()) return fail(ErrorKind::invalid_input, "a stored checkpoint ends early");
      const size_t part = std::min<size_t>(into.size(), parts_[at_].left());
      LILY_TRY_VOID(parts_[at_].read(into.first(part)));
      into = into.subspan(part);
      if (parts_[at_].left() == 0) LILY_TRY_VOID(end_part());
    }
    return {};
  }
  Result<void> finish() {
    while (at_ < parts_.size()) LILY_TRY_VOID(end_part());
    return {};
  }

 private:
  Result<void> end_part() {
    LILY_TRY_VOID(parts_[at_].finish());
    ++at_;
    return {};
  }
  std::vector<DiskReader> parts_;
  size_t at_ = 0;
};

}  // namespace

DiskStore::DiskStore(const DiskOptions& options, Backend& backend, const std::string& reading)
    : options_(options),
      backend_(backend),
      store_(store_hash(options.model, backend.checkpoint_layout() + reading)),
      folder_(options.folder, store_),
      neighbours_(options.folder, store_) {}

Result<std::unique_ptr<DiskStore>> DiskStore::open(const DiskOptions& options, Backend& backend,
                                                   const std::string& reading) {
  if (backend.checkpoint_layout().empty()) {
    return fail(ErrorKind::unsupported, "conversations of the device '{}' cannot be kept on disk",
                backend.device().name);
  }
  std::unique_ptr<DiskStore> store(new DiskStore(options, backend, reading));
  std::error_code error;
  const std::string path = store->folder_.path().string();
  fs::create_directories(store->folder_.path(), error);
  if (error) {
    return fail(ErrorKind::io, "cannot make the folder '{}': {}", path, error.message());
  }
  LILY_TRY_VOID(store->folder_.lock(kPatience));
  LILY_TRY_VOID(store->folder_.read(store->index_));
  store->folder_.remove(store->make_room());
  const uint64_t others = store->neighbours_.bytes();
  log_info("{}: {} checkpoints, {} of {}{}", path, store->index_.size(), size_text(store->index_.bytes()),
           size_text(options.max_bytes),
           others > 0 ? fmt::format("; {} of other models or layouts beside it", size_text(others)) : "");
  store->writer_ = std::thread([self = store.get()] { self->write_all(); });
  store->reader_ = std::thread([self = store.get()] { self->read_all(); });
  return store;
}

DiskStore::~DiskStore() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (writer_.joinable()) writer_.join();
  if (reader_.joinable()) reader_.join();
}

void DiskStore::keep(std::span<const int32_t> tokens, std::shared_ptr<const Checkpoint> checkpoint) {
  Waiting dropped;  // goes after the lock
  {
    const std::lock_guard lock(mutex_);
    if (index_.holds(tokens)) return;
    if (checkpoint->bytes() > options_.max_bytes) {
      ++counts_.skipped;
      return;
    }
    if (waiting_.size() == kMostWaiting) {
      ++counts_.skipped;
      const auto shortest =
          std::ranges::min_element(waiting_, {}, [](const Waiting& item) { return item.tokens.size(); });
      if (shortest->tokens.size() > tokens.size()) return;
      dropped = std::move(*shortest);
      waiting_.erase(shortest);
    }
    waiting_.push_back({{tokens.begin(), tokens.end()}, std::move(checkpoint)});
  }
  changed_.notify_all();
}

void DiskStore::let_go(const Checkpoint& checkpoint) {
  Waiting dropped;
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(
      waiting_, [&](const Waiting& item) { return item.checkpoint.get() == &checkpoint; });
  if (found == waiting_.end()) return;
  dropped = std::move(*found);
  waiting_.erase(found);
  ++counts_.skipped;
}

void DiskStore::write_all() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !waiting_.empty() || !garbage_.empty(); });
    const std::vector<std::string> garbage = std::exchange(garbage_, {});
    if (waiting_.empty() && garbage.empty()) return;
    Waiting item;
    if (!waiting_.empty()) {
      item = std::move(waiting_.front());
      waiting_.pop_front();
    }
    lock.unlock();
    folder_.remove(garbage);
    Result<void> written;
    if (item.checkpoint != nullptr) {
      written = guarded([&] { return write(item); });
      tell(written);
    }
    item = {};
    lock.lock();
    counts_.failed += written ? 0 : 1;
    changed_.notify_all();
  }
}

// A full disk is full for the next one too.
void DiskStore::tell(const Result<void>& written) {
  if (!written && writes_failed_++ == 0) {
    log_warn("a conversation could not be kept on disk: {}", written.error().text());
  } else if (written && std::exchange(writes_failed_, 0) > 0) {
    log_info("conversations are kept on disk again");
  }
}

Result<void> DiskStore::write_segments(const Waiting& item, StoredCheckpoint& stored,
                                       std::vector<Hash128>& held) {
  for (size_t i = 0; i < stored.segments.size(); ++i) {
    const Hash128& name = stored.segments[i];
    {
      const std::lock_guard lock(mutex_);
      if (index_.hold(name)) {
        held.push_back(name);
        continue;
      }
    }
    const auto begin = static_cast<uint32_t>(i) * kSegmentTokens;
    LILY_TRY(DiskWriter file, DiskWriter::create(folder_ / rows_file(name), {.kind = DiskKind::rows,
                                                                             .store = store_,
                                                                             .prefix = name,
                                                                             .begin = begin,
                                                                             .end = begin + kSegmentTokens,
                                                                             .ids = {}}));
    LILY_TRY_VOID(item.checkpoint->write_rows(begin, begin + kSegmentTokens, file));
    LILY_TRY_VOID(file.finish());
    const std::lock_guard lock(mutex_);
    std::erase(garbage_, rows_file(name));  // the damaged one that this has replaced
    index_.add_segment(name, file.bytes());
    held.push_back(name);
  }
  return {};
}

// Rows first: a checkpoint that is there is whole.
Result<void> DiskStore::write(const Waiting& item) {
  auto stored = std::make_shared<StoredCheckpoint>(name_checkpoint(store_, item.tokens));
  {
    const std::lock_guard lock(mutex_);
    if (index_.holds(item.tokens)) return {};
  }
  std::vector<Hash128> held;
  const auto own = [&]() -> Result<void> {
    LILY_TRY_VOID(write_segments(item, *stored, held));
    const auto begin = static_cast<uint32_t>(stored->segments.size()) * kSegmentTokens;
    LILY_TRY(DiskWriter file,
             DiskWriter::create(folder_ / checkpoint_file(stored->name), {.kind = DiskKind::checkpoint,
                                                                          .store = store_,
                                                                          .prefix = stored->name,
                                                                          .begin = begin,
                                                                          .end = stored->length,
                                                                          .ids = item.tokens}));
    LILY_TRY_VOID(item.checkpoint->write_rows(begin, stored->length, file));
    LILY_TRY_VOID(item.checkpoint->write_rest(file));
    LILY_TRY_VOID(file.finish());
    stored->bytes = file.bytes();
    return flush_folder(folder_.path());
  };
  Result<void> written = own();
  std::vector<std::string> gone;
  {
    const std::lock_guard lock(mutex_);
    if (written) {
      std::erase(garbage_, checkpoint_file(stored->name));
      index_.add(item.tokens, std::move(stored));
      ++counts_.written;
    } else {
      gone = index_.release(held);
    }
  }
  folder_.remove(written ? make_room() : gone);
  return written;
}

// What is beside goes first: what is served now is what is wanted now.
std::vector<std::string> DiskStore::make_room() {
  std::unique_lock lock(mutex_);
  const uint64_t most = options_.max_bytes;
  const uint64_t own = index_.bytes();
  lock.unlock();
  if (const uint64_t beside = neighbours_.bytes(); beside > 0 && own + beside > most) {
    neighbours_.free(own + beside - most + most / kSpare);
  }
  lock.lock();
  return index_.make_room(most - std::min(most, neighbours_.bytes()));
}

std::shared_ptr<DiskStore::Fetch> DiskStore::fetch(std::span<const int32_t> prompt, uint32_t longer_than,
                                                   std::shared_ptr<const Checkpoint> base,
                                                   std::function<void()> told) {
  auto fetch = std::make_shared<Fetch>();
  {
    const std::lock_guard lock(mutex_);
    const DiskIndex::Match match = index_.use(prompt);
    if (stop_ || match.kept == nullptr || match.length <= longer_than) return nullptr;
    std::erase_if(under_way_, [](const std::weak_ptr<Fetch>& one) { return one.expired(); });
    for (const std::weak_ptr<Fetch>& one : under_way_) {
      std::shared_ptr<Fetch> other = one.lock();
      if (other != nullptr && other->stored == match.kept) return other;  // several prompts wait for it
    }
    const auto tokens = prompt.first(match.length);
    fetch->tokens.assign(tokens.begin(), tokens.end());
    fetch->stored = match.kept;
    fetch->base = std::move(base);
    fetch->told = std::move(told);
    fetches_.push_back(fetch);
    under_way_.push_back(fetch);
  }
  changed_.notify_all();
  return fetch;
}

void DiskStore::read_all() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !fetches_.empty(); });
    if (stop_) return;
    const std::shared_ptr<Fetch> fetch = std::move(fetches_.front());
    fetches_.pop_front();
    lock.unlock();
    Result<std::shared_ptr<Checkpoint>> checkpoint = guarded([&] { return read(*fetch); });
    if (!checkpoint) fetch->damaged = damaged_rows(*fetch->stored);
    lock.lock();
    if (checkpoint) {
      ++counts_.read;
      fetch->checkpoint = *std::move(checkpoint);
    } else if (index_.holds(fetch->tokens)) {  // otherwise it was removed meanwhile
      log_warn("a conversation of {} tokens is read anew: {}; removed", fetch->stored->length,
               checkpoint.error().text());
      ++counts_.failed;
      for (const Hash128& rows : fetch->damaged) index_.damaged(rows);
      for (std::string& file : index_.remove(fetch->tokens, *fetch->stored))
        garbage_.push_back(std::move(file));
      changed_.notify_all();
    }
    fetch->base.reset();
    fetch->done = true;
    fetch->told();
  }
}

Result<DiskReader> DiskStore::open_rows(const StoredCheckpoint& stored, size_t segment) const {
  const fs::path path = folder_ / rows_file(stored.segments[segment]);
  LILY_TRY(DiskReader part, DiskReader::open(path));
  const auto begin = static_cast<uint32_t>(segment) * kSegmentTokens;
  const DiskHead expected{DiskKind::rows,         store_, stored.segments[segment], begin,
                          begin + kSegmentTokens, {}};
  if (part.head() != expected) return fail(ErrorKind::invalid_input, "'{}' holds other rows", path.string());
  return part;
}

// Other checkpoints share them: every one that is damaged must be written anew.
std::vector<Hash128> DiskStore::damaged_rows(const StoredCheckpoint& stored) const {
  std::vector<Hash128> damaged;
  for (size_t i = 0; i < stored.segments.size(); ++i) {
    Result<DiskReader> part = open_rows(stored, i);
    if (!part || !part->verify()) damaged.push_back(stored.segments[i]);
  }
  return damaged;
}

Result<std::shared_ptr<Checkpoint>> DiskStore::read(const Fetch& fetch) {
  const StoredCheckpoint& stored = *fetch.stored;
  StoredForm form{.length = stored.length, .shared = 0, .base = fetch.base.get()};
  if (form.base != nullptr) form.shared = form.base->length() / kSegmentTokens * kSegmentTokens;
  PartsSource source;
  for (size_t i = form.shared / kSegmentTokens; i < stored.segments.size(); ++i) {
    LILY_TRY(DiskReader part, open_rows(stored, i));
    source.add(std::move(part));
  }
  const fs::path path = folder_ / checkpoint_file(stored.name);
  LILY_TRY(DiskReader part, DiskReader::open(path));
  if (part.head().store != store_ || part.head().ids != fetch.tokens) {
    return fail(ErrorKind::invalid_input, "'{}' holds another conversation", path.string());
  }
  source.add(std::move(part));
  LILY_TRY(std::unique_ptr<Checkpoint> checkpoint, backend_.read_checkpoint(form, source));
  LILY_TRY_VOID(source.finish());
  ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // its last use, for the next start
  return std::shared_ptr<Checkpoint>(std::move(checkpoint));
}

DiskIndex::Match DiskStore::look(std::span<const int32_t> prompt) const {
  const std::lock_guard lock(mutex_);
  return index_.look(prompt);
}

std::vector<std::vector<int32_t>> DiskStore::continuations(std::span<const int32_t> prefix, int32_t end,
                                                           size_t most) const {
  const std::lock_guard lock(mutex_);
  return index_.tree().continuations(prefix, end, most);
}

void DiskStore::advance(uint64_t tokens) {
  const std::lock_guard lock(mutex_);
  index_.advance(tokens);
}

DiskMetrics DiskStore::metrics() const {
  const std::lock_guard lock(mutex_);
  DiskMetrics metrics = counts_;
  metrics.checkpoints = static_cast<uint32_t>(index_.size());
  metrics.bytes = index_.bytes();
  metrics.evictions = index_.evictions();
  return metrics;
}

}  // namespace lily
