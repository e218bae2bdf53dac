// Attention of many rows of a sequence (equations 8 and 9): a threadgroup takes kQueryTokens rows with the
// eight query heads of a key-value head, 32 rows of queries, and goes over the keys kKeyTokens at a time with
// a running largest score and sum.
#include <metal_simdgroup_matrix>
#include <metal_stdlib>
using namespace metal;

#include "backends/metal/kernels/cache.h"

constant constexpr uint kColumns = 64;  // of keys or values in threadgroup memory at a time
constant constexpr uint kColumnSteps = kHeadSize / kColumns;
constant constexpr uint kStride = kColumns + 4;
constant constexpr uint kScoreStride = kKeyTokens + 4;

// Columns [column, + kColumns) of kKeyTokens keys (which 0) or values (1) as floats; 0 from position `end`
// on. 256 threads, eight elements each.
struct Tokens {
  uint which, first, end, column;
};
inline void copy_tokens(threadgroup float* to, thread const Cache& cache, constant AttendArgs& a,
                        thread const Tokens& tokens, uint t) {
  const uint position = tokens.first + t / 8;
  threadgroup float* row = to + t / 8 * kStride + t % 8 * 8;
  uint4 words = uint4(0u);
  if (position < tokens.end) {
    words = ((device const uint4*)(cached(cache, a, tokens.which, position) + tokens.column))[t % 8];
  }
  for (uint i = 0; i < 4; ++i) {
    row[2 * i] = from_bf16(words[i] & 0xffffu);
    row[2 * i + 1] = as_type<float>(words[i] & 0xffff0000u);
  }
}

// The running softmax of four rows of scores, a thread having one key of each. SIMD group s has rows 4 s to
// 4 s + 3, which are of one token.
struct Softmax {
  float largest[4];
  float total[4];
};
inline void weigh(threadgroup float* scores, threadgroup float* factors, thread Softmax& softmax, bool seen,
                  uint simd, uint lane) {
  for (uint r = 0; r < 4; ++r) {
    const uint row = simd * 4 + r;
    threadgroup float* score = scores + row * kScoreStride + lane;
    const float mine = seen ? *score * (1.0f / 16.0f) : -INFINITY;
    const float top = max(softmax.largest[r], simd_max(mine));
    const float weight = exp(mine - top);
    const float factor = exp(softmax.largest[r] - top);
    *score = weight;
    softmax.total[r] = softmax.total[r] * factor + simd_sum(weight);
    softmax.largest[r] = top;
    if (lane == 0) {
      factors[row / 8 * 64 + row % 8 * 9] = factor;
    }
  }
}

// Query times keys: `tokens` holds columns of the keys. Adds to two matrices of scores.
inline void multiply_keys(device const float* query, threadgroup const float* tokens,
                          thread simdgroup_float8x8* products, uint simd) {
  for (uint depth = 0; depth < kColumns; depth += 8) {
    simdgroup_float8x8 rows;
    simdgroup_load(rows, query + depth, 2 * kHeadSize);
    for (uint c = 0; c < 2; ++c) {
      simdgroup_float8x8 columns;
      simdgroup_load(columns, tokens + (simd % 2 * 16 + c * 8) * kStride + depth, kStride, ulong2(0), true);
      simdgroup_multiply_accumulate(products[c], rows, columns, products[c]);
    }
  }
}

// sums = factor * sums + weights times values, four matrices.
inline void multiply_values(threadgroup const float* scores, threadgroup const float* factors,
                            threadgroup const float* tokens, thread simdgroup_float8x8* sums, uint simd) {
  simdgroup_float8x8 factor;
  simdgroup_load(factor, factors + simd / 2 * 64, 8);
  for (uint c = 0; c < 4; ++c) {
    simdgroup_multiply(sums[c], factor, sums[c]);
  }
  for (uint depth = 0; depth < kKeyTokens; depth += 8) {
    simdgroup_float8x8 weights;
    simdgroup_load(weights, scores + simd / 2 * 8 * kScoreStride + depth, kScoreStride);
    for (uint c = 0; c < 4; ++c) {
      simdgroup_float8x8 columns;
      simdgroup_load(columns, tokens + depth * kStride + simd % 2 * 32 + c * 8, kStride);
      simdgroup_multiply_accumulate(sums[c], weights, columns, sums[c]);
    }
  }
}

