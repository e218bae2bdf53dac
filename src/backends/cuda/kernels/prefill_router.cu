// What stands before the products of prefill: RMS norm, the router with its choice of experts, and the list
// of the tokens of every expert.
#include "backends/cuda/kernels/prefill_launch.h"
#include "backends/cuda/kernels/prefill_mma.cuh"
#include "backends/cuda/kernels/prefill_weights.cuh"

namespace lily::cuda::prefill {
namespace {

constexpr float kNormEps = 1e-6F;
constexpr uint32_t kNormThreads = 128;
constexpr uint32_t kNormVectors = 4;  // of four values, for each thread

// One block a row; the row stays in registers between the sum and the product.
__global__ void __launch_bounds__(kNormThreads) norm_kernel(const NormArgs args) {
  __shared__ float sums[kNormThreads / 32];
  const auto* x = reinterpret_cast<const float4*>(args.x + size_t{blockIdx.x} * args.width);
  const auto* weight = reinterpret_cast<const float4*>(args.weight);
  const uint32_t vectors = args.width / 4;
  float4 value[kNormVectors];
  float sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < kNormVectors; ++i) {
    const uint32_t index = threadIdx.x + i * kNormThreads;
    value[i] = index < vectors ? x[index] : float4{0, 0, 0, 0};
    sum +=
        value[i].x * value[i].x + value[i].y * value[i].y + value[i].z * value[i].z + value[i].w * value[i].w;
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) {
    sums[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  const float factor = rsqrtf(sum / static_cast<float>(args.width) + kNormEps);
#pragma unroll
  for (uint32_t i = 0; i < kNormVectors; ++i) {
    const uint32_t index = threadIdx.x + i * kNormThreads;
    if (index < vectors) {
      const float4 w = weight[index];
      uint2 high;
      uint2 rest;
      split_bf16(value[i].x * factor * w.x, value[i].y * factor * w.y, high.x, rest.x);
      split_bf16(value[i].z * factor * w.z, value[i].w * factor * w.w, high.y, rest.y);
      const size_t at = size_t{blockIdx.x} * vectors + index;
      reinterpret_cast<uint2*>(args.y)[at] = high;
      if (args.rest != nullptr) {
        reinterpret_cast<uint2*>(args.rest)[at] = rest;
      }
    }
  }
}

constexpr uint32_t kRouterThreads = 128;
constexpr uint32_t kRouterTokens = 32;
constexpr uint32_t kRouterStages = 4;
constexpr uint32_t kPartBytes = kRouterTokens * 128;  // of one stage: high parts or rests

// Both parts of 64 inputs of the block's tokens.
__device__ __forceinline__ void copy_router_stage(const RouterArgs& args, uint32_t first_token,
                                                  uint32_t depth, uint32_t shared) {
  const uint32_t width = args.router.k_tiles * kTileCols;
  const uint32_t to = shared + depth % kRouterStages * (2 * kPartBytes);
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t row = threadIdx.x / 8 + i % 2 * 16;
    const uint32_t chunk = threadIdx.x % 8;
    const bool valid = first_token + row < args.tokens;
    const uint16_t* from = i / 2 == 0 ? args.x : args.rest;
    from += valid ? size_t{first_token + row} * width + depth * kTileCols + chunk * 8 : 0;
    copy_async(to + i / 2 * kPartBytes + swizzled(row, chunk), from, valid);
  }
}

// sums += (w + dw)(x + dx) without the product of the rests, for 16 inputs and all tokens of the block.
__device__ __forceinline__ void router_step(float (&sums)[kRouterTokens / 2],
                                            const WeightTile<Form::any>& tile, uint32_t stage, int step) {
  uint32_t high[4];
  uint32_t rest[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 w = tile.value(step, i);
    split_bf16(w.x, w.y, high[i], rest[i]);
  }
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t at = stage + swizzled(lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2);
#pragma unroll
  for (uint32_t j = 0; j < kRouterTokens / 16; ++j) {
    uint32_t x[4];
    uint32_t dx[4];
    load_matrix_x4(x, at + j * 2048);
    load_matrix_x4(dx, at + kPartBytes + j * 2048);
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      float* sum = &sums[8 * j + 4 * half];
      mma(sum, rest, x[2 * half], x[2 * half + 1]);
      mma(sum, high, dx[2 * half], dx[2 * half + 1]);
      mma(sum, high, x[2 * half], x[2 * half + 1]);
    }
  }
}

// Logits: each warp has 16 experts, a block four of them and 32 tokens.
__global__ void __launch_bounds__(kRouterThreads) router_kernel(const RouterArgs args) {
  __shared__ __align__(1024) uint8_t memory[kRouterStages * 2 * kPartBytes];
  const uint32_t shared = shared_address(memory);
  const uint32_t first_token = blockIdx.y * kRouterTokens;
  const uint32_t block = blockIdx.x * 4 + threadIdx.x / 32;
  const RowBlock weights = row_block(args.router, 0, min(block, args.router.row_blocks - 1));
  const uint32_t depth_tiles = args.router.k_tiles;
  WeightTile<Form::any> next;
  next.load(weights, 0);
  float sums[kRouterTokens / 2] = {};
  for (uint32_t i = 0; i < kRouterStages - 1; ++i) {
    if (i < depth_tiles) {
      copy_router_stage(args, first_token, i, shared);
    }
    copy_commit();
  }
  for (uint32_t depth = 0; depth < depth_tiles; ++depth) {
    copy_wait<kRouterStages - 2>();
    __syncthreads();  // stage `depth` is there, and depth - 1 has been read by all
    if (depth + kRouterStages - 1 < depth_tiles) {
      copy_router_stage(args, first_token, depth + kRouterStages - 1, shared);
    }
    copy_commit();
    const WeightTile<Form::any> tile = next;
    next.load(weights, min(depth + 1, depth_tiles - 1));
    const uint32_t stage = shared + depth % kRouterStages * (2 * kPartBytes);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      router_step(sums, tile, stage, step);
    }
  }
  copy_wait<0>();
  if (block >= args.router.row_blocks) {
    return;
  }
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t i = 0; i < kRouterTokens / 2; ++i) {
    const uint32_t token = first_token + 8 * (i / 4) + lane % 4 * 2 + i % 2;
    if (token < args.tokens) {
      args.logits[size_t{token} * logits_stride(args.experts) + block * 16 + lane / 4 + i % 4 / 2 * 8] =
          sums[i];
    }
  }
}

