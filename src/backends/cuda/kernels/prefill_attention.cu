// Attention for many tokens (equations 5 to 9): queries and keys are normed and turned, keys and values go to
// the pages of the cache; then flash attention over the pages. A block has 16 tokens x the 8 query heads of
// one key-value head, so that 128 rows share every key; row 8 i + h is head h of token i. Scores and sums are
// float32, weights go into their product as bf16. wgmma on sm_90a, mma.sync elsewhere; accumulators lie the
// same way in both.
#include "backends/cuda/kernels/prefill_launch.h"
#include "backends/cuda/kernels/prefill_mma.cuh"

namespace lily::cuda::prefill {
namespace {

constexpr float kNormEps = 1e-6F;
constexpr uint32_t kEnterWarps = 8;

__device__ __forceinline__ uint32_t mixed_width(const Dims& dims) {
  return 2 * q_width(dims) + 2 * kv_width(dims);
}

// Segment of a row of the pass.
__device__ __forceinline__ const Segment& segment_of(const AttentionArgs& args, uint32_t row) {
  uint32_t which = 0;
  while (which + 1 < args.segment_count && row >= args.segments[which + 1].first_row) {
    ++which;
  }
  return args.segments[which];
}

struct HeadValues {
  float value[8];  // of the head's 8 lane .. 8 lane + 7
};
__device__ __forceinline__ HeadValues load_head(const uint16_t* head) {
  const uint4 loaded = *(reinterpret_cast<const uint4*>(head) + threadIdx.x % 32);
  return {low_bf16(loaded.x), high_bf16(loaded.x), low_bf16(loaded.y), high_bf16(loaded.y),
          low_bf16(loaded.z), high_bf16(loaded.z), low_bf16(loaded.w), high_bf16(loaded.w)};
}

// Equations 5 and 6: the norm over the head, then the turn of its first 64 values. Lanes 0 to 3 have x_j with
// j < 32, lanes 4 to 7 their partners x_{j+32}.
__device__ __forceinline__ void norm_and_turn(HeadValues& x, const float* weight, const float* rotary) {
  const uint32_t lane = threadIdx.x % 32;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    sum += x.value[i] * x.value[i];
  }
  const float factor = rsqrtf(warp_sum(sum) / static_cast<float>(kHeadDim) + kNormEps);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    x.value[i] *= factor * weight[lane * 8 + i];
    const float partner = __shfl_xor_sync(0xFFFFFFFFU, x.value[i], 4);
    if (lane < kRotaryDim / 8) {
      const float2 turn = reinterpret_cast<const float2*>(rotary)[lane % 4 * 8 + i];
      x.value[i] = x.value[i] * turn.x + (lane < 4 ? -partner : partner) * turn.y;
    }
  }
}

// One warp a head of a token: query heads, then key heads, then value heads.
__global__ void __launch_bounds__(kEnterWarps * 32) enter_kernel(const AttentionArgs args) {
  const uint32_t heads = args.dims.q_heads + 2 * args.dims.kv_heads;
  const uint32_t index = blockIdx.x * kEnterWarps + threadIdx.x / 32;
  const uint32_t row = index / heads;
  const uint32_t head = index % heads;
  if (row >= args.tokens) {
    return;
  }
  const Segment& segment = segment_of(args, row);
  const uint32_t position = segment.position + row - segment.first_row;
  const uint16_t* mixed = args.mixed + size_t{row} * mixed_width(args.dims);
  const float* rotary = args.rotary + size_t{position} * kRotaryDim;
  HeadValues x;
  uint16_t* to;
  if (head < args.dims.q_heads) {
    x = load_head(mixed + head * 2 * kHeadDim);
    norm_and_turn(x, args.q_norm, rotary);
    to = args.q + (size_t{row} * args.dims.q_heads + head) * kHeadDim;
  } else {
    const uint32_t which = (head - args.dims.q_heads) / args.dims.kv_heads;  // 0: key, 1: value
    const uint32_t kv_head = (head - args.dims.q_heads) % args.dims.kv_heads;
    x = load_head(mixed + 2 * q_width(args.dims) + (head - args.dims.q_heads) * kHeadDim);
    if (which == 0) {
      norm_and_turn(x, args.k_norm, rotary);
    }
    to = segment.pages[position / kPageTokens] + page_offset(args.dims, args.layer, which, kv_head) +
         position % kPageTokens * kHeadDim;
  }
  const uint4 packed{pack_bf16(x.value[0], x.value[1]), pack_bf16(x.value[2], x.value[3]),
                     pack_bf16(x.value[4], x.value[5]), pack_bf16(x.value[6], x.value[7])};
  *(reinterpret_cast<uint4*>(to) + threadIdx.x % 32) = packed;
}

