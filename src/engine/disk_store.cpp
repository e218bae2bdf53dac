#include "engine/disk_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "base/log.h"
#include "base/size_text.h"

namespace lily {
namespace {

namespace fs = std::filesystem;

// By which the ages of checkpoints found at the start differ, in tokens computed.
constexpr uint64_t kAge = 1024;

Hash128 store_hash(const Hash128& model, const std::string& layout) {
  Hasher hasher;
  hasher.update(std::as_bytes(std::span(&model, 1)));
  hasher.update(layout);
  return hasher.digest();
}

bool is_ours(const fs::path& path) {
  return path.extension() == ".checkpoint" || path.extension() == ".rows";
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

// What lies in the folder at the start.
struct DiskStore::Found {
  struct Stored {
    fs::file_time_type used;
    std::vector<int32_t> tokens;
    std::shared_ptr<StoredCheckpoint> stored;
  };
  std::vector<Stored> checkpoints;
  std::map<Hash128, uint64_t> rows;  // bytes of their files
  size_t unfinished = 0;
};

DiskStore::DiskStore(const DiskOptions& options, Backend& backend)
    : options_(options),
      backend_(backend),
      store_(store_hash(options.model, backend.checkpoint_layout())),
      folder_(options.folder / store_.hex()),
      index_(options.max_bytes) {}

Result<std::unique_ptr<DiskStore>> DiskStore::open(const DiskOptions& options, Backend& backend) {
  if (backend.checkpoint_layout().empty()) {
    return fail(ErrorKind::unsupported, "conversations of the device '{}' cannot be kept on disk",
                backend.device().name);
  }
  std::unique_ptr<DiskStore> store(new DiskStore(options, backend));
  std::error_code error;
  fs::create_directories(store->folder_, error);
  if (error) {
    return fail(ErrorKind::io, "cannot make the folder '{}': {}", store->folder_.string(), error.message());
  }
  LILY_TRY_VOID(store->lock_folder());
  LILY_TRY_VOID(store->scan());
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

Result<void> DiskStore::lock_folder() {
  const fs::path path = folder_ / "lock";
  lock_ = Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock_.get() < 0) return fail_errno("cannot open", path.string());
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) return {};
  if (errno != EWOULDBLOCK) return fail_errno("cannot lock", path.string());
  return fail(ErrorKind::io, "'{}' is in use by another process: expected a folder for each",
              folder_.string());
}

bool DiskStore::wanted(const DiskHead& head, const fs::path& path) const {
  const bool rows = head.kind == DiskKind::rows;
  const std::string name = rows ? rows_file(head.prefix) : checkpoint_file(head.prefix);
  if (head.store != store_) {
    log_warn("'{}' is of another model or device: ignored", path.string());
  } else if (path.filename() != name) {
    log_warn("'{}' has the name of another file: expected '{}'; ignored", path.string(), name);
  } else {
    return true;
  }
  return false;
}

Result<void> DiskStore::look_at(const fs::path& path, Found& found) const {
  LILY_TRY(const DiskReader reader, DiskReader::open(path));
  const DiskHead& head = reader.head();
  if (!wanted(head, path)) return {};
  if (head.kind == DiskKind::rows) {
    found.rows[head.prefix] = reader.bytes();
    return {};
  }
  auto stored = std::make_shared<StoredCheckpoint>(name_checkpoint(store_, head.ids));
  if (stored->name != head.prefix || head.ids.empty()) {
    return fail(ErrorKind::invalid_input, "'{}' is damaged: its tokens are not those of its name",
                path.string());
  }
  stored->bytes = reader.bytes();
  std::error_code ignored;
  found.checkpoints.push_back({fs::last_write_time(path, ignored), head.ids, std::move(stored)});
  return {};
}

Result<void> DiskStore::scan() {
  Found found;
  std::error_code error;
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
    const fs::path& path = entry->path();
    const fs::path extension = path.extension();
    if (path.filename() == "lock") continue;
    if (extension == DiskWriter::kUnfinished && is_ours(path.stem())) {
      // A process that ended while it wrote it, and that held the lock that this one holds now.
      ++found.unfinished;
      ::unlink(path.c_str());
    } else if (!is_ours(path)) {
      log_warn("'{}' is no file of lily's: ignored", path.string());
    } else if (Result<void> read = look_at(path, found); !read) {
      log_warn("{}: ignored", read.error().text());
    }
  }
  if (error) return fail(ErrorKind::io, "cannot read the folder '{}': {}", folder_.string(), error.message());
  take_in(found);
  return {};
}

void DiskStore::take_in(Found& found) {
  std::ranges::sort(found.checkpoints, {}, &Found::Stored::used);
  std::set<Hash128> held;
  for (Found::Stored& one : found.checkpoints) {
    const std::vector<Hash128>& segments = one.stored->segments;
    const auto lacks =
        std::ranges::find_if(segments, [&](const Hash128& segment) { return !found.rows.contains(segment); });
    if (lacks != segments.end()) {
      log_warn("'{}' lacks '{}': removed", (folder_ / checkpoint_file(one.stored->name)).string(),
               rows_file(*lacks));
      remove_files({checkpoint_file(one.stored->name)});
      continue;
    }
    for (const Hash128& segment : segments) {
      if (!index_.hold(segment)) index_.add_segment(segment, found.rows.at(segment));
      held.insert(segment);
    }
    index_.add(one.tokens, std::move(one.stored));
    index_.advance(kAge);
  }
  for (const auto& [name, bytes] : found.rows) {  // nobody's: a crash
    if (held.contains(name)) continue;
    remove_files({rows_file(name)});
    ++found.unfinished;
  }
  remove_files(index_.make_room());
  log_info("{}: {} checkpoints, {} of {}{}", folder_.string(), index_.size(), size_text(index_.bytes()),
           size_text(index_.max_bytes()),
           found.unfinished > 0 ? "; removed what a crash had left" : "");
}

// Where one cannot be removed, the next cannot either.
void DiskStore::remove_files(const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    const fs::path path = folder_ / file;
    if (::unlink(path.c_str()) == 0 || errno == ENOENT) {
      removals_fail_ = false;
    } else if (!std::exchange(removals_fail_, true)) {
      log_warn("{}: what stays takes room beyond the limit",
               fail_errno("cannot remove", path.string()).value().text());
    }
  }
}

void DiskStore::keep(std::span<const int32_t> tokens, std::shared_ptr<const Checkpoint> checkpoint) {
  Waiting dropped;  // goes after the lock
  {
    const std::lock_guard lock(mutex_);
    if (index_.holds(tokens)) return;
    if (checkpoint->bytes() > index_.max_bytes()) {
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
    remove_files(garbage);
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
    return flush_folder(folder_);
  };
  Result<void> written = own();
  std::vector<std::string> gone;
  {
    const std::lock_guard lock(mutex_);
    if (written) {
      std::erase(garbage_, checkpoint_file(stored->name));
      index_.add(item.tokens, std::move(stored));
      ++counts_.written;
      gone = index_.make_room();
    } else {
      gone = index_.release(held);
    }
  }
  remove_files(gone);
  return written;
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