constexpr uint32_t kChooseWarps = 8;
constexpr uint32_t kLaneExperts = 8;  // logits a lane holds: up to 256 experts

struct Candidate {
  float logit;
  uint32_t expert;
};
// The order of the router: larger logits first, equal ones by lower index.
__device__ __forceinline__ bool before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.expert < b.expert);
}
__device__ __forceinline__ Candidate warp_first(Candidate mine) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Candidate other{__shfl_xor_sync(0xFFFFFFFFU, mine.logit, offset),
                          __shfl_xor_sync(0xFFFFFFFFU, mine.expert, offset)};
    mine = before(other, mine) ? other : mine;
  }
  return mine;
}

// One warp a token: the kTopK first experts, their softmax, then both in ascending order of the experts.
__global__ void __launch_bounds__(kChooseWarps * 32) choose_kernel(const RouterArgs args) {
  const uint32_t token = blockIdx.x * kChooseWarps + threadIdx.x / 32;
  const uint32_t lane = threadIdx.x % 32;
  if (token >= args.tokens) {
    return;
  }
  const float* logits = args.logits + size_t{token} * logits_stride(args.experts);
  Candidate mine[kLaneExperts];
#pragma unroll
  for (uint32_t i = 0; i < kLaneExperts; ++i) {
    const uint32_t expert = lane + 32 * i;
    mine[i] = {expert < args.experts ? logits[expert] : -INFINITY, expert};
  }
  Candidate chosen{-INFINITY, 0xFFFFU};  // lane i < kTopK keeps the i-th
  float largest = 0;
  for (uint32_t round = 0; round < kTopK; ++round) {
    Candidate best = mine[0];
#pragma unroll
    for (uint32_t i = 1; i < kLaneExperts; ++i) {
      best = before(mine[i], best) ? mine[i] : best;
    }
    best = warp_first(best);
    largest = round == 0 ? best.logit : largest;
    chosen = lane == round ? best : chosen;
#pragma unroll
    for (uint32_t i = 0; i < kLaneExperts; ++i) {
      if (mine[i].expert == best.expert) {
        mine[i] = {-INFINITY, 0xFFFFFFU + i};
      }
    }
  }
  const float mass = lane < kTopK ? expf(chosen.logit - largest) : 0;
  float total = 0;
  uint32_t rank = 0;
#pragma unroll
  for (uint32_t i = 0; i < kTopK; ++i) {
    total += __shfl_sync(0xFFFFFFFFU, mass, i);
    rank += __shfl_sync(0xFFFFFFFFU, chosen.expert, i) < chosen.expert ? 1 : 0;
  }
  if (lane < kTopK) {
    args.chosen[size_t{token} * kTopK + rank] = static_cast<uint16_t>(chosen.expert);
    args.weights[size_t{token} * kUses + rank] = mass / total;
  } else if (lane == kTopK) {
    args.weights[size_t{token} * kUses + kTopK] = 1.0F / (1.0F + expf(-logits[args.experts]));
  }
}