// ---- attend
// -----------------------------------------------------------------------------------------------------------

constexpr uint32_t kThreads = 256;
constexpr uint32_t kTokens = 16;              // of a block
constexpr uint32_t kGroup = 8;                // query heads of a key-value head
constexpr uint32_t kRows = kTokens * kGroup;  // 128
constexpr uint32_t kQPanel = kRows * 128;     // bytes of 64 dimensions of all rows
constexpr uint32_t kPanels = kHeadDim / 64;
constexpr uint32_t kQBytes = kPanels * kQPanel;
constexpr float kScale = 0.0625F * 1.4426950408889634F;  // 1 / sqrt(256), for exponentials of two

// kKeys positions at a time, kStages of keys and values in shared memory.
template <uint32_t kKeys, uint32_t kStages>
struct AttendConfig {
  static constexpr uint32_t panel = kKeys * 128;
  static constexpr uint32_t matrix = kPanels * panel;  // bytes of the keys (or values) of a tile
  static constexpr uint32_t shared_bytes = kQBytes + kStages * 2 * matrix;
};

// What a block works on.
struct AttendBlock {
  const Segment* segment;
  uint32_t kv_head;
  uint32_t row;    // of the pass: that of the first token
  uint32_t count;  // tokens, 1..kTokens
  uint32_t first_position;
  uint32_t last_position;
};

// Blocks with much to do come first: the last tokens of a segment see the most keys.
__device__ __forceinline__ AttendBlock find_block(const AttentionArgs& args) {
  uint32_t index = gridDim.x - 1 - blockIdx.x;
  uint32_t which = 0;
  while (index >= (args.segments[which].rows + kTokens - 1) / kTokens) {
    index -= (args.segments[which].rows + kTokens - 1) / kTokens;
    ++which;
  }
  const Segment& segment = args.segments[which];
  const uint32_t first = index * kTokens;
  const uint32_t count = min(kTokens, segment.rows - first);
  const uint32_t position = segment.position + first;
  return {&segment, blockIdx.y, segment.first_row + first, count, position, position + count - 1};
}

// Keys (which = 0) or values (1) of tile `tile` to `to`. Positions after the block's last become zeros:
// nothing was written there yet, and 0 * NaN is NaN.
template <uint32_t kKeys>
__device__ __forceinline__ void copy_tile(const AttentionArgs& args, const AttendBlock& block, uint32_t tile,
                                          uint32_t which, uint32_t to) {
  const uint32_t first = tile * kKeys;
  const uint16_t* from = block.segment->pages[first / kPageTokens] +
                         page_offset(args.dims, args.layer, which, block.kv_head) +
                         first % kPageTokens * kHeadDim;
#pragma unroll
  for (uint32_t i = 0; i < kKeys * 32 / kThreads; ++i) {
    const uint32_t row = threadIdx.x / 32 + i * (kThreads / 32);
    const uint32_t chunk = threadIdx.x % 32;
    copy_async(to + chunk / 8 * (kKeys * 128) + swizzled(row, chunk % 8), from + row * kHeadDim + chunk * 8,
               first + row <= block.last_position);
  }
}

