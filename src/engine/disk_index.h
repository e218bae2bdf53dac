// What the disk tier holds: stored checkpoints by their tokens, the files of rows that several of them share,
// and what must go when there is too much. Data in, data out: it touches no file. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "engine/prefix_tree.h"

namespace lily {

// Keys and values are stored in segments of so many tokens, each in a file that is named after all tokens up
// to its end and shared by every checkpoint that begins with them. What is left over at the end is in the
// checkpoint's own file.
inline constexpr uint32_t kSegmentTokens = 512;

struct StoredCheckpoint {
  Hash128 name;
  uint32_t length = 0;  // tokens
  uint64_t bytes = 0;   // of its own file
  std::vector<Hash128> segments;
};

// The names of a checkpoint of `tokens` and of its segments, for a store (model and layout) with this hash.
StoredCheckpoint name_checkpoint(const Hash128& store, std::span<const int32_t> tokens);
std::string checkpoint_file(const Hash128& name);
std::string rows_file(const Hash128& name);

class DiskIndex {
 public:
  using Match = PrefixTree<StoredCheckpoint>::Match;
  Match look(std::span<const int32_t> prompt) const { return tree_.look(prompt); }
  Match use(std::span<const int32_t> prompt) { return tree_.find(prompt); }
  const PrefixTree<StoredCheckpoint>& tree() const { return tree_; }
  void advance(uint64_t tokens) { tree_.advance(tokens); }

  // A segment is there as long as somebody holds it.
  bool hold(const Hash128& segment);                         // false: it is not there, or damaged
  void add_segment(const Hash128& segment, uint64_t bytes);  // one that is not there or damaged; holds it
  void damaged(const Hash128& segment);                      // its file must be written anew
  // Lets go of segments; gives the names of the files that nobody needs any more.
  std::vector<std::string> release(const std::vector<Hash128>& segments);

  // Adds a checkpoint whose segments are held, and takes over the holding.
  void add(std::span<const int32_t> tokens, std::shared_ptr<StoredCheckpoint> stored);
  // Takes a checkpoint out; gives the files to remove.
  std::vector<std::string> remove(std::span<const int32_t> tokens, const StoredCheckpoint& stored);
  // Takes out what is worth least until all files are within `limit`; gives the files to remove.
  std::vector<std::string> make_room(uint64_t limit);

  bool holds(std::span<const int32_t> tokens) const { return tree_.holds(tokens); }
  uint64_t bytes() const { return bytes_; }
  size_t size() const { return tree_.size(); }
  uint64_t evictions() const { return evictions_; }

 private:
  struct Segment {
    uint64_t bytes = 0;
    uint32_t holders = 0;
    bool damaged = false;
  };
  std::vector<std::string> files_of(const StoredCheckpoint& stored);

  PrefixTree<StoredCheckpoint> tree_;
  std::map<Hash128, Segment> segments_;
  uint64_t bytes_ = 0;  // of all files
  uint64_t evictions_ = 0;
};

}  // namespace lily
