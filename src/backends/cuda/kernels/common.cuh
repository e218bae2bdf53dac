// What the kernels share: the order of activations, functions of the equations, sums in a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backends/cuda/kernels/decode.h"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/kernels/machine.cuh"

namespace lily::cuda {

inline constexpr float kEps = 1e-6f;

// ---- bf16 -----------------------------------------------------------------------------------------------
__device__ __forceinline__ uint16_t to_bf16(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
__device__ __forceinline__ float from_bf16(uint16_t x) {
  return __uint_as_float(static_cast<uint32_t>(x) << 16);
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  return static_cast<uint32_t>(to_bf16(low)) | static_cast<uint32_t>(to_bf16(high)) << 16;
}
__device__ __forceinline__ float low_bf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// ---- Activations that feed a product --------------------------------------------------------------------
// bf16, in the order in which a lane of mma reads the B operand: of 64 inputs, lane t (of four) holds 16 in a
// row, for step j of 16 inputs the inputs 16j + 2t, +1, +8, +9. Position of input k:
__host__ __device__ __forceinline__ uint32_t fragment_position(uint32_t k) {
  const uint32_t r = k & 15;
  return (k & ~63u) + ((r & 7) >> 1) * 16 + ((k >> 4) & 3) * 4 + (r >> 3) * 2 + (r & 1);
}

// ---- Functions of the equations -------------------------------------------------------------------------
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x / (1.0f + __expf(-x)); }

// ---- Sums in a fixed order ------------------------------------------------------------------------------
// Over each aligned group of `kLanes` lanes; every lane gets the sum.
template <int kLanes>
__device__ __forceinline__ float sum_lanes(float x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(kAll, x, offset);
  }
  return x;
}

// Input k of a feed's row, bf16. Where it is handed on, neighbours lie in one word that is written whole: the
// lanes of a pair of inputs are `kApart` apart, and all lanes of the warp must call.
template <bool kRelayed, int kApart = 1>
__device__ __forceinline__ void put_input(uint16_t* x, uint32_t k, float value, bool active) {
  const uint32_t bits = to_bf16(value);
  if constexpr (kRelayed) {
    const uint32_t next = __shfl_down_sync(kAll, bits, kApart);
    if (active && k % 2 == 0) {
      hand_on(reinterpret_cast<uint32_t*>(x + fragment_position(k)), bits | next << 16);
    }
  } else if (active) {
    x[fragment_position(k)] = static_cast<uint16_t>(bits);
  }
}

// ---- Kernels that hand values on ------------------------------------------------------------------------
// All threads of a block call. What the kernel before wrote is there, or about to be.
template <bool kRelayed>
__device__ __forceinline__ void wait_for_results(const Relay& relay) {
  if constexpr (kRelayed) {
    if (relay.before != nullptr) {
      if (threadIdx.x == 0) {
        while (peek(relay.before) + 1 < relay.blocks) {
        }
      }
      __syncthreads();
    }
  } else {
    wait_for_predecessors();
  }
}
// When a block has its results and is about to write them. Readers then find most of what they look for.
template <bool kRelayed>
__device__ __forceinline__ void announce_results(const Relay& relay) {
  if constexpr (kRelayed) {
    if (threadIdx.x == 0 && relay.own != nullptr) {
      count_one(relay.own);
    }
  }
}
// All threads of a block call: everything that the kernel before wrote is there, of any kind.
__device__ __forceinline__ void wait_for_blocks(const Relay& relay) {
  if (threadIdx.x == 0) {
    while (acquire_mark(relay.before) + 1 < relay.blocks) {
    }
  }
  __syncthreads();
}
// All threads of a block call after its last write.
__device__ __forceinline__ void count_block(const Relay& relay) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    count_one(relay.own);
  }
}
// When it has written them: whoever waits for this kernel to end waits for those before it, too.
template <bool kRelayed>
__device__ __forceinline__ void end_relay() {
  if constexpr (kRelayed) {
    wait_for_predecessors();
  }
}

}  // namespace lily::cuda
