#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace lily {

namespace {

constexpr uint64_t kEmpty = UINT64_MAX;
constexpr int kRangeBits = 7;  // ranks are kept apart in ranges of 128 until their turn comes
constexpr uint32_t kRange = 1U << kRangeBits;

uint64_t spread(uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15U;
  return pair ^ pair >> 32;
}

// Place of the part after that at `at`; there always is one, the end.
uint32_t after(uint32_t at, const std::vector<uint64_t>& begins) {
  const uint64_t place = uint64_t{at} + 1;
  size_t word = place >> 6;
  uint64_t bits = begins[word] >> (place & 63);
  if (bits != 0) return static_cast<uint32_t>(place) + static_cast<uint32_t>(std::countr_zero(bits));
  while ((bits = begins[++word]) == 0) {
  }
  return static_cast<uint32_t>(word << 6) + static_cast<uint32_t>(std::countr_zero(bits));
}

// Place of the part before that at `at` > 0; there always is one, the first.
uint32_t before(uint32_t at, const std::vector<uint64_t>& begins) {
  const uint32_t place = at - 1;
  size_t word = place >> 6;
  uint64_t bits = begins[word] << (63 - (place & 63));
  if (bits != 0) return place - static_cast<uint32_t>(std::countl_zero(bits));
  while ((bits = begins[--word]) == 0) {
  }
  return static_cast<uint32_t>(word << 6) + 63 - static_cast<uint32_t>(std::countl_zero(bits));
}

}  // namespace

