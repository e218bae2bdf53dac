// Attention (equations 5 to 9): norms, rotation and the write to the cache for any number of rows; then, for
// few rows, parts of the positions in threadgroups of their own that are put together in order.
#include "backends/metal/kernels/cache.h"

// A SIMD group norms and turns a head of q in place, or one of k, or takes one of v as it is, and writes k
// and v to their pages. A thread has the values lane + 32 i: the pairs (j, j + 32) that turn are in one
// thread. `turns` is [rows][32 cosines | 32 sines]. Groups: ((q_heads + 2 kv_heads) / 8, rows); 256 threads.
kernel void attend_prepare(device float* q [[buffer(0)]], device const float* k [[buffer(1)]],
                           device const float* v [[buffer(2)]], device const float* q_norm [[buffer(3)]],
                           device const float* k_norm [[buffer(4)]], device const float* turns [[buffer(5)]],
                           device ushort* pages [[buffer(6)]], device const uint* table [[buffer(7)]],
                           constant AttendArgs& a [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
                           uint simd [[simdgroup_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]]) {
  const uint unit = group.x * 8 + simd;
  const uint row = group.y;
  if (unit >= a.q_heads + 2 * a.kv_heads) {
    return;
  }
  const bool query = unit < a.q_heads;
  const bool value = unit >= a.q_heads + a.kv_heads;
  const uint head = query ? unit : value ? unit - a.q_heads - a.kv_heads : unit - a.q_heads;
  float x[kHeadSize / 32];
  float squares = 0;
  for (uint i = 0; i < kHeadSize / 32; ++i) {
    const uint at = lane + 32 * i;
    x[i] = query   ? q[(row * a.q_heads + head) * 2 * kHeadSize + at]
           : value ? v[(row * a.kv_heads + head) * kHeadSize + at]
                   : k[(row * a.kv_heads + head) * kHeadSize + at];
    squares += x[i] * x[i];
  }
  if (!value) {
    const float factor = norm_factor(simd_sum(squares), kHeadSize);
    for (uint i = 0; i < kHeadSize / 32; ++i) {
      x[i] = x[i] * factor * (query ? q_norm[lane + 32 * i] : k_norm[lane + 32 * i]);
    }
    const float cosine = turns[row * 2 * kRotaryHalf + lane];
    const float sine = turns[(row * 2 + 1) * kRotaryHalf + lane];
    const float first = x[0];
    x[0] = first * cosine - x[1] * sine;
    x[1] = x[1] * cosine + first * sine;
  }
  if (query) {
    for (uint i = 0; i < kHeadSize / 32; ++i) {
      q[(row * a.q_heads + head) * 2 * kHeadSize + lane + 32 * i] = x[i];
    }
    return;
  }
  const uint position = a.position + row;
  device ushort* to = pages + page_offset(a, table[position / kPageTokens], value ? 1 : 0, head) +
                      position % kPageTokens * kHeadSize;
  for (uint i = 0; i < kHeadSize / 32; ++i) {
    to[lane + 32 * i] = to_bf16(x[i]);
  }
}

// Positions of one part of a row that has `context` of them: whole steps of kAttendTokens, as few as give at
// most kAttendParts parts. They follow from the row alone, and with them every sum of it.
inline uint part_tokens(uint context) {
  return (context + kAttendTokens * kAttendParts - 1) / (kAttendTokens * kAttendParts) * kAttendTokens;
}

// Sums eight values over the SIMD group, each in four threads: thread i returns the sum of x[i / 4].
inline float scattered_sum(thread const float* x, uint lane) {
  const bool upper = (lane & 16) != 0;
  const float4 low = float4(x[0], x[1], x[2], x[3]);
  const float4 high = float4(x[4], x[5], x[6], x[7]);
  const float4 four = (upper ? high : low) + simd_shuffle_xor(upper ? low : high, ushort(16));
  const bool second = (lane & 8) != 0;
  const float2 left = float2(four.x, four.y);
  const float2 right = float2(four.z, four.w);
  const float2 two = (second ? right : left) + simd_shuffle_xor(second ? left : right, ushort(8));
  const bool odd = (lane & 4) != 0;
  float one = (odd ? two.y : two.x) + simd_shuffle_xor(odd ? two.x : two.y, ushort(4));
  one += simd_shuffle_xor(one, ushort(2));
  return one + simd_shuffle_xor(one, ushort(1));
}

// A thread's eight values of each of the eight queries, with the factor 1/16 of the scores.
inline void load_queries(device const float* q, uint lane, thread float* query) {
  for (uint h = 0; h < kGroupHeads; ++h) {
    device const float4* from = (device const float4*)(q + h * 2 * kHeadSize + lane * 8);
    for (uint half_row = 0; half_row < 2; ++half_row) {
      const float4 x = from[half_row] * (1.0f / 16.0f);
      for (uint i = 0; i < 4; ++i) {
        query[h * 8 + half_row * 4 + i] = x[i];
      }
    }
  }
}

// Scores of every eighth of positions [at.x, + at.y) with the eight queries: a SIMD group reads a key, a
// thread eight values of it.
inline void score_tokens(threadgroup float* scores, thread const float* query, thread const Cache& cache,
                         constant AttendArgs& a, uint2 at, uint2 simd_lane) {
  for (uint token = simd_lane.x; token < at.y; token += 8) {
    const uint4 words = ((device const uint4*)cached(cache, a, 0, at.x + token))[simd_lane.y];
    float products[kGroupHeads];
    for (uint h = 0; h < kGroupHeads; ++h) {
      products[h] = 0;
      for (uint w = 0; w < 4; ++w) {
        products[h] += query[h * 8 + 2 * w] * from_bf16(words[w] & 0xffffu);
        products[h] += query[h * 8 + 2 * w + 1] * as_type<float>(words[w] & 0xffff0000u);
      }
    }
    const float score = scattered_sum(products, simd_lane.y);
    if (simd_lane.y % 4 == 0) {
      scores[token * kGroupHeads + simd_lane.y / 4] = score;
    }
  }
}

// One part of one row and key-value head, for its eight query heads: the largest score, the sum of weights
// and the weighted values, kAttendTokens positions at a time. SIMD group h has the softmax of head h; a
// thread has one of the 256 columns of the values. Groups: (kv_heads, parts, rows); 256 threads.
kernel void attend(device const float* q [[buffer(0)]], device const ushort* pages [[buffer(1)]],
                   device const uint* table [[buffer(2)]], device float* parts [[buffer(3)]],
                   constant AttendArgs& a [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                   uint t [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float scores[kAttendTokens * kGroupHeads];
  threadgroup float factors[kGroupHeads];
  const uint row = group.z;
  const uint context = a.position + row + 1;
  const uint span = part_tokens(context);
  const uint begin = group.y * span;
  if (begin >= context) {
    return;
  }
  const uint end = min(begin + span, context);
  const Cache cache = {pages, table, group.x};
  float query[kGroupHeads * 8];
  load_queries(q + (row * a.q_heads + group.x * kGroupHeads) * 2 * kHeadSize, lane, query);
  float values[kGroupHeads];
  for (uint h = 0; h < kGroupHeads; ++h) {
    values[h] = 0;
  }
  float largest = -INFINITY;
  float total = 0;
  for (uint first = begin; first < end; first += kAttendTokens) {
    const uint count = min(kAttendTokens, end - first);
    score_tokens(scores, query, cache, a, uint2(first, count), uint2(simd, lane));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float top = largest;
    for (uint token = lane; token < count; token += 32) {
      top = max(top, scores[token * kGroupHeads + simd]);
    }
    top = simd_max(top);
    float sum = 0;
    for (uint token = lane; token < count; token += 32) {
      threadgroup float* score = scores + token * kGroupHeads + simd;
      const float weight = exp(*score - top);
      *score = weight;
      sum += weight;
    }
    const float factor = exp(largest - top);
    total = total * factor + simd_sum(sum);
    largest = top;
    if (lane == 0) {
      factors[simd] = factor;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint h = 0; h < kGroupHeads; ++h) {
      values[h] *= factors[h];
    }
    for (uint token = 0; token < count; ++token) {
      const float value = from_bf16(cached(cache, a, 1, first + token)[t]);
      for (uint h = 0; h < kGroupHeads; ++h) {
        values[h] += scores[token * kGroupHeads + h] * value;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  device float* out =
      parts + ((row * a.kv_heads + group.x) * kAttendParts + group.y) * kGroupHeads * kPartFloats;
  for (uint h = 0; h < kGroupHeads; ++h) {
    out[h * kPartFloats + t] = values[h];
  }
  if (lane == 0) {
    out[simd * kPartFloats + kHeadSize] = largest;
    out[simd * kPartFloats + kHeadSize + 1] = total;
  }
}

// The parts of a head in order, then its gate. Groups: (q_heads, rows); 256 threads.
kernel void attend_combine(device const float* q [[buffer(0)]], device const float* parts [[buffer(1)]],
                           device float* heads [[buffer(2)]], constant AttendArgs& a [[buffer(3)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint t [[thread_index_in_threadgroup]]) {
  const uint head = group.x;
  const uint row = group.y;
  const uint context = a.position + row + 1;
  const uint span = part_tokens(context);
  const uint count = (context + span - 1) / span;
  device const float* from =
      parts + (((row * a.kv_heads + head / kGroupHeads) * kAttendParts) * kGroupHeads + head % kGroupHeads) *
                  kPartFloats;
  const uint stride = kGroupHeads * kPartFloats;
  float top = -INFINITY;
  for (uint part = 0; part < count; ++part) {
    top = max(top, from[part * stride + kHeadSize]);
  }
  float value = 0;
  float sum = 0;
  for (uint part = 0; part < count; ++part) {
    const float factor = exp(from[part * stride + kHeadSize] - top);
    value += factor * from[part * stride + t];
    sum += factor * from[part * stride + kHeadSize + 1];
  }
  const float gate = q[((row * a.q_heads + head) * 2 + 1) * kHeadSize + t];
  heads[(row * a.q_heads + head) * kHeadSize + t] = value / sum * sigmoid_of(gate);
}