__device__ __forceinline__ void copy_queries(const AttentionArgs& args, const AttendBlock& block,
                                             uint32_t to) {
  const uint32_t width = q_width(args.dims);
#pragma unroll
  for (uint32_t i = 0; i < kRows * 32 / kThreads; ++i) {
    const uint32_t row = threadIdx.x / 32 + i * (kThreads / 32);
    const uint32_t chunk = threadIdx.x % 32;
    const bool valid = row / kGroup < block.count;
    const uint16_t* from = args.q + size_t{block.row + (valid ? row / kGroup : 0)} * width +
                           (block.kv_head * kGroup + row % kGroup) * kHeadDim + chunk * 8;
    copy_async(to + chunk / 8 * kQPanel + swizzled(row, chunk % 8), from, valid);
  }
}

// scores = q k^T for this warp's 16 rows and kKeys keys.
template <uint32_t kKeys>
__device__ __forceinline__ void find_scores(float (&scores)[kKeys / 2], uint32_t queries, uint32_t keys) {
#if LILY_WGMMA
  wgmma_fence();
  const uint32_t rows = queries + threadIdx.x / 128 * (64 * 128);
#pragma unroll
  for (uint32_t step = 0; step < kHeadDim / 16; ++step) {
    WgmmaShared<kKeys>::run(scores, k_major_descriptor(rows + step / 4 * kQPanel + step % 4 * 32),
                            k_major_descriptor(keys + step / 4 * (kKeys * 128) + step % 4 * 32), step != 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
#else
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t i = 0; i < kKeys / 2; ++i) {
    scores[i] = 0;
  }
#pragma unroll 4
  for (uint32_t step = 0; step < kHeadDim / 16; ++step) {
    uint32_t a[4];
    const uint32_t row = threadIdx.x / 32 * 16 + lane % 16;
    load_matrix_x4(a, queries + step / 4 * kQPanel + swizzled(row, step % 4 * 2 + lane / 16));
#pragma unroll
    for (uint32_t j = 0; j < kKeys / 16; ++j) {
      uint32_t b[4];
      load_matrix_x4(b, keys + step / 4 * (kKeys * 128) +
                            swizzled(j * 16 + lane % 8 + lane / 16 * 8, step % 4 * 2 + lane / 8 % 2));
      mma(&scores[8 * j], a, b[0], b[1]);
      mma(&scores[8 * j + 4], a, b[2], b[3]);
    }
  }
#endif
}

// sums += weights v, the weights being fragments of 16 keys each.
template <uint32_t kKeys>
__device__ __forceinline__ void add_values(float (&sums)[kHeadDim / 2],
                                           const uint32_t (&weights)[kKeys / 16][4], uint32_t values) {
#if LILY_WGMMA
  wgmma_fence();
#pragma unroll
  for (uint32_t step = 0; step < kKeys / 16; ++step) {
    WgmmaRegisters<kHeadDim, true>::run(sums, weights[step],
                                        mn_major_descriptor(values + step * 2048, kKeys * 128));
  }
  wgmma_commit();
  wgmma_wait<0>();
#else
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t step = 0; step < kKeys / 16; ++step) {
#pragma unroll
    for (uint32_t j = 0; j < kHeadDim / 16; ++j) {
      uint32_t b[4];
      const uint32_t chunk = j * 2 + lane / 16;
      load_matrix_x4_transposed(
          b, values + chunk / 8 * (kKeys * 128) + swizzled(step * 16 + lane % 16, chunk % 8));
      mma(&sums[8 * j], weights[step], b[0], b[1]);
      mma(&sums[8 * j + 4], weights[step], b[2], b[3]);
    }
  }
#endif
}

// The running softmax of a lane's two rows, g and g + 8 of its warp's 16.
struct Softmax {
  float largest[2] = {-INFINITY, -INFINITY};
  float total[2] = {0, 0};  // of this lane's columns
};

