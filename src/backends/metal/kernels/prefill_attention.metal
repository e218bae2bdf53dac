// Attention of many rows of a sequence (equations 8 and 9): a threadgroup takes kQueryTokens rows with the
// eight query heads of a key-value head, 32 rows of queries, and goes over the keys kKeyTokens at a time with
// a running largest score and sum.
#include <metal_simdgroup_matrix>
#include <metal_stdlib>
using namespace metal;

#include "backends/metal/kernels/common.h"

constant constexpr uint kColumns = 64;  // of keys or values in threadgroup memory at a time
constant constexpr uint kColumnSteps = kHeadSize / kColumns;
constant constexpr uint kStride = kColumns + 4;
constant constexpr uint kScoreStride = kKeyTokens + 4;

struct Cache {
  device const ushort* pages;
  device const uint* table;
  uint which, kv_head;
};

// Columns [column, column + kColumns) of kKeyTokens keys or values as floats; 0 from position `end` on. 256
// threads, eight elements each.
inline void copy_tokens(threadgroup float* to, thread const Cache& cache, constant AttendArgs& a, uint3 at,
                        uint t) {
  // at: first position, end, column
  const uint position = at.x + t / 8;
  threadgroup float* row = to + t / 8 * kStride + t % 8 * 8;
  uint4 words = uint4(0u);
  if (position < at.y) {
    device const ushort* from =
        cache.pages + page_offset(a, cache.table[position / kPageTokens], cache.which, cache.kv_head) +
        position % kPageTokens * kHeadSize + at.z;
    words = ((device const uint4*)from)[t % 8];
  }
  for (uint i = 0; i < 4; ++i) {
    row[2 * i] = from_bf16(words[i] & 0xffffu);
    row[2 * i + 1] = as_type<float>(words[i] & 0xffff0000u);
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
  threadgroup float factors[kQueryTokens][64];  // on the diagonal of a matrix
  threadgroup float totals[kQueryTokens * kGroupHeads];
  const uint kv_head = group.x;
  const uint first_row = group.y * kQueryTokens;
  const uint end = a.position + min(first_row + kQueryTokens, a.rows);  // of the positions that are seen
  const Cache keys = {pages, table, 0, kv_head};
  const Cache values = {pages, table, 1, kv_head};
  const uint my_row = min(first_row + simd / 2, a.rows - 1);
  device const float* query = q + (my_row * a.q_heads + kv_head * kGroupHeads) * 2 * kHeadSize;
  factors[t / 64][t % 64] = 0.0f;
  simdgroup_float8x8 sums[kColumnSteps * 4];
  for (uint i = 0; i < kColumnSteps * 4; ++i) {
    sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  // Softmax: SIMD group s has rows 4 s to 4 s + 3 of the scores, a thread one key of each.
  const uint softmax_row = min(first_row + simd / 2, a.rows - 1);
  float largest[4];
  float total[4];
  for (uint r = 0; r < 4; ++r) {
    largest[r] = -INFINITY;
    total[r] = 0;
  }
  for (uint first = 0; first < end; first += kKeyTokens) {
    simdgroup_float8x8 products[2];
    for (uint c = 0; c < 2; ++c) {
      products[c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    for (uint step = 0; step < kColumnSteps; ++step) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      copy_tokens(tokens, keys, a, uint3(first, end, step * kColumns), t);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (uint depth = 0; depth < kColumns; depth += 8) {
        simdgroup_float8x8 rows;
        simdgroup_load(rows, query + step * kColumns + depth, 2 * kHeadSize);
        for (uint c = 0; c < 2; ++c) {
          simdgroup_float8x8 columns;
          simdgroup_load(columns, tokens + (simd % 2 * 16 + c * 8) * kStride + depth, kStride, ulong2(0),
                         true);
          simdgroup_multiply_accumulate(products[c], rows, columns, products[c]);
        }
      }
    }
    for (uint c = 0; c < 2; ++c) {
      simdgroup_store(products[c], scores + simd / 2 * 8 * kScoreStride + simd % 2 * 16 + c * 8,
                      kScoreStride);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint r = 0; r < 4; ++r) {
      const uint row = simd * 4 + r;
      threadgroup float* score = scores + row * kScoreStride + lane;
      const bool seen = first + lane <= a.position + softmax_row;
      const float mine = seen ? *score * (1.0f / 16.0f) : -INFINITY;
      const float top = max(largest[r], simd_max(mine));
      const float weight = exp(mine - top);
      const float factor = exp(largest[r] - top);
      *score = weight;
      total[r] = total[r] * factor + simd_sum(weight);
      largest[r] = top;
      if (lane == 0) {
        factors[row / 8][row % 8 * 9] = factor;
        totals[row] = total[r];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_float8x8 factor;
    simdgroup_load(factor, factors[simd / 2], 8);
    for (uint step = 0; step < kColumnSteps; ++step) {
      if (step > 0) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
      copy_tokens(tokens, values, a, uint3(first, end, step * kColumns), t);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (uint c = 0; c < 4; ++c) {
        simdgroup_multiply(sums[step * 4 + c], factor, sums[step * 4 + c]);
      }
      for (uint depth = 0; depth < kKeyTokens; depth += 8) {
        simdgroup_float8x8 weights;
        simdgroup_load(weights, scores + simd / 2 * 8 * kScoreStride + depth, kScoreStride);
        for (uint c = 0; c < 4; ++c) {
          simdgroup_float8x8 columns;
          simdgroup_load(columns, tokens + depth * kStride + simd % 2 * 32 + c * 8, kStride);
          simdgroup_multiply_accumulate(sums[step * 4 + c], weights, columns, sums[step * 4 + c]);
        }
      }
    }
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
        const uint head = row * a.q_heads + kv_head * kGroupHeads + r % kGroupHeads;
        const uint column = step * kColumns + i % kColumns;
        const float gate = q[(head * 2 + 1) * kHeadSize + column];
        heads[head * kHeadSize + column] = tokens[r * kStride + i % kColumns] / totals[r] * sigmoid_of(gate);
      }
    }
  }
}