constexpr uint32_t kGroupThreads = 256;

// The slot of `expert` among a token's choices, or kTopK.
__device__ __forceinline__ uint32_t slot_of(const uint16_t* chosen, uint32_t expert) {
  const uint4 loaded = __ldg(reinterpret_cast<const uint4*>(chosen));
  const uint32_t words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
  uint32_t slot = kTopK;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    slot = (words[i] & 0xFFFFU) == expert ? 2 * i : slot;
    slot = words[i] >> 16 == expert ? 2 * i + 1 : slot;
  }
  return slot;
}

// One block an expert: its uses in ascending order of the tokens.
__global__ void __launch_bounds__(kGroupThreads) group_kernel(const RouterArgs args) {
  __shared__ uint32_t warp_counts[2][kGroupThreads / 32];
  const uint32_t expert = blockIdx.x;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t lane = threadIdx.x % 32;
  uint32_t* uses = args.uses + size_t{expert} * args.tokens;
  uint32_t found = 0;
  for (uint32_t first = 0, turn = 0; first < args.tokens; first += kGroupThreads, turn ^= 1) {
    const uint32_t token = first + threadIdx.x;
    const uint32_t slot = token < args.tokens ? slot_of(args.chosen + size_t{token} * kTopK, expert) : kTopK;
    const uint32_t ballot = __ballot_sync(0xFFFFFFFFU, slot < kTopK);
    if (lane == 0) {
      warp_counts[turn][warp] = __popc(ballot);
    }
    __syncthreads();  // two sets of counts: one barrier a turn is enough
    uint32_t before_me = found;
#pragma unroll
    for (uint32_t i = 0; i < kGroupThreads / 32; ++i) {
      before_me += i < warp ? warp_counts[turn][i] : 0;
      found += warp_counts[turn][i];
    }
    if (slot < kTopK) {
      uses[before_me + __popc(ballot & ((1U << lane) - 1))] = token * kUses + slot;
    }
  }
  if (threadIdx.x == 0) {
    args.counts[expert] = found;
    if (found != 0 && args.used_bits != nullptr) {
      atomicOr(args.used_bits + expert / 32, 1U << expert % 32);
    }
  }
}

}  // namespace

void norm(const NormArgs& args, Device device) {
  norm_kernel<<<args.tokens, kNormThreads, 0, device.queue>>>(args);
}

void route(const RouterArgs& args, Device device) {
  const dim3 grid((args.router.row_blocks + 3) / 4, (args.tokens + kRouterTokens - 1) / kRouterTokens);
  router_kernel<<<grid, kRouterThreads, 0, device.queue>>>(args);
  choose_kernel<<<(args.tokens + kChooseWarps - 1) / kChooseWarps, kChooseWarps * 32, 0, device.queue>>>(
      args);
  group_kernel<<<args.experts, kGroupThreads, 0, device.queue>>>(args);
}

}  // namespace lily::cuda::prefill
