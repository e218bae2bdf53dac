// Where the blocks of a whole step leave their results for one another: words with the launch's tag, in a
// place of their own for every layer, so that no word of a launch is written twice.
#pragma once

#include "backends/cuda/kernels/common.cuh"
#include "backends/cuda/kernels/whole_step.h"

namespace lily::cuda::step {

// Words of a row's feed of `inputs` inputs: pairs of bf16 in fragment order, then the sums of squares.
LILY_BOTH constexpr uint32_t feed_words(uint32_t inputs) { return inputs / 2 + inputs / kFeedBlock; }
LILY_BOTH constexpr uint32_t padded(uint32_t outputs) {
  return (outputs + kTileRows - 1) / kTileRows * kTileRows;
}
LILY_BOTH constexpr uint32_t delta_outputs(const Dims& d) {
  return conv_channels(d) + value_width(d) + 2 * d.v_heads;
}
LILY_BOTH constexpr uint32_t attend_outputs(const Dims& d) { return 2 * q_width(d) + 2 * kv_width(d); }
LILY_BOTH constexpr uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Words of one row of each section of a layer, and where the sections begin.
struct Board {
  uint32_t feed_row, mixed_row, heads_row, router_row, h_row, splits_row;
  uint32_t mixed, heads, after, router, h, splits, layer;
};
LILY_BOTH constexpr Board board_of(const Dims& d, uint32_t rows) {
  Board b{};
  b.feed_row = feed_words(d.hidden);
  b.mixed_row = padded(larger(delta_outputs(d), attend_outputs(d)));
  b.heads_row = feed_words(larger(value_width(d), q_width(d)));
  b.router_row = padded(d.experts + 1);
  b.h_row = kUses * d.ffn / 2;
  b.splits_row = d.q_heads * kMaxSplits * 2;
  b.mixed = rows * b.feed_row;  // behind the feed of the layer's in_proj
  b.heads = b.mixed + rows * b.mixed_row;
  b.after = b.heads + rows * b.heads_row;  // the feed of the router and the experts
  b.router = b.after + rows * b.feed_row;
  b.h = b.router + rows * b.router_row;
  b.splits = b.h + rows * b.h_row;
  b.layer = b.splits + rows * b.splits_row;
  return b;
}

// ---- Reading --------------------------------------------------------------------------------------------
// Looking for words takes bandwidth of the level-2 cache from weights: of more pairs than these the last is
// looked for alone, and the others when it is there.
inline constexpr uint32_t kPolledPairs = 8;

// Waits for kGroups groups of kPairs pairs of words, groups `stride` words apart; `from` is 16-byte aligned.
template <uint32_t kGroups, uint32_t kPairs>
__device__ __forceinline__ void wait_words(uint32_t (&values)[kGroups * kPairs * 2], const uint64_t* from,
                                           uint32_t stride, uint32_t tag) {
  if constexpr (kGroups * kPairs > kPolledPairs) {
    const uint64_t* const last = from + (kGroups - 1) * stride + kPairs * 2 - 1;
    while (static_cast<uint32_t>(load_word(last) >> 32) != tag) {
      pause();
    }
  }
  while (true) {
    bool missing = false;
#pragma unroll
    for (uint32_t g = 0; g < kGroups; ++g) {
#pragma unroll
      for (uint32_t p = 0; p < kPairs; ++p) {
        uint64_t first = 0;
        uint64_t second = 0;
        load_words(first, second, from + g * stride + p * 2);
        const uint32_t at = (g * kPairs + p) * 2;
        values[at] = static_cast<uint32_t>(first);
        values[at + 1] = static_cast<uint32_t>(second);
        missing |= static_cast<uint32_t>(first >> 32) != tag || static_cast<uint32_t>(second >> 32) != tag;
      }
    }
    if (!missing) {
      return;
    }
    pause();
  }
}
// Waits for kCount words at places of their own.
template <uint32_t kCount>
__device__ __forceinline__ void wait_each(uint32_t (&values)[kCount], const uint64_t* const (&from)[kCount],
                                          uint32_t tag) {
  while (true) {
    bool missing = false;
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) {
      const uint64_t word = load_word(from[i]);
      values[i] = static_cast<uint32_t>(word);
      missing |= static_cast<uint32_t>(word >> 32) != tag;
    }
    if (!missing) {
      return;
    }
    pause();
  }
}

// ---- Writing --------------------------------------------------------------------------------------------
// One output of a row of a feed: the value that the next product multiplies and its part of the squares,
// which are of `square`. Sixteen lanes in a row have the 16 outputs of a block; all lanes of the warp call.
__device__ __forceinline__ void put_feed(uint64_t* row, uint32_t inputs, uint32_t output, float value,
                                         float square, bool active, uint32_t tag) {
  const uint32_t bits = to_bf16(value);
  const uint32_t other = __shfl_xor_sync(kAll, bits, 1);
  const float sum = sum_lanes<kFeedBlock>(square);
  if (active && output % 2 == 0) {
    store_word(row + fragment_position(output) / 2, bits | other << 16, tag);
  }
  if (active && output % kFeedBlock == 0) {
    store_word(row + inputs / 2 + output / kFeedBlock, __float_as_uint(sum), tag);
  }
}

}  // namespace lily::cuda::step