// Scores to weights, in place; rescales what was summed before. positions: of the two rows; a key after them
// counts nothing.
template <uint32_t kKeys>
__device__ __forceinline__ void weigh(float (&scores)[kKeys / 2], Softmax& softmax,
                                      float (&sums)[kHeadDim / 2], uint32_t first_key,
                                      const uint32_t (&positions)[2]) {
  const bool masked = first_key + kKeys - 1 > min(positions[0], positions[1]);
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    float largest = softmax.largest[half];
#pragma unroll
    for (uint32_t i = 0; i < kKeys / 4; ++i) {
      const uint32_t at = 4 * (i / 2) + 2 * half + i % 2;
      const uint32_t key = first_key + 8 * (i / 2) + threadIdx.x % 4 * 2 + i % 2;
      if (masked && key > positions[half]) {
        scores[at] = -INFINITY;
      }
      largest = fmaxf(largest, scores[at]);
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 2));
    const float factor = exp2f((softmax.largest[half] - largest) * kScale);
    float total = 0;
#pragma unroll
    for (uint32_t i = 0; i < kKeys / 4; ++i) {
      const uint32_t at = 4 * (i / 2) + 2 * half + i % 2;
      scores[at] = exp2f((scores[at] - largest) * kScale);
      total += scores[at];
    }
    softmax.largest[half] = largest;
    softmax.total[half] = softmax.total[half] * factor + total;
#pragma unroll
    for (uint32_t i = 0; i < kHeadDim / 4; ++i) {
      sums[4 * (i / 2) + 2 * half + i % 2] *= factor;
    }
  }
}

// Equation 9: sums / total * sigmoid(gate).
__device__ __forceinline__ void store_out(const AttentionArgs& args, const AttendBlock& block,
                                          const Softmax& softmax, const float (&sums)[kHeadDim / 2]) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    float total = softmax.total[half];
    total += __shfl_xor_sync(0xFFFFFFFFU, total, 1);
    total += __shfl_xor_sync(0xFFFFFFFFU, total, 2);
    const uint32_t token = threadIdx.x / 32 * 2 + half;
    if (token >= block.count) {
      continue;
    }
    const uint32_t head = block.kv_head * kGroup + lane / 4;
    const size_t row = block.row + token;
    const uint16_t* gate =
        args.mixed + row * mixed_width(args.dims) + (2 * head + 1) * kHeadDim + lane % 4 * 2;
    uint16_t* to = args.out + row * q_width(args.dims) + head * kHeadDim + lane % 4 * 2;
#pragma unroll
    for (uint32_t j = 0; j < kHeadDim / 8; ++j) {
      const uint32_t gates = *reinterpret_cast<const uint32_t*>(gate + 8 * j);
      const float x = sums[4 * j + 2 * half] / total * sigmoid(low_bf16(gates));
      const float y = sums[4 * j + 2 * half + 1] / total * sigmoid(high_bf16(gates));
      *reinterpret_cast<uint32_t*>(to + 8 * j) = pack_bf16(x, y);
    }
  }
}

// Weights of one tile of keys, as fragments of their product with the values.
template <uint32_t kKeys>
__device__ __forceinline__ void pack_weights(const float (&scores)[kKeys / 2],
                                             uint32_t (&weights)[kKeys / 16][4]) {
#pragma unroll
  for (uint32_t i = 0; i < kKeys / 4; ++i) {
    weights[i / 4][i % 4] = pack_bf16(scores[2 * i], scores[2 * i + 1]);
  }
}

