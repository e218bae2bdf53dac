// What the device can do at most: reading memory, and multiplying matrices of 8 x 8 as the kernels for many
// rows do.
#include <metal_simdgroup_matrix>
#include <metal_stdlib>
using namespace metal;

#include "backends/metal/kernels/common.h"

// Groups: any number; 256 threads. Every thread reads and folds its share of `count` uint4.
kernel void read_memory(device const uint4* from [[buffer(0)]], device uint* out [[buffer(1)]],
                        constant LimitArgs& a [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
                        uint3 groups [[threadgroups_per_grid]], uint t [[thread_index_in_threadgroup]]) {
  uint folded = 0;
  for (uint i = group.x * 256 + t; i < a.count; i += groups.x * 256) {
    const uint4 words = from[i];
    folded ^= words.x ^ words.y ^ words.z ^ words.w;
  }
  out[group.x * 256 + t] = folded;
}

// Each SIMD group multiplies 8 pairs of matrices per round: 8 * 512 multiply-adds. Groups: any number; 256
// threads. `out` has 64 floats for each SIMD group.
kernel void multiply_matrices(device float* out [[buffer(0)]], constant LimitArgs& a [[buffer(1)]],
                              uint3 group [[threadgroup_position_in_grid]],
                              uint simd [[simdgroup_index_in_threadgroup]]) {
  simdgroup_float8x8 sums[8];
  const simdgroup_float8x8 x = make_filled_simdgroup_matrix<float, 8, 8>(0.5f);
  const simdgroup_float8x8 y = make_filled_simdgroup_matrix<float, 8, 8>(0.001f);
  for (uint i = 0; i < 8; ++i) {
    sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(float(i));
  }
  for (uint round = 0; round < a.count; ++round) {
    for (uint i = 0; i < 8; ++i) {
      simdgroup_multiply_accumulate(sums[i], x, y, sums[i]);
    }
  }
  for (uint i = 1; i < 8; ++i) {
    simdgroup_multiply_accumulate(sums[0], x, sums[i], sums[0]);
  }
  simdgroup_store(sums[0], out + (group.x * 8 + simd) * 64, 8);
}