Bpe::Bpe(const std::array<uint32_t, 256>& bytes, const std::vector<Merge>& merges)
    : bytes_(bytes), byte_rank_(size_t{256} * 256, kNone) {
  merges_.reserve(merges.size());
  slots_.assign(std::bit_ceil(merges.size() * 2 + 2), kEmpty);
  mask_ = slots_.size() - 1;
  filter_.assign(std::bit_ceil(merges.size() / 4 + 1), 0);  // at least 16 bits per merge
  filter_mask_ = filter_.size() * 64 - 1;
  for (const Merge& merge : merges) {
    const uint64_t rank = merges_.size();
    merges_.push_back(merge);
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
  uint32_t ids = 0;
  for (const Merge& merge : merges) ids = std::max({ids, merge.left + 1, merge.right + 1, merge.result + 1});
  std::vector<uint32_t> first_use(ids, kNone);  // by id: the lowest rank that it is part of
  for (size_t rank = merges.size(); rank-- > 0;)
    first_use[merges[rank].left] = first_use[merges[rank].right] = static_cast<uint32_t>(rank);
  for (size_t rank = 0; rank < merges.size(); ++rank)
    out_of_order_.push_back(first_use[merges[rank].result] <= rank);
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
    id[at] = merges_[rank[at]].result;
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

// Pairs that have come up, their ranks not known yet. They are looked up together, so that one wait for
// memory serves them all.
struct Bpe::Offers {
  static constexpr size_t kMany = 32;

  // The pairs that the part at `place` makes: with the one before, unless `with_before` is false, and after.
  void add_around(uint32_t place, bool with_before, const Bpe& bpe, const Scratch& s) {
    if (with_before && place > 0) {
      const uint32_t left = before(place, s.begins);
      add(left, s.ids[left], s.ids[place], bpe);
    }
    if (const uint32_t right = s.ids[after(place, s.begins)]; right != kNone)
      add(place, s.ids[place], right, bpe);
  }
  void add(uint32_t place, uint32_t left, uint32_t right, const Bpe& bpe) {
    const uint64_t pair = uint64_t{left} << 21 | right;
    const uint64_t hash = spread(pair);
    __builtin_prefetch(&bpe.filter_[(hash >> 32 & bpe.filter_mask_) >> 6]);
    all[count++] = {pair, hash, place};
  }

  struct Offer {
    uint64_t pair, hash;
    uint32_t place;
  };
  std::array<Offer, kMany> all;
  size_t count = 0;
};

// Notes those offers that have a merge, and forgets all.
void Bpe::find(Offers& offers, uint64_t limit, Scratch& s) const {
  size_t likely = 0;
  for (size_t i = 0; i < offers.count; ++i) {
    const uint64_t hash = offers.all[i].hash;
    if ((filter_[(hash >> 32 & filter_mask_) >> 6] >> (hash >> 32 & 63) & 1) == 0) continue;
    __builtin_prefetch(&slots_[hash & mask_]);
    offers.all[likely++] = offers.all[i];
  }
  for (size_t i = 0; i < likely; ++i) {
    const auto [pair, hash, place] = offers.all[i];
    uint64_t slot = hash & mask_;
    while (slots_[slot] != kEmpty && slots_[slot] >> 21 != pair) slot = (slot + 1) & mask_;
    if (slots_[slot] != kEmpty) note(static_cast<uint32_t>(slots_[slot] & ((1U << 21) - 1)), place, limit, s);
  }
  offers.count = 0;
}

// A pair with a merge begins at `place`: its turn is at once when its rank is below `limit`, else with its
// rank.
void Bpe::note(uint32_t rank, uint32_t place, uint64_t limit, Scratch& s) const {
  const uint64_t key = uint64_t{rank} << 32 | place;
  if (rank < limit) {
    s.heap.push_back(key);
    std::push_heap(s.heap.begin(), s.heap.end(), std::greater<>());
  } else if (rank >> kRangeBits == s.range) {
    s.now[rank & (kRange - 1)].push_back(place);
  } else {
    s.later[rank >> kRangeBits].push_back(key);
  }
}

// False when another merge has taken the pair since it was noted.
bool Bpe::merge_at(uint32_t at, const Merge& merge, Scratch& s) {
  if (s.ids[at] != merge.left) return false;
  const uint32_t gone = after(at, s.begins);
  if (s.ids[gone] != merge.right) return false;
  s.ids[at] = merge.result;
  s.ids[gone] = kNone;
  s.begins[gone >> 6] &= ~(uint64_t{1} << (gone & 63));
  return true;
}

// Merges the pairs of s.run, which is sorted, and those below the limit that come up on the way, one by one
// in order of rank, then place.
void Bpe::merge_ordered(uint64_t limit, Scratch& s) const {
  Offers offers;
  for (size_t i = 0; i < s.run.size() || !s.heap.empty();) {
    uint64_t next = i < s.run.size() ? s.run[i] : kEmpty;
    if (!s.heap.empty() && s.heap.front() < next) {
      next = s.heap.front();
      std::pop_heap(s.heap.begin(), s.heap.end(), std::greater<>());
      s.heap.pop_back();
    } else {
      ++i;
    }
    const auto at = static_cast<uint32_t>(next);
    if (!merge_at(at, merges_[next >> 32], s)) continue;
    offers.add_around(at, true, *this, s);
    find(offers, limit, s);
  }
}

// All pairs of one rank. No pair that comes up on the way is due before the last of them, so their order does
// not matter, but that of two equal parts the leftmost pair wins.
void Bpe::merge_rank(uint32_t rank, Scratch& s) const {
  const Merge& merge = merges_[rank];
  std::vector<uint32_t>& places = s.now[rank & (kRange - 1)];
  if (merge.left == merge.right && !std::is_sorted(places.begin(), places.end()))
    std::sort(places.begin(), places.end());
  constexpr size_t kAhead = 8;
  s.merged.clear();
  for (size_t i = 0; i < places.size(); ++i) {
    if (i + kAhead < places.size()) {
      __builtin_prefetch(&s.ids[places[i + kAhead]]);
      __builtin_prefetch(&s.begins[places[i + kAhead] >> 6]);
    }
    if (merge_at(places[i], merge, s)) s.merged.push_back(places[i]);
  }
  Offers offers;
  uint32_t end_of_last = kNone;  // the pair with the part before has been offered by that part
  for (const uint32_t place : s.merged) {
    offers.add_around(place, place != end_of_last, *this, s);
    end_of_last = after(place, s.begins);
    if (offers.count + 2 > Offers::kMany) find(offers, 0, s);
  }
  find(offers, 0, s);
  places.clear();
}

// A new pair nearly always has a higher rank than the merge that made it, but need not (27 merges of the
// published vocabulary use a part that a later merge makes). Where it may not, the merges are made one by
// one, so that the next is always the lowest rank of all, whatever the order of the list.
void Bpe::merge_range(Scratch& s) const {
  for (const uint64_t key : s.later[s.range])
    s.now[key >> 32 & (kRange - 1)].push_back(static_cast<uint32_t>(key));
  s.later[s.range].clear();
  for (uint32_t i = 0; i < kRange; ++i) {
    const uint32_t rank = s.range << kRangeBits | i;
    if (s.now[i].empty()) continue;
    if (!out_of_order_[rank]) {
      merge_rank(rank, s);
      continue;
    }
    s.run.clear();
    for (const uint32_t place : s.now[i]) s.run.push_back(uint64_t{rank} << 32 | place);
    s.now[i].clear();
    std::sort(s.run.begin(), s.run.end());
    merge_ordered(uint64_t{rank} + 1, s);
  }
}

void Bpe::begin_long(std::string_view piece, bool by_range, Scratch& s) const {
  const auto count = static_cast<uint32_t>(piece.size());
  s.ids.resize(size_t{count} + 1);
  s.ids[count] = kNone;
  s.begins.assign((size_t{count} >> 6) + 1, UINT64_MAX);
  s.run.clear();
  s.range = kNone;
  if (by_range) s.later.resize((merges_.size() >> kRangeBits) + 1);
  for (uint32_t i = 0; i < count; ++i) {
    const auto byte = static_cast<uint8_t>(piece[i]);
    s.ids[i] = bytes_[byte];
    if (i + 1 == count) break;
    const uint32_t rank = byte_rank_[byte * size_t{256} + static_cast<uint8_t>(piece[i + 1])];
    if (rank == kNone) continue;
    (by_range ? s.later[rank >> kRangeBits] : s.run).push_back(uint64_t{rank} << 32 | i);
  }
}

void Bpe::encode_long(std::string_view piece, Scratch& s, std::vector<int32_t>& out) const {
  const bool by_range = piece.size() > kLong;
  begin_long(piece, by_range, s);
  if (!by_range) {
    std::sort(s.run.begin(), s.run.end());
    merge_ordered(kNone, s);
  } else {
    for (s.range = 0; s.range < s.later.size(); ++s.range) merge_range(s);
  }
  const auto end = static_cast<uint32_t>(piece.size());
  for (uint32_t i = 0; i < end; i = after(i, s.begins)) out.push_back(static_cast<int32_t>(s.ids[i]));
}

}  // namespace lily
