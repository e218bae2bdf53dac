#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace lily {

namespace {

constexpr uint64_t kEmpty = UINT64_MAX;

// Ranges of ranks that are merged at a time: one rank each for the first, which are the most frequent (and
// keep runs of one character out of the heap), 128 each for the rest.
constexpr uint32_t kSingle = 4096;
constexpr int kRangeBits = 7;

size_t range_of(uint64_t rank) { return rank < kSingle ? rank : kSingle + ((rank - kSingle) >> kRangeBits); }
uint64_t end_of_range(size_t range) {
  return range < kSingle ? range + 1 : kSingle + ((range - kSingle + 1) << kRangeBits);
}

uint64_t spread(uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15U;
  return pair ^ pair >> 32;
}

}  // namespace

Bpe::Bpe(const std::array<uint32_t, 256>& bytes, const std::vector<Merge>& merges)
    : bytes_(bytes), byte_rank_(size_t{256} * 256, kNone) {
  result_.reserve(merges.size());
  slots_.assign(std::bit_ceil(merges.size() * 2 + 2), kEmpty);
  mask_ = slots_.size() - 1;
  filter_.assign(std::bit_ceil(merges.size() / 4 + 1), 0);  // at least 16 bits per merge
  filter_mask_ = filter_.size() * 64 - 1;
  for (const Merge& merge : merges) {
    const uint64_t rank = result_.size();
    result_.push_back(merge.result);
    const uint64_t pair = uint64_t{merge.left} << 21 | merge.right;
    const uint64_t hash = spread(pair);
    filter_[(hash >> 32 & filter_mask_) >> 6] |= uint64_t{1} << (hash >> 32 & 63);
    uint64_t slot = hash & mask_;
    while (slots_[slot] != kEmpty && slots_[slot] >> 21 != pair) slot = (slot + 1) & mask_;
    slots_[slot] = pair << 21 | rank;
  }
  for (size_t left = 0; left < 256; ++left)
    for (size_t right = 0; right < 256; ++right)
      byte_rank_[left * 256 + right] = rank_of(bytes_[left], bytes_[right]);
}

uint32_t Bpe::rank_of(uint32_t left, uint32_t right) const {
  const uint64_t pair = uint64_t{left} << 21 | right;
  const uint64_t hash = spread(pair);
  if ((filter_[(hash >> 32 & filter_mask_) >> 6] >> (hash >> 32 & 63) & 1) == 0) return kNone;
  for (uint64_t slot = hash & mask_;; slot = (slot + 1) & mask_) {
    const uint64_t found = slots_[slot];
    if (found >> 21 == pair) return static_cast<uint32_t>(found & ((1U << 21) - 1));
    if (found == kEmpty) return kNone;
  }
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
  if (piece.size() <= kShort)
    encode_short(piece, out);
  else
    encode_long(piece, scratch, out);
}

void Bpe::encode_short(std::string_view piece, std::vector<int32_t>& out) const {
  std::array<uint32_t, kShort> id{};
  std::array<uint32_t, kShort> rank{};  // of the pair that begins here
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) {
    const auto byte = static_cast<uint8_t>(piece[i]);
    id[i] = bytes_[byte];
    rank[i] = i + 1 < count ? byte_rank_[byte * size_t{256} + static_cast<uint8_t>(piece[i + 1])] : kNone;
  }
  while (count > 1) {
    const size_t at = static_cast<size_t>(
        std::min_element(rank.begin(), rank.begin() + static_cast<ptrdiff_t>(count - 1)) - rank.begin());
    if (rank[at] == kNone) break;
    id[at] = result_[rank[at]];
    for (size_t i = at + 1; i + 1 < count; ++i) {
      id[i] = id[i + 1];
      rank[i] = rank[i + 1];
    }
    --count;
    rank[at] = at + 1 < count ? rank_of(id[at], id[at + 1]) : kNone;
    if (at > 0) rank[at - 1] = rank_of(id[at - 1], id[at]);
  }
  for (size_t i = 0; i < count; ++i) out.push_back(static_cast<int32_t>(id[i]));
}

