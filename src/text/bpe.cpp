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
  for (const Merge& merge : merges) {
    const uint64_t rank = result_.size();
    result_.push_back(merge.result);
    const uint64_t pair = uint64_t{merge.left} << 21 | merge.right;
    uint64_t slot = spread(pair) & mask_;
    while (slots_[slot] != kEmpty && slots_[slot] >> 21 != pair) slot = (slot + 1) & mask_;
    slots_[slot] = pair << 21 | rank;
  }
  for (size_t left = 0; left < 256; ++left)
    for (size_t right = 0; right < 256; ++right)
      byte_rank_[left * 256 + right] = rank_of(bytes_[left], bytes_[right]);
}

uint32_t Bpe::rank_of(uint32_t left, uint32_t right) const {
  const uint64_t pair = uint64_t{left} << 21 | right;
  for (uint64_t slot = spread(pair) & mask_;; slot = (slot + 1) & mask_) {
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
  const uint32_t next = s.after[at];
  const uint32_t rank = next == kNone ? kNone : rank_of(s.id[at], s.id[next]);
  s.rank[at] = rank;
  if (rank == kNone) return;
  if (current != kNone && rank <= current) {
    s.early.push_back(uint64_t{rank} << 32 | at);
    std::push_heap(s.early.begin(), s.early.end(), std::greater<>());
    return;
  }
  if (s.head[rank] == kNone) s.occupied[rank >> 6] |= uint64_t{1} << (rank & 63);
  s.link.push_back(s.head[rank]);
  s.position.push_back(at);
  s.head[rank] = static_cast<uint32_t>(s.position.size() - 1);
}

void Bpe::merge_at(uint32_t at, uint32_t current, Scratch& s) const {
  const uint32_t gone = s.after[at];
  s.id[at] = result_[s.rank[at]];
  s.rank[gone] = kNone;
  s.after[at] = s.after[gone];
  if (s.after[at] != kNone) s.before[s.after[at]] = at;
  offer(at, current, s);
  if (s.before[at] != kNone) offer(s.before[at], current, s);
}

void Bpe::encode_long(std::string_view piece, Scratch& s, std::vector<int32_t>& out) const {
  const auto count = static_cast<uint32_t>(piece.size());
  s.id.resize(count);
  s.before.resize(count);
  s.after.resize(count);
  s.rank.resize(count);
  s.head.resize(result_.size(), kNone);  // all empty between pieces
  s.occupied.resize(result_.size() / 64 + 1, 0);
  s.link.clear();
  s.position.clear();
  for (uint32_t i = 0; i < count; ++i) {
    s.id[i] = bytes_[static_cast<uint8_t>(piece[i])];
    s.before[i] = i == 0 ? kNone : i - 1;
    s.after[i] = i + 1 < count ? i + 1 : kNone;
  }
  for (uint32_t i = 0; i < count; ++i) offer(i, kNone, s);

  for (size_t word = 0; word < s.occupied.size(); ++word) {
    while (s.occupied[word] != 0) {
      const auto rank =
          static_cast<uint32_t>(word * 64 + static_cast<size_t>(std::countr_zero(s.occupied[word])));
      s.occupied[word] &= s.occupied[word] - 1;
      s.sorted.clear();
      for (uint32_t entry = s.head[rank]; entry != kNone; entry = s.link[entry])
        s.sorted.push_back(s.position[entry]);
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
        if (s.rank[at] == next >> 32) merge_at(at, rank, s);  // else the pair has changed since
      }
    }
  }
  for (uint32_t i = 0; i != kNone; i = s.after[i]) out.push_back(static_cast<int32_t>(s.id[i]));
}

}  // namespace lily
