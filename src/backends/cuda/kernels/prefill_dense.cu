// Dense projections for many tokens: y = W x with quantised W (prefill_tile.cuh), one block per 256 outputs
// and 32, 64 or 128 tokens.
#include "backends/cuda/kernels/prefill_launch.h"
#include "backends/cuda/kernels/prefill_tile.cuh"

namespace lily::cuda::prefill {
namespace {

// One block of 16 outputs and the tokens that its sums are for.
struct Target {
  uint32_t row;   // the first output
  uint32_t rows;  // outputs of the matrix
  uint32_t first_token;
  uint32_t count;
};

// Adds sums to y, [tokens][stride]. Values are read in groups before the first is written: one at a time each
// would wait for memory.
template <int kTokens>
__device__ __forceinline__ void add_sums(float* y, uint32_t stride, uint32_t count, uint32_t limit,
                                         const float (&sums)[kTokens / 2]) {
  constexpr int kGroup = 16;
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int first = 0; first < kTokens / 2; first += kGroup) {
    float before[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const uint32_t token = 8 * ((first + i) / 4) + lane % 4 * 2 + i % 2;
      const uint32_t row = lane / 4 + i % 4 / 2 * 8;
      before[i] = token < count && row < limit ? y[size_t{token} * stride + row] : 0;
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const uint32_t token = 8 * ((first + i) / 4) + lane % 4 * 2 + i % 2;
      const uint32_t row = lane / 4 + i % 4 / 2 * 8;
      if (token < count && row < limit) {
        y[size_t{token} * stride + row] = before[i] + sums[first + i];
      }
    }
  }
}

template <int kTokens>
__device__ __forceinline__ void store_sums(const DenseArgs& args, const Target& target,
                                           const float (&sums)[kTokens / 2]) {
  uint32_t begin = 0;
  uint32_t index = 0;
  while (index + 1 < kDenseRanges && target.row >= args.ranges[index].end) {
    begin = args.ranges[index].end;
    ++index;
  }
  const DenseRange& range = args.ranges[index];
  const uint32_t limit = min(range.end, target.rows) - target.row;  // rows that count, if below 16
  const size_t offset = size_t{target.first_token} * range.stride + target.row - begin;
  if (range.store == Store::bf16) {
    uint16_t* y = static_cast<uint16_t*>(range.y) + offset;
    for_each_pair<kTokens>(sums, [&](uint32_t token, uint32_t row, uint32_t pair) {
      if (token < target.count && row < limit) {
        *reinterpret_cast<uint32_t*>(y + size_t{token} * range.stride + row) = pair;
      }
    });
    return;
  }
  float* y = static_cast<float*>(range.y) + offset;
  if (range.store == Store::add_f32) {
    add_sums<kTokens>(y, range.stride, target.count, limit, sums);
    return;
  }
  for_each_sum<kTokens>(sums, [&](uint32_t token, uint32_t row, float sum) {
    if (token < target.count && row < limit) {
      y[size_t{token} * range.stride + row] = sum;
    }
  });
}

template <int kTokens>
struct DenseWork {
  const DenseArgs& args;
  const uint16_t* x;
  uint32_t depth_tiles;
  uint32_t output_blocks;  // of 256 outputs

  __device__ __forceinline__ uint32_t first_token(uint32_t item) const {
    return item / output_blocks * kTokens;
  }
  __device__ __forceinline__ uint32_t count(uint32_t item) const {
    return min(static_cast<uint32_t>(kTokens), args.tokens - first_token(item));
  }
  // The first of the warp's two row blocks.
  __device__ __forceinline__ uint32_t block(uint32_t item) const {
    return item % output_blocks * kTileBlocks + threadIdx.x / 32 * 2;
  }
  __device__ __forceinline__ Operands<kTokens> operands(uint32_t item) const {
    const uint32_t last = args.weights.row_blocks - 1;
    const uint32_t first = first_token(item);
    return {token_rows<kTokens>(depth_tiles * kTileCols, count(item), [&](uint32_t i) { return first + i; }),
            {row_block(args.weights, 0, min(block(item), last)),
             row_block(args.weights, 0, min(block(item) + 1, last))}};
  }
  __device__ __forceinline__ void store(uint32_t item, const float (&sums)[2][kTokens / 2]) const {
#pragma unroll
    for (uint32_t m = 0; m < 2; ++m) {
      if (block(item) + m < args.weights.row_blocks) {
        store_sums<kTokens>(
            args, {(block(item) + m) * kTileRows, args.weights.rows, first_token(item), count(item)},
            sums[m]);
      }
    }
  }
};

template <int kTokens, Form kForm>
__global__ void __launch_bounds__(kTileThreads, blocks_per_processor(kTokens, kForm))
    dense_kernel(const DenseArgs args) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t output_blocks = (args.weights.row_blocks + kTileBlocks - 1) / kTileBlocks;
  const DenseWork<kTokens> work{args, args.x, args.weights.k_tiles, output_blocks};
  run_items<kTokens, kForm, false>(work, output_blocks * ((args.tokens + kTokens - 1) / kTokens),
                                   shared_address(shared));
}

template <int kTokens, Form kForm>
void launch(const DenseArgs& args, Device device) {
  const uint32_t items =
      (args.weights.row_blocks + kTileBlocks - 1) / kTileBlocks * ((args.tokens + kTokens - 1) / kTokens);
  constexpr int kShared = tile_shared_bytes(kTokens);
  cudaFuncSetAttribute(dense_kernel<kTokens, kForm>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  dense_kernel<kTokens, kForm><<<items, kTileThreads, kShared, device.queue>>>(args);
}

template <Form kForm>
void launch_form(const DenseArgs& args, Device device) {
  switch (dense_tile_tokens(args.weights.rows, args.tokens, device.processors)) {
    case 32:
      return launch<32, kForm>(args, device);
    case 64:
      return launch<64, kForm>(args, device);
    default:
      return launch<128, kForm>(args, device);
  }
}

}  // namespace

// The widest tile that still gives nearly every multiprocessor a block.
uint32_t dense_tile_tokens(uint32_t outputs, uint32_t tokens, uint32_t processors) {
  const uint32_t blocks = (outputs + kTileOutputs - 1) / kTileOutputs;
  for (uint32_t tile = 128; tile > 32; tile /= 2) {
    if (blocks * ((tokens + tile - 1) / tile) >= processors - processors / 16) {
      return tile;
    }
  }
  return 32;
}

void dense(const DenseArgs& args, Device device) {
  const bool narrow4 = args.weights.planes == 1 && args.weights.wide == 0;
  narrow4 ? launch_form<Form::narrow4>(args, device) : launch_form<Form::any>(args, device);
}

}  // namespace lily::cuda::prefill
