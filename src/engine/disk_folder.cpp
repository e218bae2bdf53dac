#include "engine/disk_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <thread>

#include "base/log.h"
#include "base/size_text.h"

namespace lily {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLock = "lock";

// By which the ages of checkpoints found at the start differ, in tokens computed.
constexpr uint64_t kAge = 1024;

}  // namespace

bool is_disk_file(const fs::path& path) {
  return path.extension() == ".checkpoint" || path.extension() == ".rows";
}

// What lies in the folder at the start.
struct DiskFolder::Found {
  struct Stored {
    fs::file_time_type used;
    std::vector<int32_t> tokens;
    std::shared_ptr<StoredCheckpoint> stored;
  };
  std::vector<Stored> checkpoints;
  std::map<Hash128, uint64_t> rows;  // bytes of their files
  size_t unfinished = 0;
};

DiskFolder::DiskFolder(const fs::path& parent, const Hash128& store)
    : store_(store), path_(parent / store.hex()) {}

Result<void> DiskFolder::lock(std::chrono::milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  const fs::path path = path_ / kLock;
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (file.get() < 0) return fail_errno("cannot open", path.string());
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return fail_errno("cannot lock", path.string());
    if (std::chrono::steady_clock::now() >= until) {
      return fail(ErrorKind::io, "'{}' is in use by another process: expected a folder for each",
                  path_.string());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  lock_ = std::move(file);
  return {};
}

bool DiskFolder::wanted(const DiskHead& head, const fs::path& path) const {
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

Result<void> DiskFolder::look_at(const fs::path& path, Found& found) const {
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

Result<void> DiskFolder::read(DiskIndex& index) {
  Found found;
  std::error_code error;
  for (fs::directory_iterator entry(path_, error), end; !error && entry != end; entry.increment(error)) {
    const fs::path& path = entry->path();
    const fs::path extension = path.extension();
    if (path.filename() == kLock) continue;
    if (extension == DiskWriter::kUnfinished && is_disk_file(path.stem())) {
      // A process that ended while it wrote it, and that held the lock that this one holds now.
      ++found.unfinished;
      ::unlink(path.c_str());
    } else if (!is_disk_file(path)) {
      log_warn("'{}' is no file of lily's: ignored", path.string());
    } else if (Result<void> read = look_at(path, found); !read) {
      log_warn("{}: ignored", read.error().text());
    }
  }
  if (error) return fail(ErrorKind::io, "cannot read the folder '{}': {}", path_.string(), error.message());
  take_in(found, index);
  return {};
}

void DiskFolder::take_in(Found& found, DiskIndex& index) {
  std::ranges::sort(found.checkpoints, {}, &Found::Stored::used);
  std::set<Hash128> held;
  for (Found::Stored& one : found.checkpoints) {
    const std::vector<Hash128>& segments = one.stored->segments;
    const auto lacks =
        std::ranges::find_if(segments, [&](const Hash128& segment) { return !found.rows.contains(segment); });
    if (lacks != segments.end()) {
      log_warn("'{}' lacks '{}': removed", (path_ / checkpoint_file(one.stored->name)).string(),
               rows_file(*lacks));
      remove({checkpoint_file(one.stored->name)});
      continue;
    }
    for (const Hash128& segment : segments) {
      if (!index.hold(segment)) index.add_segment(segment, found.rows.at(segment));
      held.insert(segment);
    }
    index.add(one.tokens, std::move(one.stored));
    index.advance(kAge);
  }
  for (const auto& [name, bytes] : found.rows) {  // nobody's: a crash
    if (held.contains(name)) continue;
    remove({rows_file(name)});
    ++found.unfinished;
  }
  if (found.unfinished > 0) log_info("{}: removed what a crash had left", path_.string());
}

// Where one cannot be removed, the next cannot either.
void DiskFolder::remove(const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    const fs::path path = path_ / file;
    if (::unlink(path.c_str()) == 0 || errno == ENOENT) {
      removals_fail_ = false;
    } else if (!std::exchange(removals_fail_, true)) {
      log_warn("{}: what stays takes room beyond the limit",
               fail_errno("cannot remove", path.string()).value().text());
    }
  }
}

DiskNeighbours::DiskNeighbours(const fs::path& parent, const Hash128& own) {
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    const std::optional<Hash128> store = hash_from_hex(entry->path().filename().string());
    std::error_code ignored;
    if (!store || *store == own || !entry->is_directory(ignored)) continue;
    Neighbour found{.folder = DiskFolder(parent, *store), .bytes = 0, .used = fs::file_time_type::min()};
    if (!found.folder.lock()) continue;
    found.folder.unlock();
    for (fs::directory_iterator file(entry->path(), ignored), last; !ignored && file != last;
         file.increment(ignored)) {
      std::error_code gone;
      if (!is_disk_file(file->path()) || !file->is_regular_file(gone)) continue;
      found.bytes += fs::file_size(file->path(), gone);
      found.used = std::max(found.used, fs::last_write_time(file->path(), gone));
    }
    if (found.bytes > 0) all_.push_back(std::move(found));
  }
  std::ranges::sort(all_, {}, &Neighbour::used);
}

uint64_t DiskNeighbours::bytes() const {
  uint64_t sum = 0;
  for (const Neighbour& one : all_) sum += one.bytes;
  return sum;
}

// Read anew each time: its own process may have been there meanwhile.
void DiskNeighbours::free(uint64_t bytes) {
  while (bytes > 0 && !all_.empty()) {
    Neighbour& oldest = all_.front();
    DiskIndex index;
    const Result<void> read = oldest.folder.lock().and_then([&] { return oldest.folder.read(index); });
    const uint64_t there = index.bytes();
    oldest.folder.remove(index.make_room(there - std::min(there, bytes)));
    oldest.folder.unlock();
    const uint64_t freed = there - index.bytes();
    log_info("{}: {} of another model or layout removed, {} are left", oldest.folder.path().string(),
             size_text(freed), size_text(index.bytes()));
    bytes -= std::min(bytes, freed);
    oldest.bytes = index.bytes();
    if (!read || oldest.bytes == 0) all_.erase(all_.begin());
  }
}

}  // namespace lily
