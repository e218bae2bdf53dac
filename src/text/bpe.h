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

  // Memory for one caller; keep it over many pieces. Grows to about 30 bytes per byte of the longest piece.
  struct Scratch {
    // Parts by the place of their first byte. A place inside a part has no id; the end of the piece is a part
    // without an id.
    std::vector<uint32_t> ids;
    std::vector<uint64_t> begins;  // bit per place: a part begins here. Neighbours are the next bits
    // Pairs that can be merged, named by rank and the place where they begin. Those of ranks that come in
    // order of rank and place (rank << 32 | place): sorted, and a heap of those that came up since.
    std::vector<uint64_t> run, heap;
    // The others: by rank within the range of ranks that is being merged, by range those of later ones.
    uint32_t range;
    std::array<std::vector<uint32_t>, 128> now;
    std::vector<std::vector<uint64_t>> later;
    std::vector<uint32_t> merged;  // places of the parts that the rank now being merged has made
  };

  // `bytes` are the ids of the 256 single bytes. Of equal pairs the last merge counts. Ids at most kMaxId,
  // at most kMaxMerges merges.
  Bpe(const std::array<uint32_t, 256>& bytes, const std::vector<Merge>& merges);

  // Appends the ids of `piece`, in time linear in its length but for a logarithm where ranks are out of
  // order. `piece` has less than 4 GiB.
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;

  static constexpr size_t kShort = 32;   // bytes up to which the lowest rank is found by scanning
  static constexpr size_t kLong = 4096;  // bytes from which all pairs of a rank are merged at once

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Offers;
  uint32_t rank_of(uint32_t left, uint32_t right) const;
  void encode_short(std::string_view piece, std::vector<int32_t>& out) const;
  void encode_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;
  void begin_long(std::string_view piece, bool by_range, Scratch& scratch) const;
  void merge_ordered(uint64_t limit, Scratch& scratch) const;
  void merge_range(Scratch& scratch) const;
  void merge_rank(uint32_t rank, Scratch& scratch) const;
  static bool merge_at(uint32_t at, const Merge& merge, Scratch& scratch);
  void note(uint32_t rank, uint32_t place, uint64_t limit, Scratch& scratch) const;
  void find(Offers& offers, uint64_t limit, Scratch& scratch) const;

  std::array<uint32_t, 256> bytes_;
  std::vector<Merge> merges_;        // by rank
  std::vector<bool> out_of_order_;   // by rank: its result is part of a merge of a lower rank, or of its own
  std::vector<uint32_t> byte_rank_;  // of two single bytes, [256 * left + right]
  std::vector<uint64_t> slots_;      // open addressing: left << 42 | right << 21 | rank; all ones = empty
  std::vector<uint64_t> filter_;     // bit per hash, small enough for the cache: most pairs have no merge
  uint64_t mask_ = 0, filter_mask_ = 0;
};

}  // namespace lily
