#include "backends/cuda/kernels/limits.h"

#include "backends/cuda/kernels/common.cuh"

namespace lily::cuda {
namespace {

constexpr uint32_t kReadThreads = 512;

__global__ void __launch_bounds__(kReadThreads)
    read_kernel(const uint4* from, uint64_t count, uint32_t* out) {
  uint32_t sum = 0;
  constexpr uint32_t kAtOnce = 8;
  const uint64_t step = uint64_t{gridDim.x} * kReadThreads;
  for (uint64_t i = uint64_t{blockIdx.x} * kReadThreads + threadIdx.x; i < count; i += step * kAtOnce) {
    uint4 v[kAtOnce];
#pragma unroll
    for (uint32_t j = 0; j < kAtOnce; ++j) {
      v[j] = i + j * step < count ? __ldcs(from + i + j * step) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (uint32_t j = 0; j < kAtOnce; ++j) {
      sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
  }
  sum = __reduce_xor_sync(kAll, sum);
  if (threadIdx.x % 32 == 0) {
    atomicXor(out, sum);
  }
}

__global__ void __launch_bounds__(kLimitWarps * 32) multiply_kernel(uint32_t rounds, float* out) {
  constexpr int kChains = 8;
  float c[kChains][4] = {};
  const uint32_t a = 0x3f803f80u ^ (threadIdx.x << 3 & 0x70);
  for (uint32_t round = 0; round < rounds; ++round) {
#pragma unroll
    for (uint32_t i = 0; i < kLimitMultiplies / kChains; ++i) {
#pragma unroll
      for (int chain = 0; chain < kChains; ++chain) {
        mma(c[chain], a + i, a, a ^ 4, a, a + chain, a);
      }
    }
  }
  float sum = 0;
#pragma unroll
  for (int chain = 0; chain < kChains; ++chain) {
    sum += c[chain][0] + c[chain][1] + c[chain][2] + c[chain][3];
  }
  if (sum == 1.5f) {  // never, but the compiler cannot know
    *out = sum;
  }
}

}  // namespace

int launch_read(const uint8_t* from, uint64_t bytes, uint32_t* out, uint32_t blocks, Stream queue) {
  read_kernel<<<blocks, kReadThreads, 0, queue>>>(reinterpret_cast<const uint4*>(from), bytes / 16, out);
  return cudaGetLastError();
}

int launch_multiply(uint32_t rounds, float* out, uint32_t blocks, Stream queue) {
  multiply_kernel<<<blocks, kLimitWarps * 32, 0, queue>>>(rounds, out);
  return cudaGetLastError();
}

}  // namespace lily::cuda
