// The sampler of sampling/sampler.h. Metal has no doubles: softmax weights are whole multiples of 2^-44, so
// that their sums are exact in any order and a draw needs no sorting: a histogram says in which step of the
// order the wanted count or mass lies, and the next histogram looks into that step.
#include "backends/metal/kernels/common.h"

constant constexpr uint kChooseThreads = 512;
constant constexpr uint kWeightBits = 44;
constant constexpr ulong kOne = 1ul << kWeightBits;
constant constexpr uint kPart =
    12;  // bits of a weight in one word of a histogram: 2^20 of them do not overflow
constant constexpr ulong kPartMask = (1ul << kPart) - 1ul;
constant constexpr uint kParts = 4;
constant constexpr uint kBuckets = 256;

inline bool in_bits(device const uint* bits, uint token) {
  return ((bits[token / 32] >> (token % 32)) & 1u) != 0;
}
inline bool usable(float x) { return !isnan(x) && x != INFINITY; }

struct Best {
  float value;
  int id;
  uint usable;
};
inline Best better(Best a, Best b) {
  const bool second = b.id >= 0 && (a.id < 0 || b.value > a.value || (b.value == a.value && b.id < a.id));
  Best out = second ? b : a;
  out.usable = a.usable & b.usable;
  return out;
}
inline Best best_of_simd(Best mine) {
  for (ushort offset = 16; offset > 0; offset /= 2) {
    Best other;
    other.value = simd_shuffle_xor(mine.value, offset);
    other.id = simd_shuffle_xor(mine.id, offset);
    other.usable = simd_shuffle_xor(mine.usable, offset);
    mine = better(mine, other);
  }
  return mine;
}

