// The product at the heart of prefill: 256 outputs x up to 128 tokens per block of 256 threads. Weights are
// the A operand: every warp reads the tiles of its own two 16-row blocks straight from global memory and
// decodes them in registers, so that a code is decoded once per block and never written anywhere. Activations
// are the B operand: 64 inputs of all tokens per stage in shared memory, several stages deep. On sm_90a the
// product is wgmma, elsewhere mma.sync; accumulators lie the same way in both.
#pragma once

#include "backends/cuda/kernels/prefill_mma.cuh"
#include "backends/cuda/kernels/prefill_weights.cuh"

namespace lily::cuda::prefill {

constexpr int kTileThreads = 256;
constexpr int kTileOutputs = 256;
constexpr int kTileBlocks = kTileOutputs / 16;  // of rows; warp w has blocks 2 w and 2 w + 1
// Stages of tokens in shared memory: all that leaves a block on a multiprocessor of 99 KiB.
constexpr uint32_t stages_of(int tokens) { return tokens <= 96 ? 8 : 4; }
// Shared memory of a block that works on up to `tokens` tokens at a time.
constexpr int tile_shared_bytes(int tokens) { return static_cast<int>(stages_of(tokens)) * tokens * 128; }

// Blocks at a time on a multiprocessor: two where their registers allow it.
constexpr int blocks_per_processor(int tokens, Form form) {
  return tokens <= 32 && form == Form::narrow4 ? 2 : 1;
}

// What a thread copies of the tokens' rows: chunk (thread % 8) of rows thread / 8 + 32 i.
template <int kTokens>
struct TokenRows {
  uint32_t source[kTokens / 32];  // in chunks of eight values from the start of the activations
  uint32_t valid;                 // bit i: source[i] is a token, not padding
};

// The first `count` of kTokens rows are those whose numbers `row_of(i)` gives; the others are zeros.
template <int kTokens, typename RowOf>
__device__ __forceinline__ TokenRows<kTokens> token_rows(uint32_t width, uint32_t count,
                                                         const RowOf& row_of) {
  TokenRows<kTokens> rows;
  rows.valid = 0;
#pragma unroll
  for (int i = 0; i < kTokens / 32; ++i) {
    const uint32_t index = threadIdx.x / 8 + 32 * i;
    const bool valid = index < count;
    rows.valid |= (valid ? 1U : 0U) << i;
    rows.source[i] = (valid ? row_of(index) * (width / 8) : 0) + threadIdx.x % 8;
  }
  return rows;
}

template <int kTokens>
__device__ __forceinline__ void copy_stage(const TokenRows<kTokens>& rows, const uint16_t* x, uint32_t stage,
                                           uint32_t depth) {
  const uint32_t to = stage + swizzled(threadIdx.x / 8, threadIdx.x % 8);
#pragma unroll
  for (int i = 0; i < kTokens / 32; ++i) {
    copy_async(to + i * 4096, x + size_t{rows.source[i] + depth * 8} * 8, (rows.valid >> i & 1) != 0);
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

// What a block multiplies at once: its tokens and, for each warp, the weights of its two row blocks.
template <int kTokens>
struct Operands {
  TokenRows<kTokens> rows;
  RowBlock weights[2];
};

// Weight tiles on their way from memory. Their registers are named by constants (loops over the slots are
// unrolled): a tile that moved from one register to another would have to have arrived first.
template <int kTokens, Form kForm>
struct TilesAhead {
  static constexpr uint32_t kCount = kForm == Form::any ? 1 : kTokens <= 96 ? 4 : 2;
  WeightTile<kForm> tile[kCount][2];

  __device__ __forceinline__ void load(uint32_t slot, const Operands<kTokens>& operands, uint32_t depth) {
    tile[slot][0].load(operands.weights[0], depth);
    tile[slot][1].load(operands.weights[1], depth);
  }
  // Fragments of both row blocks for 16 inputs.
  __device__ __forceinline__ void decode(uint32_t slot, int step, uint32_t (&a)[2][4]) const {
    tile[slot][0].decode(step, a[0]);
    tile[slot][1].decode(step, a[1]);
  }
};

// Works through items blockIdx.x, + gridDim.x, ... below `items`. Work has
//   x, depth_tiles          the activations, and tiles of 64 inputs of a row of weights
//   operands(item)          -> Operands<kTokens>
//   store(item, sums)       takes W x of this warp's row blocks
// An item's first tokens and weights are on their way while the item before is still at work. Without kFollow
// a block has one item: where an item is long, the addresses of two cost more than the wait.
template <int kTokens, Form kForm, bool kFollow, typename Work>
__device__ __forceinline__ void run_items(const Work& work, uint32_t items, uint32_t shared) {
  using Ahead = TilesAhead<kTokens, kForm>;
  constexpr uint32_t kStages = stages_of(kTokens);
  constexpr uint32_t kStageBytes = kTokens * 128;
  const uint32_t depth_tiles = work.depth_tiles;
  // Whether slots and stages of one item follow on those of the item before.
  const bool follows = depth_tiles % Ahead::kCount == 0 && depth_tiles >= kStages - 2;
  if (blockIdx.x >= items) {
    return;
  }
  Operands<kTokens> now = work.operands(blockIdx.x);
  Ahead ahead;
  uint32_t turn = 0;  // tiles of depth since the start
  const auto begin = [&] {
#pragma unroll
    for (uint32_t i = 0; i < Ahead::kCount; ++i) {
      ahead.load(i, now, min(i, depth_tiles - 1));
    }
#pragma unroll
    for (uint32_t i = 0; i < kStages - 2; ++i) {
      if (i < depth_tiles) {
        copy_stage<kTokens>(now.rows, work.x, shared + (turn + i) % kStages * kStageBytes, i);
      }
      copy_commit();
    }
  };
  begin();
  for (uint32_t item = blockIdx.x;;) {
    const bool more = kFollow && item + gridDim.x < items;
    const bool next_follows = more && follows;
    const Operands<kTokens> next = more ? work.operands(item + gridDim.x) : now;
    float sums[2][kTokens / 2] = {};
    for (uint32_t first = 0; first < depth_tiles; first += Ahead::kCount) {
#pragma unroll
      for (uint32_t slot = 0; slot < Ahead::kCount; ++slot, ++turn) {
        const uint32_t depth = first + slot;
        if (depth >= depth_tiles) {
          break;
        }
        const uint32_t stage = shared + turn % kStages * kStageBytes;
        uint32_t a[2][2][4];  // two steps: one is decoded while wgmma reads the other
        ahead.decode(slot, 0, a[0]);
        // Stage `turn` has landed for this thread, after the barrier for all; and all have finished turn - 2,
        // whose place the next copy takes.
        copy_wait<kStages - 3>();
        publish_to_tensor_cores();
        __syncthreads();
        multiply_step<kTokens>(sums, a[0], stage, 0);
        const uint32_t to = shared + (turn + kStages - 2) % kStages * kStageBytes;
        if (depth + kStages - 2 < depth_tiles) {
          copy_stage<kTokens>(now.rows, work.x, to, depth + kStages - 2);
        } else if (next_follows) {
          copy_stage<kTokens>(next.rows, work.x, to, depth + kStages - 2 - depth_tiles);
        }
        copy_commit();
        ahead.decode(slot, 1, a[1]);
        multiply_step<kTokens>(sums, a[1], stage, 1);
        ahead.decode(slot, 2, a[0]);
        multiply_step<kTokens>(sums, a[0], stage, 2);
        ahead.decode(slot, 3, a[1]);
        if (depth + Ahead::kCount < depth_tiles) {
          ahead.load(slot, now, depth + Ahead::kCount);
        } else if (next_follows) {
          ahead.load(slot, next, depth + Ahead::kCount - depth_tiles);
        }
        multiply_step<kTokens>(sums, a[1], stage, 3);
      }
    }
#if LILY_WGMMA
    wgmma_wait<0>();
#endif
    work.store(item, sums);
    if (!more) {
      break;
    }
    item += gridDim.x;
    now = next;
    if (!follows) {
      copy_wait<0>();
      __syncthreads();
      begin();
    }
  }
  copy_wait<0>();
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
