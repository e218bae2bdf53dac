// Byte-pair merging by rank: of all adjacent pairs that have a merge, the one of the lowest rank is merged
// first, the leftmost of equals, until none is left. Immutable once built.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace lily {

class Bpe {
 public:
  static constexpr uint32_t kMaxId = (1U << 21) - 2;  // ids and ranks share one 64-bit word
  static constexpr uint32_t kMaxMerges = 1U << 21;

  struct Merge {
    uint32_t left, right;  // ids of the two parts
    uint32_t result;       // id of the joined token
  };

  // Memory for one caller; keep it over many pieces. Grows to about 40 bytes per byte of the longest piece.
  struct Scratch {
    struct Part {
      uint32_t id;
      uint32_t before, after;  // neighbours
      uint32_t rank;           // of the pair that begins here
    };
    std::vector<Part> parts;
    // Pairs that can be merged, as rank << 32 | place: those of the ranks now being merged, sorted; a heap of
    // those of the same ranks that came up since; and all others, by range of ranks.
    std::vector<uint64_t> run, heap;
    std::vector<std::vector<uint64_t>> later;
  };

  // `bytes` are the ids of the 256 single bytes. Of equal pairs the last merge counts. Ids at most kMaxId,
  // at most kMaxMerges merges.
  Bpe(const std::array<uint32_t, 256>& bytes, const std::vector<Merge>& merges);

  // Appends the ids of `piece`, in O(n log n) for a long one. `piece` has less than 4 GiB.
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;

  static constexpr size_t kShort = 32;   // bytes up to which the lowest rank is found by scanning
  static constexpr size_t kLong = 4096;  // bytes from which pairs are kept apart by range of ranks

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t rank_of(uint32_t left, uint32_t right) const;
  void encode_short(std::string_view piece, std::vector<int32_t>& out) const;
  void encode_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;
  void begin_long(std::string_view piece, uint64_t limit, Scratch& scratch) const;
  void merge_below(uint64_t limit, Scratch& scratch) const;
  static void offer(uint32_t at, uint64_t limit, std::vector<uint64_t>& now, Scratch& scratch);
  void merge_at(uint32_t at, uint64_t limit, Scratch& scratch) const;

  std::array<uint32_t, 256> bytes_;
  std::vector<uint32_t> result_;     // by rank
  std::vector<uint32_t> byte_rank_;  // of two single bytes, [256 * left + right]
  std::vector<uint64_t> slots_;      // open addressing: left << 42 | right << 21 | rank; all ones = empty
  std::vector<uint64_t> filter_;     // bit per hash, small enough for the cache: most pairs have no merge
  uint64_t mask_ = 0, filter_mask_ = 0;
};

}  // namespace lily
