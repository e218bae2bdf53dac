// CUDA C++ for a compiler of the host: qualifiers, vector types, the functions that kernels of lily call.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/cuda_emulator/grid.h"

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __align__(n) alignas(n)
#define __launch_bounds__(...)

namespace lily::cuda::emulator {
// What threadIdx.x and its like are for the running thread.
template <uint32_t (*kGet)()>
struct Coordinate {
  operator uint32_t() const { return kGet(); }  // NOLINT(google-explicit-constructor)
};
inline uint32_t thread_x() { return self().index.x; }
inline uint32_t block_x() { return self().block->index.x; }
inline uint32_t block_y() { return self().block->index.y; }
inline uint32_t block_z() { return self().block->index.z; }
inline uint32_t threads_x() { return self().grid->options().threads; }
inline uint32_t blocks_x() { return self().grid->options().blocks; }
enum Kind { kShuffle = 1, kBallot, kLargest, kSyncWarp, kMultiply, kMatrices, kTranspose, kPieces };
template <class T>
T shuffle(T value, uint32_t from) {
  static_assert(sizeof(T) == 4);
  const auto bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<T>(Met(kShuffle, &bits, 1).get(from & 31));
}
}  // namespace lily::cuda::emulator

inline constexpr struct { lily::cuda::emulator::Coordinate<lily::cuda::emulator::thread_x> x; } threadIdx{};
inline constexpr struct {
  lily::cuda::emulator::Coordinate<lily::cuda::emulator::block_x> x;
  lily::cuda::emulator::Coordinate<lily::cuda::emulator::block_y> y;
  lily::cuda::emulator::Coordinate<lily::cuda::emulator::block_z> z;
} blockIdx{};
inline constexpr struct { lily::cuda::emulator::Coordinate<lily::cuda::emulator::threads_x> x; } blockDim{};
inline constexpr struct { lily::cuda::emulator::Coordinate<lily::cuda::emulator::blocks_x> x; } gridDim{};

struct dim3 {
  // A constructor, because not every compiler takes an aggregate in parentheses.
  constexpr dim3(uint32_t in_x = 1, uint32_t in_y = 1, uint32_t in_z = 1) : x(in_x), y(in_y), z(in_z) {}
  uint32_t x, y, z;
};
using cudaError_t = int;
inline constexpr int cudaSuccess = 0;
inline constexpr int cudaErrorInvalidValue = 1;
inline int cudaGetLastError() { return 0; }
struct CUstream_st;
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  CUstream_st* stream;
};

struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
using std::max;
using std::min;

inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __expf(float x) { return std::exp(x); }
inline void sincos(double x, double* sine, double* cosine) {
  *sine = std::sin(x);
  *cosine = std::cos(x);
}
inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<uint32_t>(x)) + 1; }
inline int __clz(uint32_t x) { return std::countl_zero(x); }
inline int __popc(uint32_t x) { return std::popcount(x); }

template <class T>
T __shfl_sync(unsigned, T value, uint32_t from) {
  return lily::cuda::emulator::shuffle(value, from);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, uint32_t mask) {
  return lily::cuda::emulator::shuffle(value, (threadIdx.x & 31) ^ mask);
}
template <class T>
T __shfl_up_sync(unsigned, T value, uint32_t by) {
  const uint32_t lane = threadIdx.x & 31;
  return lily::cuda::emulator::shuffle(value, lane >= by ? lane - by : lane);
}
template <class T>
T __shfl_down_sync(unsigned, T value, uint32_t by) {
  const uint32_t lane = threadIdx.x & 31;
  return lily::cuda::emulator::shuffle(value, lane + by < 32 ? lane + by : lane);
}
inline uint32_t __ballot_sync(unsigned, bool is);
inline int __any_sync(unsigned mask, bool is) { return __ballot_sync(mask, is) != 0; }
inline uint32_t __ballot_sync(unsigned, bool is) {
  const uint32_t word = is ? 1 : 0;
  const lily::cuda::emulator::Met met(lily::cuda::emulator::kBallot, &word, 1);
  uint32_t bits = 0;
  for (uint32_t lane = 0; lane < 32; ++lane) {
    bits |= met.get(lane) << lane;
  }
  return bits;
}
inline uint32_t __reduce_max_sync(unsigned, uint32_t value) {
  const lily::cuda::emulator::Met met(lily::cuda::emulator::kLargest, &value, 1);
  uint32_t largest = 0;
  for (uint32_t lane = 0; lane < 32; ++lane) {
    largest = std::max(largest, met.get(lane));
  }
  return largest;
}
inline void __syncwarp() { lily::cuda::emulator::Met(lily::cuda::emulator::kSyncWarp, nullptr, 0); }
inline void __syncthreads() { lily::cuda::emulator::sync_threads(0, blockDim.x); }
inline void __threadfence() {}
inline uint32_t atomicOr(uint32_t* at, uint32_t bits) {
  const uint32_t was = *at;
  *at = was | bits;
  return was;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
