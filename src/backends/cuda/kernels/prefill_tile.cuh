// The product at the heart of prefill: 256 outputs x up to 128 tokens per block of 256 threads. Weights are
// the A operand: every warp reads the tiles of its own two 16-row blocks straight from global memory and
// decodes them in registers, so that a code is decoded once per block and never written anywhere. Activations
// are the B operand: 64 inputs of all tokens per stage in shared memory, four stages deep. On sm_90a the
// product is wgmma, elsewhere mma.sync; accumulators lie the same way in both.
#pragma once

#include <type_traits>

#include "backends/cuda/kernels/prefill_mma.cuh"
#include "backends/cuda/kernels/prefill_weights.cuh"

namespace lily::cuda::prefill {

constexpr int kTileThreads = 256;
constexpr int kTileOutputs = 256;
constexpr int kTileBlocks = kTileOutputs / 16;  // of rows; warp w has blocks 2 w and 2 w + 1
constexpr int kStages = 4;
// Shared memory of a block that works on up to `tokens` tokens at a time.
constexpr int tile_shared_bytes(int tokens) { return kStages * tokens * 128; }

// What a thread copies of the tokens' rows: chunk (thread % 8) of rows thread / 8 + 32 i.
template <int kTokens>
struct TokenRows {
  const __nv_bfloat16* source[kTokens / 32];
  uint32_t valid = 0;  // bit i: source[i] is a token, not padding
};

// The first `count` of kTokens rows come from the row numbers that `row_of(i)` gives; the others are zeros.
template <int kTokens, typename RowOf>
__device__ __forceinline__ TokenRows<kTokens> token_rows(const __nv_bfloat16* x, uint32_t width,
                                                         uint32_t count, const RowOf& row_of) {
  TokenRows<kTokens> rows;
#pragma unroll
  for (int i = 0; i < kTokens / 32; ++i) {
    const uint32_t index = threadIdx.x / 8 + 32 * i;
    const bool valid = index < count;
    rows.valid |= (valid ? 1U : 0U) << i;
    rows.source[i] = x + (valid ? size_t{row_of(index)} * width : 0) + (threadIdx.x % 8) * 8;
  }
  return rows;
}

template <int kTokens>
__device__ __forceinline__ void copy_stage(const TokenRows<kTokens>& rows, uint32_t shared,
                                           uint32_t depth_tile) {
  const uint32_t to =
      shared + (depth_tile % kStages) * (kTokens * 128) + swizzled(threadIdx.x / 8, threadIdx.x % 8);
#pragma unroll
  for (int i = 0; i < kTokens / 32; ++i) {
    copy_async(to + i * 4096, rows.source[i] + size_t{depth_tile} * 64, (rows.valid >> i & 1) != 0);
  }
}

// One step of 16 inputs for both row blocks of a warp.
template <int kTokens>
__device__ __forceinline__ void multiply_step(float (&sums)[2][kTokens / 2], const uint32_t (&a)[2][4],
                                              uint32_t stage, int step) {
#if LILY_WGMMA
  wgmma_fence();
  const uint64_t b = k_major_descriptor(stage + step * 32);
  WgmmaRegisters<kTokens, false>::run(sums[0], a[0], b);
  WgmmaRegisters<kTokens, false>::run(sums[1], a[1], b);
  wgmma_commit();
  wgmma_wait<1>();
#else
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t row = lane % 8 + (lane / 16) * 8;
  const uint32_t chunk = step * 2 + lane / 8 % 2;
#pragma unroll
  for (int j = 0; j < kTokens / 16; ++j) {
    uint32_t b[4];
    load_matrix_x4(b, stage + j * 2048 + swizzled(row, chunk));
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      mma(&sums[m][8 * j], a[m], b[0], b[1]);
      mma(&sums[m][8 * j + 4], a[m], b[2], b[3]);
    }
  }
#endif
}

