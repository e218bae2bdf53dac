// The experts' products for many tokens. One persistent launch works through all (expert, tokens, 256
// outputs) items of a layer, the shared expert's first; which there are is computed on the device from the
// router's counts. Weights are decoded in registers (prefill_tile.cuh). Every use of an expert has rows of
// its own in `inner` and `outer`, which combine_kernel sums in a fixed order.
#include "backends/cuda/kernels/prefill_launch.h"
#include "backends/cuda/kernels/prefill_tile.cuh"

namespace lily::cuda::prefill {
namespace {

// Tiles of the experts before each: those of expert e are [before[e], before[e + 1]) after the shared
// expert's.
struct Schedule {
  // First and aligned: loads of four at once reach into a neighbour otherwise, whose writing racecheck reports.
  alignas(16) uint32_t warp_totals[kTileThreads / 32];
  uint32_t before[kTileThreads + 1];
};

// A run of uses of one expert that a block multiplies at once.
struct Item {
  uint32_t expert;
  uint32_t first;  // among its uses
  uint32_t count;
  uint32_t outputs;  // which 256 of them
};

template <int kMaxTokens>
__device__ __forceinline__ uint32_t tiles_of(uint32_t count) {
  return (count + kMaxTokens - 1) / kMaxTokens;
}

template <int kMaxTokens>
__device__ void make_schedule(const ExpertsArgs& args, Schedule& schedule) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t tiles = threadIdx.x < args.experts ? tiles_of<kMaxTokens>(args.counts[threadIdx.x]) : 0;
  uint32_t sum = tiles;
#pragma unroll
  for (uint32_t offset = 1; offset < 32; offset *= 2) {
    const uint32_t other = __shfl_up_sync(0xFFFFFFFFU, sum, offset);
    sum += lane >= offset ? other : 0;
  }
  if (lane == 31) {
    schedule.warp_totals[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  for (uint32_t warp = 0; warp < threadIdx.x / 32; ++warp) {
    sum += schedule.warp_totals[warp];
  }
  schedule.before[threadIdx.x + 1] = sum;
  if (threadIdx.x == 0) {
    schedule.before[0] = 0;
  }
  __syncthreads();
}

// The uses of an expert are shared out evenly among the fewest tiles, so that 130 are not 128 and 2.
template <int kMaxTokens>
__device__ __forceinline__ Item item_at(const ExpertsArgs& args, const Schedule& schedule, uint32_t index,
                                        uint32_t output_blocks) {
  uint32_t tile = index / output_blocks;
  uint32_t expert = args.experts;
  uint32_t uses = args.tokens;
  const uint32_t shared_tiles = tiles_of<kMaxTokens>(args.tokens);
  if (tile >= shared_tiles) {
    tile -= shared_tiles;
    uint32_t low = 0;
    uint32_t high = args.experts;
    while (high - low > 1) {
      const uint32_t middle = (low + high) / 2;
      if (schedule.before[middle] <= tile) {
        low = middle;
      } else {
        high = middle;
      }
    }
    expert = low;
    tile -= schedule.before[low];
    uses = args.counts[expert];
  }
  const uint32_t tiles = tiles_of<kMaxTokens>(uses);
  const uint32_t size = ((uses + tiles - 1) / tiles + 31) / 32 * 32;
  const uint32_t first = tile * size;
  return {expert, first, min(size, uses - first), index % output_blocks};
}

// Row of `inner` and `outer` of the i-th use of an item.
__device__ __forceinline__ uint32_t use_row(const ExpertsArgs& args, const Item& item, uint32_t i) {
  const uint32_t use = item.first + i;
  return item.expert == args.experts ? use * kUses + kTopK
                                     : __ldg(args.uses + size_t{item.expert} * args.tokens + use);
}

// The rows that this lane stores to, all read before the first store.
constexpr uint32_t kNoRow = 0xFFFFFFFFU;
template <int kTokens>
__device__ __forceinline__ void find_rows(const ExpertsArgs& args, const Item& item,
                                          uint32_t (&rows)[kTokens / 8]) {
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    const uint32_t token = 8 * j + threadIdx.x % 32 / 4;
    rows[j] = token < item.count ? use_row(args, item, token) : kNoRow;
  }
}

// Rows of gate and up alternate in eights: a lane has both of a unit, for the same tokens.
template <int kTokens>
__device__ __forceinline__ void store_inner(const ExpertsArgs& args, const Item& item, uint32_t block,
                                            const float (&sums)[2][kTokens / 2]) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t width = args.down.k_tiles * kTileCols;
  uint32_t rows[kTokens / 8];
  find_rows<kTokens>(args, item, rows);
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    const bool valid = rows[j] != kNoRow;
    uint16_t* to = args.inner + size_t{valid ? rows[j] : 0} * width + block * 8 + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const float* sum = &sums[m][4 * j];
      const uint32_t pair = transpose_8x8(pack_bf16(silu(sum[0]) * sum[2], silu(sum[1]) * sum[3]));
      if (valid && block + m < args.gate_up.row_blocks) {
        *reinterpret_cast<uint32_t*>(to + m * 8) = pair;
      }
    }
  }
}

