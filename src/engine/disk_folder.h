// The folder of one store (model and layout of states) in the disk tier: its lock, what lies in it at a
// start, and the removal of files. It keeps no index: whoever opens it has one filled.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/disk_file.h"
#include "engine/disk_index.h"

namespace lily {

// Files that lily writes.
bool is_disk_file(const std::filesystem::path& path);

class DiskFolder {
 public:
  // In `parent`, named after the store.
  DiskFolder(const std::filesystem::path& parent, const Hash128& store);

  const std::filesystem::path& path() const { return path_; }
  const Hash128& store() const { return store_; }
  std::filesystem::path operator/(const std::string& file) const { return path_ / file; }

  // Takes it for as long as this object lives or until unlock(). Fails where another process has it all the
  // time.
  Result<void> lock(std::chrono::milliseconds patience = {});
  void unlock() { lock_ = Descriptor(); }
  // Fills `index` with what is there, once it is locked. What a crash has left is removed; files that are not
  // what they should be are named in the log and left alone.
  Result<void> read(DiskIndex& index);
  // What cannot be removed is said once until one can be again.
  void remove(const std::vector<std::string>& files);

 private:
  struct Found;
  Result<void> look_at(const std::filesystem::path& path, Found& found) const;
  bool wanted(const DiskHead& head, const std::filesystem::path& path) const;
  void take_in(Found& found, DiskIndex& index);

  Hash128 store_;
  std::filesystem::path path_;
  Descriptor lock_;
  bool removals_fail_ = false;
};

// The folders of other stores beside one: those of other models, devices, and earlier layouts.
class DiskNeighbours {
 public:
  // Looks once. What another process has locked is that one's affair: it is neither counted nor touched.
  DiskNeighbours(const std::filesystem::path& parent, const Hash128& own);
  uint64_t bytes() const;  // of their files
  // Removes checkpoints until `bytes` are free or nothing is left: from the folder that was used longest ago
  // first, in it what is worth least.
  void free(uint64_t bytes);

 private:
  struct Neighbour {
    DiskFolder folder;
    uint64_t bytes = 0;
    std::filesystem::file_time_type used;
  };
  std::vector<Neighbour> all_;  // used longest ago first
};

}  // namespace lily
