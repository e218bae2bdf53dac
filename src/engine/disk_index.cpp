#include "engine/disk_index.h"

#include "base/check.h"

namespace lily {

StoredCheckpoint name_checkpoint(const Hash128& store, std::span<const int32_t> tokens) {
  StoredCheckpoint stored;
  stored.length = static_cast<uint32_t>(tokens.size());
  Hasher hasher;
  hasher.update(std::as_bytes(std::span(&store, 1)));
  size_t done = 0;
  for (; done + kSegmentTokens <= tokens.size(); done += kSegmentTokens) {
    hasher.update(std::as_bytes(tokens.subspan(done, kSegmentTokens)));
    stored.segments.push_back(hasher.digest());
  }
  hasher.update(std::as_bytes(tokens.subspan(done)));
  stored.name = hasher.digest();
  return stored;
}

std::string checkpoint_file(const Hash128& name) { return name.hex() + ".checkpoint"; }
std::string rows_file(const Hash128& name) { return name.hex() + ".rows"; }

bool DiskIndex::hold(const Hash128& segment) {
  const auto found = segments_.find(segment);
  if (found == segments_.end() || found->second.damaged) return false;
  ++found->second.holders;
  return true;
}

void DiskIndex::add_segment(const Hash128& segment, uint64_t bytes) {
  Segment& added = segments_[segment];
  LILY_CHECK(added.holders == 0 || added.damaged);
  bytes_ += bytes - added.bytes;
  added = {.bytes = bytes, .holders = added.holders + 1, .damaged = false};
}

void DiskIndex::damaged(const Hash128& segment) {
  if (const auto found = segments_.find(segment); found != segments_.end()) found->second.damaged = true;
}

std::vector<std::string> DiskIndex::release(const std::vector<Hash128>& segments) {
  std::vector<std::string> files;
  for (const Hash128& name : segments) {
    const auto found = segments_.find(name);
    LILY_CHECK(found != segments_.end() && found->second.holders > 0);
    if (--found->second.holders > 0) continue;
    bytes_ -= found->second.bytes;
    segments_.erase(found);
    files.push_back(rows_file(name));
  }
  return files;
}

void DiskIndex::add(std::span<const int32_t> tokens, std::shared_ptr<StoredCheckpoint> stored) {
  bytes_ += stored->bytes;
  tree_.insert(tokens, std::move(stored));
}

// The checkpoint first: one without its rows would be a damaged one after a crash.
std::vector<std::string> DiskIndex::files_of(const StoredCheckpoint& stored) {
  std::vector<std::string> files{checkpoint_file(stored.name)};
  bytes_ -= stored.bytes;
  for (std::string& file : release(stored.segments)) files.push_back(std::move(file));
  return files;
}

std::vector<std::string> DiskIndex::remove(std::span<const int32_t> tokens, const StoredCheckpoint& stored) {
  if (!tree_.holds(tokens)) return {};
  tree_.erase(tokens);
  return files_of(stored);
}

std::vector<std::string> DiskIndex::make_room(uint64_t limit) {
  std::vector<std::string> files;
  while (bytes_ > limit) {
    const std::shared_ptr<StoredCheckpoint> dropped = tree_.evict();
    if (dropped == nullptr) break;
    ++evictions_;
    for (std::string& file : files_of(*dropped)) files.push_back(std::move(file));
  }
  return files;
}

}  // namespace lily