template <int kTokens>
__device__ __forceinline__ void store_outer(const ExpertsArgs& args, const Item& item, uint32_t block,
                                            const float (&sums)[2][kTokens / 2]) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t width = args.gate_up.k_tiles * kTileCols;
  uint32_t rows[kTokens / 8];
  find_rows<kTokens>(args, item, rows);
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    const bool valid = rows[j] != kNoRow;
    uint16_t* to = args.outer + size_t{valid ? rows[j] : 0} * width + block * 16 + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const float* sum = &sums[m][4 * j];
      const uint32_t low = transpose_8x8(pack_bf16(sum[0], sum[1]));
      const uint32_t high = transpose_8x8(pack_bf16(sum[2], sum[3]));
      if (valid && block + m < args.down.row_blocks) {
        *reinterpret_cast<uint32_t*>(to + m * 16) = low;
        *reinterpret_cast<uint32_t*>(to + m * 16 + 8) = high;
      }
    }
  }
}

template <int kTokens, bool kDown>
struct ExpertsWork {
  const ExpertsArgs& args;
  const PackedMatrix& matrix;
  const Schedule& schedule;
  const uint16_t* x;
  uint32_t depth_tiles;
  uint32_t output_blocks;  // of 256 outputs

  __device__ __forceinline__ Item find(uint32_t index) const {
    return item_at<kTokens>(args, schedule, index, output_blocks);
  }
  // The first of the warp's two row blocks.
  __device__ __forceinline__ static uint32_t block(const Item& item) {
    return item.outputs * kTileBlocks + threadIdx.x / 32 * 2;
  }
  __device__ __forceinline__ Operands<kTokens> operands(uint32_t index) const {
    const Item item = find(index);
    const uint32_t last = matrix.row_blocks - 1;
    const auto rows = token_rows<kTokens>(depth_tiles * kTileCols, item.count, [&](uint32_t i) {
      const uint32_t row = use_row(args, item, i);
      return kDown ? row : row / kUses;
    });
    return {rows,
            {row_block(matrix, item.expert, min(block(item), last)),
             row_block(matrix, item.expert, min(block(item) + 1, last))}};
  }
  __device__ __forceinline__ void store(uint32_t index, const float (&sums)[2][kTokens / 2]) const {
    const Item item = find(index);
    if constexpr (kDown) {
      store_outer<kTokens>(args, item, block(item), sums);
    } else {
      store_inner<kTokens>(args, item, block(item), sums);
    }
  }
};

template <int kTokens, Form kForm, bool kDown>
__global__ void __launch_bounds__(kTileThreads, blocks_per_processor(kTokens, kForm))
    experts_kernel(const ExpertsArgs args) {
  extern __shared__ __align__(1024) uint8_t memory[];
  __shared__ Schedule schedule;
  make_schedule<kTokens>(args, schedule);
  const PackedMatrix& matrix = kDown ? args.down : args.gate_up;
  const uint32_t output_blocks = (matrix.row_blocks + kTileBlocks - 1) / kTileBlocks;
  const uint32_t items = (tiles_of<kTokens>(args.tokens) + schedule.before[args.experts]) * output_blocks;
  const ExpertsWork<kTokens, kDown> work{args,           matrix,       schedule, kDown ? args.inner : args.x,
                                         matrix.k_tiles, output_blocks};
  run_items<kTokens, kForm, true>(work, items, shared_address(memory));
}