// sums += W x over `depth_tiles` tiles of 64 inputs. `weights`: the first tile of this warp's row blocks. A
// warp group with kActive false only helps to copy. Starts and ends with all shared memory free.
template <int kTokens, Form kForm, bool kActive>
__device__ __forceinline__ void multiply_loop(float (&sums)[2][kTokens / 2], const RowBlock (&weights)[2],
                                              uint32_t depth_tiles, const TokenRows<kTokens>& rows,
                                              uint32_t shared) {
  using Tile = WeightTile<kForm>;
  constexpr uint32_t kAhead = kForm == Form::any ? 1 : kTokens <= 32 ? 3 : 2;  // weight tiles in flight
  Tile ahead[kAhead][2];
#pragma unroll
  for (uint32_t i = 0; i < kAhead; ++i) {
    if constexpr (kActive) {
      ahead[i][0].load(weights[0], min(i, depth_tiles - 1));
      ahead[i][1].load(weights[1], min(i, depth_tiles - 1));
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < kStages - 2; ++i) {
    if (i < depth_tiles) {
      copy_stage<kTokens>(rows, shared, i);
    }
    copy_commit();
  }
  for (uint32_t depth = 0; depth < depth_tiles; ++depth) {
    // Stage `depth` has landed for this thread, after the barrier for all; and all have finished depth - 2,
    // whose place the next copy takes.
    copy_wait<kStages - 3>();
    publish_to_tensor_cores();
    __syncthreads();
    if (depth + kStages - 2 < depth_tiles) {
      copy_stage<kTokens>(rows, shared, depth + kStages - 2);
    }
    copy_commit();
    if constexpr (kActive) {
      const Tile now[2] = {ahead[0][0], ahead[0][1]};
#pragma unroll
      for (uint32_t i = 0; i + 1 < kAhead; ++i) {
        ahead[i][0] = ahead[i + 1][0];
        ahead[i][1] = ahead[i + 1][1];
      }
      const uint32_t next = min(depth + kAhead, depth_tiles - 1);
      ahead[kAhead - 1][0].load(weights[0], next);
      ahead[kAhead - 1][1].load(weights[1], next);
      const uint32_t stage = shared + (depth % kStages) * (kTokens * 128);
      uint32_t a[2][2][4];
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        now[0].decode(step, a[step % 2][0]);
        now[1].decode(step, a[step % 2][1]);
        multiply_step<kTokens>(sums, a[step % 2], stage, step);
      }
    }
  }
#if LILY_WGMMA
  if constexpr (kActive) {
    wgmma_wait<0>();
  }
#endif
  copy_wait<0>();
  __syncthreads();
}

template <int kTokens, Form kForm>
__device__ __forceinline__ void multiply(float (&sums)[2][kTokens / 2], const RowBlock (&weights)[2],
                                         uint32_t depth_tiles, const TokenRows<kTokens>& rows,
                                         uint32_t shared, bool active) {
  if (active) {
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      sums[0][i] = 0;
      sums[1][i] = 0;
    }
    multiply_loop<kTokens, kForm, true>(sums, weights, depth_tiles, rows, shared);
  } else {
    multiply_loop<kTokens, kForm, false>(sums, weights, depth_tiles, rows, shared);
  }
}

// Calls store(token, output pair's first row within the 16, value of both) for a 16 x kTokens block of sums,
// as bf16 pairs of neighbouring outputs: a warp's calls fill 32-byte sectors of rows of outputs.
template <int kTokens, typename Store>
__device__ __forceinline__ void for_each_pair(const float (&sums)[kTokens / 2], const Store& store) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    const uint32_t low = transpose_8x8(pack_bf16(sums[4 * j], sums[4 * j + 1]));
    const uint32_t high = transpose_8x8(pack_bf16(sums[4 * j + 2], sums[4 * j + 3]));
    store(8 * j + lane / 4, lane % 4 * 2, low);
    store(8 * j + lane / 4, lane % 4 * 2 + 8, high);
  }
}

// Calls store(token, row within the 16, sum) for every sum: 8 lanes of a warp have neighbouring rows.
template <int kTokens, typename Store>
__device__ __forceinline__ void for_each_sum(const float (&sums)[kTokens / 2], const Store& store) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) {
    store(8 * (i / 4) + lane % 4 * 2 + i % 2, lane / 4 + i % 4 / 2 * 8, sums[i]);
  }
}

}  // namespace lily::cuda::prefill