// Notes the pair that begins at `at`, if it has a merge: in `now` when its rank is below `limit`.
void Bpe::offer(uint32_t at, uint64_t limit, std::vector<uint64_t>& now, Scratch& s) {
  const uint32_t rank = s.parts[at].rank;
  if (rank == kNone) return;
  const uint64_t key = uint64_t{rank} << 32 | at;
  if (rank >= limit) {
    s.later[range_of(rank)].push_back(key);
    return;
  }
  now.push_back(key);
  if (&now == &s.heap) std::push_heap(now.begin(), now.end(), std::greater<>());
}

void Bpe::merge_at(uint32_t at, uint64_t limit, Scratch& s) const {
  Scratch::Part& part = s.parts[at];
  Scratch::Part& gone = s.parts[part.after];
  part.id = result_[part.rank];
  part.after = gone.after;
  part.rank = kNone;
  gone.rank = kNone;
  if (part.after != kNone) {
    s.parts[part.after].before = at;
    part.rank = rank_of(part.id, s.parts[part.after].id);
    offer(at, limit, s.heap, s);
  }
  if (part.before != kNone) {
    s.parts[part.before].rank = rank_of(s.parts[part.before].id, part.id);
    offer(part.before, limit, s.heap, s);
  }
}

void Bpe::begin_long(std::string_view piece, uint64_t limit, Scratch& s) const {
  const auto count = static_cast<uint32_t>(piece.size());
  s.parts.resize(count);
  s.run.clear();
  for (uint32_t i = 0; i < count; ++i) {
    const auto byte = static_cast<uint8_t>(piece[i]);
    const bool last = i + 1 == count;
    const uint32_t rank = last ? kNone : byte_rank_[byte * size_t{256} + static_cast<uint8_t>(piece[i + 1])];
    s.parts[i] = {bytes_[byte], i == 0 ? kNone : i - 1, last ? kNone : i + 1, rank};
    offer(i, limit, s.run, s);
  }
}

// Merges the pairs of s.run, and those below the limit that come up on the way, in order of rank, then place.
void Bpe::merge_below(uint64_t limit, Scratch& s) const {
  if (!std::is_sorted(s.run.begin(), s.run.end())) std::sort(s.run.begin(), s.run.end());
  constexpr size_t kAhead = 6;
  for (size_t i = 0; i < s.run.size() || !s.heap.empty();) {
    uint64_t next = i < s.run.size() ? s.run[i] : kEmpty;
    if (!s.heap.empty() && s.heap.front() < next) {
      next = s.heap.front();
      std::pop_heap(s.heap.begin(), s.heap.end(), std::greater<>());
      s.heap.pop_back();
    } else {
      ++i;
      if (i + kAhead < s.run.size()) __builtin_prefetch(&s.parts[static_cast<uint32_t>(s.run[i + kAhead])]);
    }
    const auto at = static_cast<uint32_t>(next);
    if (s.parts[at].rank == next >> 32) merge_at(at, limit, s);  // else the pair has changed since
  }
}

// A new pair nearly always has a higher rank than the merge that made it, but need not (27 merges of the
// published vocabulary use a part that a later merge makes): the heap takes any rank below the limit, so that
// the next merge is the lowest rank of all, whatever the order of the list.
void Bpe::encode_long(std::string_view piece, Scratch& s, std::vector<int32_t>& out) const {
  const bool ranges = piece.size() > kLong;
  if (ranges) s.later.resize(range_of(result_.size()) + 1);
  begin_long(piece, ranges ? 0 : kNone, s);
  if (!ranges) {
    merge_below(kNone, s);
  } else {
    for (size_t range = 0; range < s.later.size(); ++range) {
      s.run.swap(s.later[range]);
      s.later[range].clear();
      merge_below(end_of_range(range), s);
    }
  }
  for (uint32_t i = 0; i != kNone; i = s.parts[i].after) out.push_back(static_cast<int32_t>(s.parts[i].id));
}

}  // namespace lily
