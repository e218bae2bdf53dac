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
    struct Pending {
      uint32_t at;
      uint32_t next;  // in the list of its rank
    };
    std::vector<Part> parts;
    std::vector<Pending> pending;
    std::vector<uint32_t> head;  // by rank: first of its list
    std::vector<uint64_t> occupied,
        occupied2;  // a bit per rank whose list is not empty; a bit per word of it
    std::vector<uint32_t> sorted;
    std::vector<uint64_t> early;  // heap of pairs that must not wait for their list
  };

  // `bytes` are the ids of the 256 single bytes. Of equal pairs the last merge counts. Ids at most kMaxId,
  // at most kMaxMerges merges.
  Bpe(const std::array<uint32_t, 256>& bytes, const std::vector<Merge>& merges);

  // Appends the ids of `piece`. Short pieces are merged by scanning, long ones in time linear in their length
  // but for sorting the places where one pair occurs.
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;

  static constexpr size_t kShort = 32;  // bytes up to which scanning is used

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t rank_of(uint32_t left, uint32_t right) const;
  void encode_short(std::string_view piece, std::vector<int32_t>& out) const;
  void encode_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;
  void begin_long(std::string_view piece, Scratch& scratch) const;
  void merge_rank(uint32_t rank, Scratch& scratch) const;
  void offer(uint32_t at, uint32_t current, Scratch& scratch) const;
  void merge_at(uint32_t at, uint32_t current, Scratch& scratch) const;

  std::array<uint32_t, 256> bytes_;
  std::vector<uint32_t> result_;     // by rank
  std::vector<uint32_t> byte_rank_;  // of two single bytes, [256 * left + right]
  std::vector<uint64_t> slots_;      // open addressing: left << 42 | right << 21 | rank; all ones = empty
  std::vector<uint64_t> filter_;     // bit per hash, small enough for the cache: most pairs have no merge
  uint64_t mask_ = 0, filter_mask_ = 0;
};

}  // namespace lily
