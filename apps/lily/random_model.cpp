#include "apps/lily/random_model.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "apps/lily/progress.h"
#include "apps/lily/say.h"

#if defined(__linux__)
#include <linux/magic.h>
#include <sys/vfs.h>
#endif

namespace lily::app {
namespace {

namespace fs = std::filesystem;

// config.json, tokenizer.json, headers, with room to spare.
constexpr uint64_t kSmallFiles = uint64_t{8} << 20;
constexpr uint64_t kLeftFree = uint64_t{1536} << 20;  // of memory: workspace, states and everybody else

bool is_memory_backed(const fs::path& folder) {
#if defined(__linux__)
  struct statfs status {};
  return ::statfs(folder.c_str(), &status) == 0 &&
         (status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC);
#else
  static_cast<void>(folder);
  return false;
#endif
}

uint64_t free_bytes(const fs::path& folder) {
  struct statvfs status {};
  return ::statvfs(folder.c_str(), &status) == 0 ? uint64_t{status.f_bavail} * status.f_frsize : 0;
}

// The number behind `name` in a file of the form "name   123 ...", in bytes if it is followed by kB.
uint64_t number_in(const char* path, const std::string& name, uint64_t otherwise) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) {
      const uint64_t value = std::strtoull(line.c_str() + name.size(), nullptr, 10);
      return line.ends_with(" kB") ? value * 1024 : value;
    }
  }
  return otherwise;
}

// Memory that can be had without pushing anything out: of the machine, and of the control group this runs in.
uint64_t available_memory() {
  const uint64_t machine = number_in("/proc/meminfo", "MemAvailable:", UINT64_MAX);
  const uint64_t most = number_in("/sys/fs/cgroup/memory.max", "", 0);  // "max" reads as 0: no bound
  const uint64_t used = number_in("/sys/fs/cgroup/memory.current", "", 0);
  return most == 0 ? machine : std::min(machine, most > used ? most - used : 0);
}

// A folder of its own that goes away with the object.
class TemporaryFolder {
 public:
  static Result<TemporaryFolder> create(const fs::path& parent) {
    std::string pattern = (parent / "lily-bench-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) {
      return fail_errno("cannot make the folder", pattern);
    }
    return TemporaryFolder(pattern);
  }
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder() {
    if (!path_.empty()) {
      std::error_code ignored;
      fs::remove_all(path_, ignored);
    }
  }
  const fs::path& path() const { return path_; }

 private:
  explicit TemporaryFolder(fs::path path) : path_(std::move(path)) {}
  fs::path path_;
};

// Where to make `need` bytes.
Result<fs::path> choose_folder(const fs::path& scratch, uint64_t need, const std::string& what) {
  if (!scratch.empty()) {
    if (const uint64_t room = free_bytes(scratch); room < need) {
      return fail(ErrorKind::limit, "{} take {:.2f} GB: '{}' has {:.2f} GB free", what, gigabytes(need),
                  scratch.string(), gigabytes(room));
    }
    return scratch;
  }
  std::string rooms;
  std::error_code ignored;
  for (const fs::path& folder : {fs::path("/dev/shm"), fs::temp_directory_path(ignored)}) {
    if (!is_memory_backed(folder)) {
      continue;
    }
    const uint64_t room = free_bytes(folder);
    const uint64_t memory = available_memory();
    if (room >= need && memory >= need + kLeftFree) {
      return folder;
    }
    rooms += fmt::format("'{}' has {:.2f} GB free and the machine {:.2f} GB of memory, ", folder.string(),
                         gigabytes(room), gigabytes(memory));
  }
  return fail(ErrorKind::limit,
              "{} take {:.2f} GB in memory-backed storage, and {:.2f} GB of memory must stay free: {}fewer "
              "--layers need less, and --scratch names a folder on a disk",
              what, gigabytes(need), gigabytes(kLeftFree),
              rooms.empty() ? "no such folder was found, " : rooms);
}

}  // namespace

Result<std::unique_ptr<WeightFile>> make_random_model(const SynthOptions& options, const fs::path& scratch) {
  const std::string what =
      fmt::format("random weights of {} layers of '{}'", options.shape.layers, options.shape.name);
  LILY_TRY(const fs::path parent, choose_folder(scratch, synth_bytes(options) + kSmallFiles, what));
  LILY_TRY(const TemporaryFolder folder, TemporaryFolder::create(parent));
  ProgressBar bar("making " + what);
  LILY_TRY_VOID(synthesise(folder.path() / "model", options, [&](uint64_t done, uint64_t total) {
    bar.update(static_cast<double>(done) / static_cast<double>(total));
  }));
  bar.finish();
  return WeightFile::open(folder.path() / "model", Ownership::disposable);
}

}  // namespace lily::app