// Row r of a group's queries is token r / 8, head r % 8. SIMD group s has rows 8 (s / 2), that is one token;
// of the scores keys 16 (s % 2), of the values columns 32 (s % 2) of each step. Groups: (kv_heads, rows /
// kQueryTokens); 256 threads.
kernel void attend_many(device const float* q [[buffer(0)]], device const ushort* pages [[buffer(1)]],
                        device const uint* table [[buffer(2)]], device float* heads [[buffer(3)]],
                        constant AttendArgs& a [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                        uint t [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float tokens[kKeyTokens * kStride];
  threadgroup float scores[kQueryTokens * kGroupHeads * kScoreStride];
  threadgroup float factors[kQueryTokens * 64];  // on the diagonal of a matrix for each token
  threadgroup float totals[kQueryTokens * kGroupHeads];
  const uint first_row = group.y * kQueryTokens;
  const uint end = a.position + min(first_row + kQueryTokens, a.rows);  // of the positions that are seen
  const Cache cache = {pages, table, group.x};
  const uint my_row = min(first_row + simd / 2, a.rows - 1);
  device const float* query = q + (my_row * a.q_heads + group.x * kGroupHeads) * 2 * kHeadSize;
  factors[t] = 0.0f;
  simdgroup_float8x8 sums[kColumnSteps * 4];
  for (uint i = 0; i < kColumnSteps * 4; ++i) {
    sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  Softmax softmax;
  for (uint r = 0; r < 4; ++r) {
    softmax.largest[r] = -INFINITY;
    softmax.total[r] = 0;
  }
  for (uint first = 0; first < end; first += kKeyTokens) {
    simdgroup_float8x8 products[2];
    for (uint c = 0; c < 2; ++c) {
      products[c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    for (uint step = 0; step < kColumnSteps; ++step) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      const Tokens keys = {0, first, end, step * kColumns};
      copy_tokens(tokens, cache, a, keys, t);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      multiply_keys(query + step * kColumns, tokens, products, simd);
    }
    for (uint c = 0; c < 2; ++c) {
      simdgroup_store(products[c], scores + simd / 2 * 8 * kScoreStride + simd % 2 * 16 + c * 8,
                      kScoreStride);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    weigh(scores, factors, softmax, first + lane <= a.position + my_row, simd, lane);
    for (uint step = 0; step < kColumnSteps; ++step) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      const Tokens values = {1, first, end, step * kColumns};
      copy_tokens(tokens, cache, a, values, t);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      multiply_values(scores, factors, tokens, sums + step * 4, simd);
    }
  }
  if (lane < 4) {
    totals[simd * 4 + lane] = softmax.total[lane];
  }
  for (uint step = 0; step < kColumnSteps; ++step) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint c = 0; c < 4; ++c) {
      simdgroup_store(sums[step * 4 + c], tokens + simd / 2 * 8 * kStride + simd % 2 * 32 + c * 8, kStride);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = t; i < kQueryTokens * kGroupHeads * kColumns; i += 256) {
      const uint r = i / kColumns;
      const uint row = first_row + r / kGroupHeads;
      if (row < a.rows) {
        const uint head = row * a.q_heads + group.x * kGroupHeads + r % kGroupHeads;
        const uint column = step * kColumns + i % kColumns;
        const float gate = q[(head * 2 + 1) * kHeadSize + column];
        heads[head * kHeadSize + column] = tokens[r * kStride + i % kColumns] / totals[r] * sigmoid_of(gate);
      }
    }
  }
}