// stream += sum of the nine weighted rows of a token, in the order of the slots; eight values a thread.
__global__ void __launch_bounds__(256) combine_kernel(const ExpertsArgs args) {
  const uint32_t width = args.gate_up.k_tiles * kTileCols;
  const uint32_t index = blockIdx.x * 256 + threadIdx.x;
  const uint32_t token = index / (width / 8);
  if (token >= args.tokens) {
    return;
  }
  const uint32_t column = index % (width / 8) * 8;
  const uint16_t* from = args.outer + size_t{token} * kUses * width + column;
  uint4 rows[kUses];
#pragma unroll
  for (uint32_t slot = 0; slot < kUses; ++slot) {
    rows[slot] = __ldg(reinterpret_cast<const uint4*>(from + size_t{slot} * width));
  }
  float sum[8] = {};
#pragma unroll
  for (uint32_t slot = 0; slot < kUses; ++slot) {
    const float weight = __ldg(args.weights + size_t{token} * kUses + slot);
    const uint32_t words[4] = {rows[slot].x, rows[slot].y, rows[slot].z, rows[slot].w};
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      sum[2 * i] += weight * low_bf16(words[i]);
      sum[2 * i + 1] += weight * high_bf16(words[i]);
    }
  }
  auto* to = reinterpret_cast<float4*>(args.stream + size_t{token} * width + column);
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    float4 value = to[i];
    value.x += sum[4 * i];
    value.y += sum[4 * i + 1];
    value.z += sum[4 * i + 2];
    value.w += sum[4 * i + 3];
    to[i] = value;
  }
}

template <int kMaxTokens, Form kForm, bool kDown>
void launch(const ExpertsArgs& args, Device device) {
  constexpr int kShared = tile_shared_bytes(kMaxTokens);
  const auto kernel = experts_kernel<kMaxTokens, kForm, kDown>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  kernel<<<device.processors * blocks_per_processor(kMaxTokens, kForm), kTileThreads, kShared,
           device.queue>>>(args);
}

template <bool kDown>
void launch_products(const ExpertsArgs& args, Device device) {
  const PackedMatrix& matrix = kDown ? args.down : args.gate_up;
  const uint32_t tokens = experts_tile_tokens(args.experts, args.tokens);
  if (matrix.planes != 1 || matrix.wide != 0) {
    tokens == 32 ? launch<32, Form::any, kDown>(args, device) : launch<128, Form::any, kDown>(args, device);
    return;
  }
  switch (tokens) {
    case 32:
      return launch<32, Form::narrow4, kDown>(args, device);
    case 64:
      return launch<64, Form::narrow4, kDown>(args, device);
    case 96:
      return launch<96, Form::narrow4, kDown>(args, device);
    default:
      return launch<128, Form::narrow4, kDown>(args, device);
  }
}

}  // namespace

// A tile that holds the uses of nearly every expert when they are spread evenly (about mean + 2 sqrt(mean)).
uint32_t experts_tile_tokens(uint32_t experts, uint32_t tokens) {
  const uint32_t mean = tokens * kTopK / experts;
  return mean <= 22 ? 32 : mean <= 48 ? 64 : mean <= 80 ? 96 : 128;
}

void experts_enter(const ExpertsArgs& args, Device device) { launch_products<false>(args, device); }

void experts_leave(const ExpertsArgs& args, Device device) { launch_products<true>(args, device); }

void experts_combine(const ExpertsArgs& args, Device device) {
  const uint32_t vectors = args.tokens * args.gate_up.k_tiles * (kTileCols / 8);
  combine_kernel<<<(vectors + 255) / 256, 256, 0, device.queue>>>(args);
}

void experts(const ExpertsArgs& args, Device device) {
  experts_enter(args, device);
  experts_leave(args, device);
  experts_combine(args, device);
}

}  // namespace lily::cuda::prefill