// Bias, penalties and mask of one slice of a row, in the order of the specification; its largest logit; and
// the logits over the temperature. Groups: (vocab / kSampleSlice); 256 threads.
kernel void sample_adjust(device const float* logits [[buffer(0)]],
                          device const BiasEntry* bias [[buffer(1)]],
                          device const uint* allowed [[buffer(2)]], device const uint* prompt [[buffer(3)]],
                          device const uint* counts [[buffer(4)]], device float* adjusted [[buffer(5)]],
                          device SliceBest* best [[buffer(6)]], constant SampleArgs& a [[buffer(7)]],
                          uint3 group [[threadgroup_position_in_grid]],
                          uint t [[thread_index_in_threadgroup]],
                          uint simd [[simdgroup_index_in_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float slice[kSampleSlice];
  threadgroup float values[8];
  threadgroup int ids[8];
  threadgroup uint uses[8];
  const uint first = group.x * kSampleSlice;
  const uint count = min(kSampleSlice, a.vocab - first);
  Best mine = {-INFINITY, -1, 1u};
  for (uint i = t; i < count; i += 256) {
    const float x = logits[first + i];
    mine.usable &= isfinite(x) ? 1u : 0u;
    slice[i] = x;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t == 0) {  // in order: a token may be there twice
    for (uint i = 0; i < a.bias_count; ++i) {
      const uint at = uint(bias[i].token) - first;
      if (at < count) {
        slice[at] += bias[i].bias;
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = t; i < count; i += 256) {
    const uint token = first + i;
    float x = slice[i];
    if (a.mode != 0) {
      if (a.repetition != 1.0f && (in_bits(prompt, token) || counts[token] != 0)) {
        x = x > 0.0f ? x / a.repetition : x * a.repetition;
      }
      if (a.frequency != 0.0f || a.presence != 0.0f) {
        if (counts[token] != 0) {
          const float product = a.frequency * float(counts[token]);
          x = x - product;
          x = x - a.presence;
        }
      }
      if (a.masked != 0 && !in_bits(allowed, token)) {
        x = -INFINITY;
      }
    }
    mine.usable &= usable(x) ? 1u : 0u;
    if (x > mine.value) {
      mine.value = x;
      mine.id = int(token);
    }
    if (a.mode == 2) {
      adjusted[token] = x / a.temperature;
    }
  }
  mine = best_of_simd(mine);
  if (lane == 0) {
    values[simd] = mine.value;
    ids[simd] = mine.id;
    uses[simd] = mine.usable;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t == 0) {
    for (uint i = 1; i < 8; ++i) {
      const Best other = {values[i], ids[i], uses[i]};
      mine = better(mine, other);
    }
    best[group.x].value = mine.value;
    best[group.x].id = mine.id;
    best[group.x].usable = mine.usable;
  }
}

// ---- Weights --------------------------------------------------------------------------------------------
// The upper 64 bits of a product.
inline ulong high_product(ulong x, ulong y) {
  const ulong x0 = x & 0xfffffffful;
  const ulong x1 = x >> 32;
  const ulong y0 = y & 0xfffffffful;
  const ulong y1 = y >> 32;
  const ulong middle = x1 * y0 + ((x0 * y0) >> 32);
  const ulong other = x0 * y1 + (middle & 0xfffffffful);
  return x1 * y1 + (middle >> 32) + (other >> 32);
}

// 2^63 / k!
constant constexpr uint kTerms = 18;
constant constexpr ulong kSeries[kTerms] = {
    0x8000000000000000ul, 0x8000000000000000ul, 0x4000000000000000ul, 0x1555555555555555ul,
    0x0555555555555555ul, 0x0111111111111111ul, 0x002d82d82d82d82dul, 0x0006806806806806ul,
    0x0000d00d00d00d00ul, 0x0000171de3a556c7ul, 0x0000024fc9f6ef13ul, 0x00000035cc8acfeaul,
    0x000000047bb63bfeul, 0x000000005849184eul, 0x00000000064e5d2aul, 0x00000000006b9fcful,
    0x000000000006b9fcul, 0x000000000000654bul,
};

// exp(x - top) in multiples of 2^-44, for x <= top: the difference exactly, as float and remainder; then 2^-n
// * exp(-r), r < ln 2, by its series in 63-bit fixed point.
inline ulong weight_of(float x, float top) {
  const float difference = top - x;
  if (!(difference < 31.0f)) {
    return 0;
  }
  const float back = difference - top;  // what was really subtracted, negated
  const float remainder = (top - (difference - back)) - (x + back);
  const long fixed = long(difference * 72057594037927936.0f) + long(remainder * 72057594037927936.0f);
  const ulong y = fixed > 0 ? ulong(fixed) : 0ul;
  const ulong turns = high_product(y, 0x5c551d94ae0bf85eul);  // y / ln 2, in units of 2^-54
  const ulong n = turns >> 54;
  const ulong r = high_product(turns << 10, 0xb17217f7d1cf79acul);  // in units of 2^-64
  ulong sum = kSeries[kTerms - 1];
  for (uint k = kTerms - 1; k > 0; --k) {
    sum = kSeries[k - 1] - high_product(r, sum);
  }
  const ulong shift = n + 63 - kWeightBits;
  return shift < 64 ? sum >> shift : 0ul;
}

// A number that orders logits as their values; 0 and -0 are equal.
inline uint ordered(float x) {
  const uint bits = as_type<uint>(x == 0.0f ? 0.0f : x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// ---- Selection ------------------------------------------------------------------------------------------
// Candidates in descending order of value, lower ids first among equals, up to and with (value, id), as long
// as they weigh at least `least`.
struct Kept {
  uint value, id;
  ulong least;
};

struct Row {
  device const float* logits;  // over the temperature
  uint vocab;
  float top;
  uint t;  // this thread
};

inline bool is_kept(thread const Kept& kept, uint value, uint id) {
  return value > kept.value || (value == kept.value && id <= kept.id);
}

struct Choosing {
  atomic_uint counts[kBuckets];
  atomic_uint masses[kParts][kBuckets];
  ulong sums[kChooseThreads / 32];
  uint bucket;
  ulong before;  // count or mass before the bucket
};

inline ulong mass_of(threadgroup Choosing& c, uint bucket) {
  ulong mass = 0;
  for (uint part = 0; part < kParts; ++part) {
    mass += ulong(atomic_load_explicit(&c.masses[part][bucket], memory_order_relaxed)) << (kPart * part);
  }
  return mass;
}

// The place of a candidate at one level: by its distance from the top in eighths, then by the bytes of its
// value, then by those of its id. Smaller places come first.
inline uint place_of(uint level, float distance, uint value, uint id) {
  if (level == 0) {
    return uint(min(distance * 8.0f, 255.0f));
  }
  return level < 5 ? 255u - ((value >> (32 - 8 * level)) & 255u) : (id >> (56 - 8 * level)) & 255u;
}

// The candidate at which the count (by_mass false) or mass of those so far reaches `target`, and leaves in
// `reached` what those before it have. `target` is at least 1 and at most that of all kept.
inline Kept select_candidate(threadgroup Choosing& c, thread const Row& row, thread const Kept& kept,
                             bool by_mass, ulong target, thread ulong& reached) {
  const uint t = row.t;
  uint chosen[8];
  ulong before = 0;
  Kept found = {0u, 0u, kept.least};
  for (uint level = 0; level < 8; ++level) {
    for (uint i = t; i < kBuckets; i += kChooseThreads) {
      atomic_store_explicit(&c.counts[i], 0u, memory_order_relaxed);
      for (uint part = 0; part < kParts; ++part) {
        atomic_store_explicit(&c.masses[part][i], 0u, memory_order_relaxed);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint id = t; id < row.vocab; id += kChooseThreads) {
      const float x = row.logits[id];
      const uint value = ordered(x);
      bool candidate = is_kept(kept, value, id);
      for (uint i = 0; candidate && i < level; ++i) {
        candidate = place_of(i, row.top - x, value, id) == chosen[i];
      }
      if (!candidate) {
        continue;
      }
      const ulong weight = by_mass || kept.least > 0 ? weight_of(x, row.top) : 0ul;
      if (weight < kept.least) {
        continue;
      }
      const uint place = place_of(level, row.top - x, value, id);
      atomic_fetch_add_explicit(&c.counts[place], 1u, memory_order_relaxed);
      for (uint part = 0; by_mass && part < kParts; ++part) {
        atomic_fetch_add_explicit(&c.masses[part][place], uint((weight >> (kPart * part)) & kPartMask),
                                  memory_order_relaxed);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (t == 0) {
      uint last = 0;  // of those that hold anything: where rounding left the sum short of the target
      ulong before_last = before;
      ulong sum = before;
      for (uint i = 0; i < kBuckets; ++i) {
        const ulong in_bucket =
            by_mass ? mass_of(c, i) : ulong(atomic_load_explicit(&c.counts[i], memory_order_relaxed));
        if (in_bucket == 0) {
          continue;
        }
        last = i;
        before_last = sum;
        sum += in_bucket;
        if (sum >= target) {
          break;
        }
      }
      c.bucket = last;
      c.before = before_last;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    chosen[level] = c.bucket;
    before = c.before;
    if (level > 0 && level < 5) {
      found.value |= (255u - chosen[level]) << (32 - 8 * level);
    } else if (level > 0) {
      found.id |= chosen[level] << (56 - 8 * level);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  reached = before;
  return found;
}

// The mass of all that is kept.
inline ulong mass_of_kept(threadgroup Choosing& c, thread const Row& row, thread const Kept& kept) {
  const uint t = row.t;
  ulong sum = 0;
  for (uint id = t; id < row.vocab; id += kChooseThreads) {
    const float x = row.logits[id];
    if (is_kept(kept, ordered(x), id)) {
      const ulong weight = weight_of(x, row.top);
      sum += weight >= kept.least ? weight : 0ul;
    }
  }
  // Over a SIMD group in pieces that do not overflow: a thread has less than 2^62.
  const uint low = simd_sum(uint(sum & 0x3fffffful));
  const uint middle = simd_sum(uint((sum >> 26) & 0x3fffffful));
  const uint high = simd_sum(uint(sum >> 52));
  if (t % 32 == 0) {
    c.sums[t / 32] = ulong(low) + (ulong(middle) << 26) + (ulong(high) << 52);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  sum = 0;
  for (uint i = 0; i < kChooseThreads / 32; ++i) {
    sum += c.sums[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return sum;
}

// The upper 53 of the first 64 bits of Philox 4x32-10 with counter `position` and key `seed`.
inline ulong philox_bits(constant SampleArgs& a) {
  uint4 x = uint4(a.position[0], a.position[1], 0u, 0u);
  uint key0 = a.seed[0];
  uint key1 = a.seed[1];
  for (uint round = 0; round < 10; ++round) {
    const ulong first = 0xD2511F53ul * ulong(x.x);
    const ulong second = 0xCD9E8D57ul * ulong(x.z);
    x = uint4(uint(second >> 32) ^ x.y ^ key0, uint(second), uint(first >> 32) ^ x.w ^ key1, uint(first));
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return ((ulong(x.x) << 32) | ulong(x.y)) >> 11;
}

// A number in [0, 1) in units of 2^-64, for values of 24 bits: exact.
inline ulong fraction_of(float x) { return ulong(x * 1099511627776.0f) << 24; }

inline uint draw(threadgroup Choosing& c, thread const Row& row, constant SampleArgs& a) {
  Kept kept = {0u, 0xffffffffu, 0ul};
  ulong before = 0;
  if (a.top_k != 0 && a.top_k < a.vocab) {
    kept = select_candidate(c, row, kept, false, ulong(a.top_k), before);
  }
  if (a.top_p < 1.0f) {
    const ulong mass = mass_of_kept(c, row, kept);
    const ulong fraction = fraction_of(a.top_p);
    const ulong enough = high_product(mass, fraction) + (mass * fraction != 0 ? 1 : 0);  // rounded up
    kept = select_candidate(c, row, kept, true, enough, before);
  }
  if (a.min_p > 0.0f) {
    kept.least = ulong(a.min_p * 17592186044416.0f);
  }
  const ulong mass = mass_of_kept(c, row, kept);
  const ulong target = high_product(mass, philox_bits(a) << 11) + 1;
  return select_candidate(c, row, kept, true, target, before).id;
}

// The decision for a row: its token, or -1, and whether its logits could be used. The token goes to the
// state, too: the next pass finds it there. One group; kChooseThreads threads.
[[max_total_threads_per_threadgroup(512)]] kernel void sample_choose(
    device const float* adjusted [[buffer(0)]], device const SliceBest* slices [[buffer(1)]],
    device int* result [[buffer(2)]], device int* sampled [[buffer(3)]], device uint* counts [[buffer(4)]],
    constant SampleArgs& a [[buffer(5)]], uint t [[thread_index_in_threadgroup]]) {
  threadgroup Choosing choosing;
  threadgroup float top[1];
  threadgroup int best_id[1];
  threadgroup uint good[1];
  if (t == 0) {
    Best best = {-INFINITY, -1, 1u};
    for (uint i = 0; i < (a.vocab + kSampleSlice - 1) / kSampleSlice; ++i) {
      const Best other = {slices[i].value, slices[i].id, slices[i].usable};
      best = better(best, other);
    }
    best_id[0] = best.id;
    good[0] = best.usable != 0 && (a.mode == 0 || best.id >= 0) ? 1u : 0u;
    top[0] = a.mode == 2 && good[0] != 0 ? adjusted[best.id] : 0.0f;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  int token = a.mode == 0 || good[0] == 0 ? -1 : best_id[0];
  if (a.mode == 2 && good[0] != 0 && isfinite(top[0])) {
    const Row row = {adjusted, a.vocab, top[0], t};
    token = int(draw(choosing, row, a));
  }
  if (t == 0) {
    result[0] = token;
    result[1] = int(good[0]);
    if (a.mode != 0) {
      sampled[0] = max(token, 0);
      if (token >= 0) {
        counts[token] += 1;
      }
    }
  }
}

// Counts tokens of a draft as the answer's. One group; 32 threads.
kernel void count_tokens(device uint* counts [[buffer(0)]], constant CountArgs& a [[buffer(1)]],
                         uint t [[thread_index_in_threadgroup]]) {
  if (t == 0) {
    for (uint i = 0; i < a.count; ++i) {
      counts[a.tokens[i]] += 1;
    }
  }
}
