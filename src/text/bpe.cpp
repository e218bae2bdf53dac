#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace lily {

namespace {

constexpr uint64_t kEmpty = UINT64_MAX;

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

// Notes the pair that begins at `at`, if it has a merge. A pair of a rank above the current one waits in that
// rank's list. A lower or equal rank can only come up when a part's own merge has a later rank than the pair
// (27 merges of the published vocabulary): it goes to the heap, which is looked at before the list goes on.
void Bpe::offer(uint32_t at, uint32_t current, Scratch& s) const {
  const uint32_t rank = s.parts[at].rank;
  if (rank == kNone) return;
  if (current != kNone && rank <= current) {
    s.early.push_back(uint64_t{rank} << 32 | at);
    std::push_heap(s.early.begin(), s.early.end(), std::greater<>());
    return;
  }
  if (s.head[rank] == kNone) {
    s.occupied[rank >> 6] |= uint64_t{1} << (rank & 63);
    s.occupied2[rank >> 12] |= uint64_t{1} << (rank >> 6 & 63);
  }
  s.pending.push_back({at, s.head[rank]});
  s.head[rank] = static_cast<uint32_t>(s.pending.size() - 1);
}

void Bpe::merge_at(uint32_t at, uint32_t current, Scratch& s) const {
  Scratch::Part& part = s.parts[at];
  Scratch::Part& gone = s.parts[part.after];
  part.id = result_[part.rank];
  part.after = gone.after;
  gone.rank = kNone;
  part.rank = kNone;
  if (part.after != kNone) {
    s.parts[part.after].before = at;
    part.rank = rank_of(part.id, s.parts[part.after].id);
    offer(at, current, s);
  }
  if (part.before != kNone) {
    s.parts[part.before].rank = rank_of(s.parts[part.before].id, part.id);
    offer(part.before, current, s);
  }
}

void Bpe::begin_long(std::string_view piece, Scratch& s) const {
  const auto count = static_cast<uint32_t>(piece.size());
  s.parts.resize(count);
  s.head.resize(result_.size(), kNone);  // all lists are empty between pieces
  s.occupied.resize(result_.size() / 64 + 1, 0);
  s.occupied2.resize(result_.size() / 4096 + 1, 0);
  s.pending.clear();
  for (uint32_t i = 0; i < count; ++i) {
    const auto byte = static_cast<uint8_t>(piece[i]);
    const bool last = i + 1 == count;
    const uint32_t rank = last ? kNone : byte_rank_[byte * size_t{256} + static_cast<uint8_t>(piece[i + 1])];
    s.parts[i] = {bytes_[byte], i == 0 ? kNone : i - 1, last ? kNone : i + 1, rank};
    offer(i, kNone, s);
  }
}

void Bpe::merge_rank(uint32_t rank, Scratch& s) const {
  s.sorted.clear();
  for (uint32_t entry = s.head[rank]; entry != kNone; entry = s.pending[entry].next)
    s.sorted.push_back(s.pending[entry].at);
  s.head[rank] = kNone;
  std::sort(s.sorted.begin(), s.sorted.end());
  for (size_t i = 0; i < s.sorted.size() || !s.early.empty();) {
    uint64_t next = i < s.sorted.size() ? uint64_t{rank} << 32 | s.sorted[i] : kEmpty;
    if (!s.early.empty() && s.early.front() < next) {
      next = s.early.front();
      std::pop_heap(s.early.begin(), s.early.end(), std::greater<>());
      s.early.pop_back();
    } else {
      ++i;
    }
    const auto at = static_cast<uint32_t>(next);
    if (s.parts[at].rank == next >> 32) merge_at(at, rank, s);  // else the pair has changed since
  }
}

void Bpe::encode_long(std::string_view piece, Scratch& s, std::vector<int32_t>& out) const {
  begin_long(piece, s);
  for (size_t top = 0; top < s.occupied2.size(); ++top) {
    while (s.occupied2[top] != 0) {
      const size_t word = top * 64 + static_cast<size_t>(std::countr_zero(s.occupied2[top]));
      while (s.occupied[word] != 0) {
        const auto rank =
            static_cast<uint32_t>(word * 64 + static_cast<size_t>(std::countr_zero(s.occupied[word])));
        s.occupied[word] &= s.occupied[word] - 1;
        merge_rank(rank, s);
      }
      s.occupied2[top] &= s.occupied2[top] - 1;  // new pairs have higher ranks: this word stays empty
    }
  }
  for (uint32_t i = 0; i != kNone; i = s.parts[i].after) out.push_back(static_cast<int32_t>(s.parts[i].id));
}

}  // namespace lily