template <uint32_t kKeys, uint32_t kStages>
__global__ void __launch_bounds__(kThreads, 1) attend_kernel(const AttentionArgs args) {
  using Config = AttendConfig<kKeys, kStages>;
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t queries = shared_address(memory);
  const uint32_t first_stage = queries + kQBytes;
  const AttendBlock block = find_block(args);
  const uint32_t tiles = block.last_position / kKeys + 1;
  const uint32_t token = threadIdx.x / 32 * 2;
  const uint32_t positions[2] = {block.first_position + min(token, block.count - 1),
                                 block.first_position + min(token + 1, block.count - 1)};
  copy_queries(args, block, queries);
  copy_tile<kKeys>(args, block, 0, 0, first_stage);
  copy_commit();
  copy_tile<kKeys>(args, block, 0, 1, first_stage + Config::matrix);
  copy_commit();
  Softmax softmax;
  float sums[kHeadDim / 2] = {};
  for (uint32_t tile = 0; tile < tiles; ++tile) {
    const uint32_t keys = first_stage + tile % kStages * 2 * Config::matrix;
    const uint32_t values = keys + Config::matrix;
    copy_wait<1>();  // the keys
    publish_to_tensor_cores();
    __syncthreads();
    if (kStages > 1) {  // all have finished the stage before: its place is free
      if (tile + 1 < tiles) {
        copy_tile<kKeys>(args, block, tile + 1, 0, first_stage + (tile + 1) % kStages * 2 * Config::matrix);
      }
      copy_commit();
    }
    float scores[kKeys / 2];
    find_scores<kKeys>(scores, queries, keys);
    if (kStages == 1) {
      __syncthreads();
      if (tile + 1 < tiles) {
        copy_tile<kKeys>(args, block, tile + 1, 0, keys);
      }
      copy_commit();
    }
    weigh<kKeys>(scores, softmax, sums, tile * kKeys, positions);
    uint32_t weights[kKeys / 16][4];
    pack_weights<kKeys>(scores, weights);
    copy_wait<1>();  // the values
    publish_to_tensor_cores();
    __syncthreads();
    if (kStages > 1) {
      if (tile + 1 < tiles) {
        copy_tile<kKeys>(args, block, tile + 1, 1,
                         first_stage + (tile + 1) % kStages * 2 * Config::matrix + Config::matrix);
      }
      copy_commit();
    }
    add_values<kKeys>(sums, weights, values);
    if (kStages == 1) {
      __syncthreads();
      if (tile + 1 < tiles) {
        copy_tile<kKeys>(args, block, tile + 1, 1, values);
      }
      copy_commit();
    }
  }
  copy_wait<0>();
  store_out(args, block, softmax, sums);
}

template <uint32_t kKeys, uint32_t kStages>
void launch(const AttentionArgs& args, Device device) {
  uint32_t blocks = 0;
  for (uint32_t i = 0; i < args.segment_count; ++i) {
    blocks += (args.host_segments[i].rows + kTokens - 1) / kTokens;
  }
  constexpr int kShared = AttendConfig<kKeys, kStages>::shared_bytes;
  cudaFuncSetAttribute(attend_kernel<kKeys, kStages>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  attend_kernel<kKeys, kStages><<<dim3(blocks, args.dims.kv_heads), kThreads, kShared, device.queue>>>(args);
}

}  // namespace

void attention_enter(const AttentionArgs& args, Device device) {
  const uint32_t heads = args.tokens * (args.dims.q_heads + 2 * args.dims.kv_heads);
  enter_kernel<<<(heads + kEnterWarps - 1) / kEnterWarps, kEnterWarps * 32, 0, device.queue>>>(args);
}

void attention_attend(const AttentionArgs& args, Device device) {
  if (device.shared_bytes >= AttendConfig<64, 2>::shared_bytes) {
    launch<64, 2>(args, device);
  } else if (device.shared_bytes >= AttendConfig<64, 1>::shared_bytes) {
    launch<64, 1>(args, device);
  } else {
    launch<32, 1>(args, device);
  }
}

void attention(const AttentionArgs& args, Device device) {
  attention_enter(args, device);
  attention_attend(args, device);
}

}  // namespace lily::cuda::prefill
