// The delta net over many rows of a sequence, in chunks of kDeltaChunk tokens (docs/NUMERICS.md). With G_i
// the sum of g up to token i of a chunk and S the state before it:
//   A_ij = beta_i exp(G_i - G_j) k_i.k_j below the diagonal, P_ij = exp(G_i - G_j) q_i.k_j up to it,
//   u = (I + A)^-1 (beta v), w = (I + A)^-1 (beta exp(G) k), d = u - w S,
//   o = exp(G) q S + P d,    S <- exp(G_end) S + sum of exp(G_end - G_j) k_j d_j^T.
// Everything up to u and w is made for all chunks at once; only the last line waits for the chunk before.
#include <metal_simdgroup_matrix>
#include <metal_stdlib>
using namespace metal;

#include "backends/metal/kernels/delta.h"

constant constexpr uint kHalf = 64;  // columns of k and q in threadgroup memory at a time
constant constexpr uint kHalfStride = kHalf + 4;
constant constexpr uint kPairStride = kDeltaChunk + 4;
constant constexpr uint kChunkFloats = kDeltaChunk * kDeltaSize;  // of one chunk and head

// Convolution of a row, and norms of q and k (equations 11 and 14): a SIMD group takes 128 channels, which is
// a head of q, k or v. `out` is [rows][channels]. Groups: (channels / 1024, rows); 256 threads.
kernel void chunk_conv(device const float* mixed [[buffer(0)]], device const float* before [[buffer(1)]],
                       device const float* taps [[buffer(2)]], device float* out [[buffer(3)]],
                       constant DeltaArgs& a [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                       uint simd [[simdgroup_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
  const uint unit = group.x * 8 + simd;
  const uint row = group.y;
  if (unit >= 2 * a.k_heads + a.v_heads) {
    return;
  }
  const uint channels = (2 * a.k_heads + a.v_heads) * kDeltaSize;
  float x[kDeltaSize / 32];
  float squares = 0;
  for (uint i = 0; i < kDeltaSize / 32; ++i) {
    const uint channel = unit * kDeltaSize + lane + 32 * i;
    x[i] = convolved(mixed, before, ((device const float4*)taps)[channel], channels, channel, row);
    squares += x[i] * x[i];
  }
  float factor = 1.0f;
  if (unit < 2 * a.k_heads) {
    factor = (unit < a.k_heads ? 1.0f / sqrt(float(kDeltaSize)) : 1.0f) / sqrt(simd_sum(squares) + kEpsilon);
  }
  for (uint i = 0; i < kDeltaSize / 32; ++i) {
    out[row * channels + unit * kDeltaSize + lane + 32 * i] = x[i] * factor;
  }
}

struct ChunkRows {
  device const float* qkv;  // of the chunk's first row
  uint channels, rows;
};

// Columns [first, first + kHalf) of 32 rows of a head; rows past the end are 0. 256 threads, eight each.
inline void copy_half(threadgroup float* to, thread const ChunkRows& chunk, uint column, uint t) {
  const uint row = t / 8;
  for (uint i = 0; i < 8; ++i) {
    const uint at = t % 8 + 8 * i;
    to[row * kHalfStride + at] = row < chunk.rows ? chunk.qkv[row * chunk.channels + column + at] : 0.0f;
  }
}

// Column t of u (t < 128), or column t - 128 of -w, by forward substitution in registers.
inline void solve_column(threadgroup const float* pairs, threadgroup const float* betas,
                         threadgroup const float* growth, thread const ChunkRows& chunk, uint2 columns,
                         device float* out) {
  // columns.x: in qkv; columns.y: 1 for w, whose right side has exp(G) and a minus
  float x[kDeltaChunk];
#pragma unroll
  for (uint i = 0; i < kDeltaChunk; ++i) {
    float right = i < chunk.rows ? betas[i] * chunk.qkv[i * chunk.channels + columns.x] : 0.0f;
    right *= columns.y == 1 ? -growth[i] : 1.0f;
#pragma unroll
    for (uint j = 0; j < i; ++j) {
      right -= pairs[i * kPairStride + j] * x[j];
    }
    x[i] = right;
  }
  for (uint i = 0; i < kDeltaChunk; ++i) {
    out[i * kDeltaSize] = x[i];
  }
}

// k k^T and q k^T of a chunk. SIMD group s has rows 8 (s / 2) and columns 16 (s % 2) of both.
struct Pairs {
  threadgroup float* keys;  // columns of k and q, kHalf at a time
  threadgroup float* queries;
  threadgroup float* of_keys;  // the results
  threadgroup float* of_queries;
};
inline void multiply_pairs(thread const Pairs& pairs, thread const ChunkRows& chunk, uint2 k_q_column, uint t,
                           uint simd) {
  simdgroup_float8x8 sums[4];
  for (uint i = 0; i < 4; ++i) {
    sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (uint column = 0; column < kDeltaSize; column += kHalf) {
    copy_half(pairs.keys, chunk, k_q_column.x + column, t);
    copy_half(pairs.queries, chunk, k_q_column.y + column, t);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint depth = 0; depth < kHalf; depth += 8) {
      simdgroup_float8x8 k_rows;
      simdgroup_float8x8 q_rows;
      simdgroup_load(k_rows, pairs.keys + simd / 2 * 8 * kHalfStride + depth, kHalfStride);
      simdgroup_load(q_rows, pairs.queries + simd / 2 * 8 * kHalfStride + depth, kHalfStride);
      for (uint c = 0; c < 2; ++c) {
        simdgroup_float8x8 columns;
        simdgroup_load(columns, pairs.keys + (simd % 2 * 16 + c * 8) * kHalfStride + depth, kHalfStride,
                       ulong2(0), true);
        simdgroup_multiply_accumulate(sums[c], k_rows, columns, sums[c]);
        simdgroup_multiply_accumulate(sums[2 + c], q_rows, columns, sums[2 + c]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (uint c = 0; c < 2; ++c) {
    const uint at = simd / 2 * 8 * kPairStride + simd % 2 * 16 + c * 8;
    simdgroup_store(sums[c], pairs.of_keys + at, kPairStride);
    simdgroup_store(sums[2 + c], pairs.of_queries + at, kPairStride);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// One chunk of one value head. u, w (with a minus), exp(G) q and exp(G_end - G) k are [chunk][head][32][128],
// P [chunk][head][32][32], exp(G_end) [chunk][head]. Groups: (v_heads, chunks); 256 threads.
kernel void chunk_pairs(device const float* qkv [[buffer(0)]], device const float* ab [[buffer(1)]],
                        device const float* rates [[buffer(2)]], device const float* dt_bias [[buffer(3)]],
                        device float* u [[buffer(4)]], device float* w [[buffer(5)]],
                        device float* q_out [[buffer(6)]], device float* k_out [[buffer(7)]],
                        device float* p [[buffer(8)]], device float* decays [[buffer(9)]],
                        constant DeltaArgs& a [[buffer(10)]], uint3 group [[threadgroup_position_in_grid]],
                        uint t [[thread_index_in_threadgroup]],
                        uint simd [[simdgroup_index_in_threadgroup]]) {
  threadgroup float keys[kDeltaChunk * kHalfStride];
  threadgroup float queries[kDeltaChunk * kHalfStride];
  threadgroup float key_pairs[kDeltaChunk * kPairStride];
  threadgroup float query_pairs[kDeltaChunk * kPairStride];
  threadgroup float logs[kDeltaChunk];
  threadgroup float running[kDeltaChunk];  // G
  threadgroup float growth[kDeltaChunk];   // exp(G)
  threadgroup float betas[kDeltaChunk];
  const uint head = group.x;
  const uint first = chunk_first(a, group.y);
  const uint channels = (2 * a.k_heads + a.v_heads) * kDeltaSize;
  const ChunkRows chunk = {qkv + first * channels, channels, chunk_rows(a, group.y)};
  const uint q_column = head / (a.v_heads / a.k_heads) * kDeltaSize;
  const uint k_column = q_column + a.k_heads * kDeltaSize;
  const uint of_chunk = group.y * a.v_heads + head;
  if (t < kDeltaChunk) {
    const bool there = t < chunk.rows;
    const uint row = first + t;
    logs[t] = there ? log_decay(ab[row * 2 * a.v_heads + head], rates[head], dt_bias[head]) : 0.0f;
    betas[t] = there ? sigmoid_of(ab[(row * 2 + 1) * a.v_heads + head]) : 0.0f;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t < kDeltaChunk) {
    float sum = 0;
    for (uint i = 0; i <= t; ++i) {
      sum += logs[i];
    }
    running[t] = sum;
    growth[t] = exp(sum);
  }
  const Pairs pairs = {keys, queries, key_pairs, query_pairs};
  multiply_pairs(pairs, chunk, uint2(k_column, q_column), t, simd);
  for (uint i = t; i < kDeltaChunk * kDeltaChunk; i += 256) {
    const uint row = i / kDeltaChunk;
    const uint column = i % kDeltaChunk;
    const float decay = column <= row ? exp(running[row] - running[column]) : 0.0f;
    threadgroup float* pair = key_pairs + row * kPairStride + column;
    *pair = column < row ? betas[row] * decay * *pair : 0.0f;
    p[of_chunk * kDeltaChunk * kDeltaChunk + i] = decay * query_pairs[row * kPairStride + column];
  }
  for (uint i = t; i < kChunkFloats; i += 256) {
    const uint row = i / kDeltaSize;
    const uint column = i % kDeltaSize;
    const bool there = row < chunk.rows;
    device const float* of_row = chunk.qkv + row * channels;
    q_out[of_chunk * kChunkFloats + i] = there ? growth[row] * of_row[q_column + column] : 0.0f;
    k_out[of_chunk * kChunkFloats + i] =
        there ? exp(running[kDeltaChunk - 1] - running[row]) * of_row[k_column + column] : 0.0f;
  }
  if (t == 0) {
    decays[of_chunk] = growth[kDeltaChunk - 1];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint column = t % kDeltaSize;
  if (t < kDeltaSize) {
    const uint v_column = (2 * a.k_heads + head) * kDeltaSize;
    solve_column(key_pairs, betas, growth, chunk, uint2(v_column + column, 0),
                 u + of_chunk * kChunkFloats + column);
  } else {
    solve_column(key_pairs, betas, growth, chunk, uint2(k_column + column, 1),
                 w + of_chunk * kChunkFloats + column);
  }
}

constant constexpr uint kStateStride = kDeltaColumns + 4;

// The chunks in turn, for kDeltaColumns columns of the state of one head, which stay in threadgroup memory.
// `out` is [chunk][head][32][128]. SIMD group s has rows 8 (s / 2) and columns 16 (s % 2) of d and o, and
// rows 16 s of the state. Groups: (v_heads, 128 / kDeltaColumns); 256 threads.
kernel void chunk_scan(device const float* u [[buffer(0)]], device const float* w [[buffer(1)]],
                       device const float* q [[buffer(2)]], device const float* k [[buffer(3)]],
                       device const float* p [[buffer(4)]], device const float* decays [[buffer(5)]],
                       device float* states [[buffer(6)]], device float* out [[buffer(7)]],
                       constant DeltaArgs& a [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
                       uint t [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
  threadgroup float state[kDeltaSize * kStateStride];
  threadgroup float changes[kDeltaChunk * kStateStride];
  threadgroup float scale[64];  // exp(G_end) on the diagonal of a matrix
  const uint head = group.x;
  const uint first_column = group.y * kDeltaColumns;
  device float* of_head = states + head * kDeltaSize * kDeltaSize + first_column;
  for (uint i = t; i < kDeltaSize * kDeltaColumns; i += 256) {
    state[i / kDeltaColumns * kStateStride + i % kDeltaColumns] =
        of_head[i / kDeltaColumns * kDeltaSize + i % kDeltaColumns];
  }
  const uint rows = simd / 2 * 8;
  const uint columns = simd % 2 * 16;
  for (uint chunk = 0; chunk < a.chunks; ++chunk) {
    const uint of_chunk = chunk * a.v_heads + head;
    const uint at = of_chunk * kChunkFloats + rows * kDeltaSize;
    if (t < 64) {
      scale[t] = t % 9 == 0 ? decays[of_chunk] : 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_float8x8 d[2];
    simdgroup_float8x8 o[2];
    for (uint c = 0; c < 2; ++c) {
      simdgroup_load(d[c], u + at + first_column + columns + c * 8, kDeltaSize);
      o[c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    for (uint depth = 0; depth < kDeltaSize; depth += 8) {
      simdgroup_float8x8 w_rows;
      simdgroup_float8x8 q_rows;
      simdgroup_load(w_rows, w + at + depth, kDeltaSize);
      simdgroup_load(q_rows, q + at + depth, kDeltaSize);
      for (uint c = 0; c < 2; ++c) {
        simdgroup_float8x8 s;
        simdgroup_load(s, state + depth * kStateStride + columns + c * 8, kStateStride);
        simdgroup_multiply_accumulate(d[c], w_rows, s, d[c]);
        simdgroup_multiply_accumulate(o[c], q_rows, s, o[c]);
      }
    }
    for (uint c = 0; c < 2; ++c) {
      simdgroup_store(d[c], changes + rows * kStateStride + columns + c * 8, kStateStride);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint depth = 0; depth < kDeltaChunk; depth += 8) {
      simdgroup_float8x8 weights;
      simdgroup_load(weights, p + (of_chunk * kDeltaChunk + rows) * kDeltaChunk + depth, kDeltaChunk);
      for (uint c = 0; c < 2; ++c) {
        simdgroup_float8x8 change;
        simdgroup_load(change, changes + depth * kStateStride + columns + c * 8, kStateStride);
        simdgroup_multiply_accumulate(o[c], weights, change, o[c]);
      }
    }
    for (uint c = 0; c < 2; ++c) {
      simdgroup_store(o[c], out + at + first_column + columns + c * 8, kDeltaSize);
    }
    simdgroup_float8x8 decay;
    simdgroup_load(decay, scale, 8);
    for (uint r = simd * 16; r < simd * 16 + 16; r += 8) {
      for (uint c = 0; c < kDeltaColumns; c += 8) {
        simdgroup_float8x8 s;
        simdgroup_load(s, state + r * kStateStride + c, kStateStride);
        simdgroup_multiply(s, decay, s);
        for (uint depth = 0; depth < kDeltaChunk; depth += 8) {
          simdgroup_float8x8 k_columns;
          simdgroup_float8x8 change;
          simdgroup_load(k_columns, k + of_chunk * kChunkFloats + depth * kDeltaSize + r, kDeltaSize,
                         ulong2(0), true);
          simdgroup_load(change, changes + depth * kStateStride + c, kStateStride);
          simdgroup_multiply_accumulate(s, k_columns, change, s);
        }
        simdgroup_store(s, state + r * kStateStride + c, kStateStride);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (uint i = t; i < kDeltaSize * kDeltaColumns; i += 256) {
    of_head[i / kDeltaColumns * kDeltaSize + i % kDeltaColumns] =
        state[i / kDeltaColumns * kStateStride + i % kDeltaColumns];
  }
}

// Equation 17: a SIMD group for a head of a row. Groups: (v_heads / 8, rows); 256 threads.
kernel void chunk_finish(device const float* out [[buffer(0)]], device const float* z [[buffer(1)]],
                         device const float* norm [[buffer(2)]], device float* heads [[buffer(3)]],
                         constant DeltaArgs& a [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                         uint simd [[simdgroup_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]]) {
  const uint head = group.x * 8 + simd;
  const uint row = group.y;
  const uint chunk = row < a.first_rows ? 0 : 1 + (row - a.first_rows) / kDeltaChunk;
  const uint in_chunk = row - chunk_first(a, chunk);
  device const float* from = out + ((chunk * a.v_heads + head) * kDeltaChunk + in_chunk) * kDeltaSize;
  float x[kDeltaSize / 32];
  float squares = 0;
  for (uint i = 0; i < kDeltaSize / 32; ++i) {
    x[i] = from[lane + 32 * i];
    squares += x[i] * x[i];
  }
  const float factor = norm_factor(simd_sum(squares), kDeltaSize);
  for (uint i = 0; i < kDeltaSize / 32; ++i) {
    const uint column = lane + 32 * i;
    const uint at = (row * a.v_heads + head) * kDeltaSize + column;
    heads[at] = x[i] * factor * norm[column] * silu_of(z[at]);
  }
}
