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

// Eight results of SIMD functions for each of 32 values.
kernel void simd_functions(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                           uint lane [[thread_index_in_simdgroup]]) {
  const float value = x[lane];
  device float* out = y + lane * 8;
  out[0] = simd_max(value);
  out[1] = simd_shuffle_xor(value, 5);
  out[2] = simd_shuffle(value, ushort((lane * 7) % 32));
  out[3] = simd_broadcast(value, 17);
  out[4] = simd_prefix_exclusive_sum(value);
  out[5] = lane < 31 ? 1.0f : 0.0f;
  const float next = simd_shuffle_down(value, 1);
  if (lane < 31) {
    out[5] = next;
  }
  out[6] = float(simd_sum(uint(lane)));
  out[7] = simd_any(value > 3.0f) && !simd_all(value > 3.0f) ? simd_min(value) : -1.0f;
}

// y = a b + c, of 16 by 16, in 8 by 8 pieces, b from threadgroup memory, transposed.
kernel void multiply(device const float* a [[buffer(0)]], device const half* b [[buffer(1)]], device float* y [[buffer(2)]],
                     uint index [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
  threadgroup half left[16 * 16];
  threadgroup half right[16 * 16];
  for (uint i = index; i < 256; i += 128) {
    left[i] = half(a[i]);
    right[(i % 16) * 16 + i / 16] = b[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
  simdgroup_half8x8 l;
  simdgroup_half8x8 r;
  const uint row = simd / 2 * 8;
  const uint column = simd % 2 * 8;
  for (uint k = 0; k < 16; k += 8) {
    simdgroup_load(l, &left[row * 16 + k], 16);
    simdgroup_load(r, &right[column * 16 + k], 16, ulong2(0), true);
    simdgroup_multiply_accumulate(sum, l, r, sum);
  }
  simdgroup_store(sum, y + row * 16 + column, 16);
}

// Conversions and vectors.
kernel void convert(device const float* x [[buffer(0)]], device half* as_half [[buffer(1)]], device bfloat* as_bfloat [[buffer(2)]],
                    device float4* four [[buffer(3)]], uint position [[thread_position_in_grid]]) {
  as_half[position] = half(x[position]);
  as_bfloat[position] = bfloat(x[position]);
  const float4 v = float4(x[position], float2(2.0f), 3.0f);
  four[position] = float4(float(as_half[position]), float(as_bfloat[position]), dot(v, float4(1.0f)),
                          float(as_type<uint>(x[position]) >> 16));
}

// Each of the 256 threads counts itself; atomics need no barrier.
kernel void count(device atomic_uint* total [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup atomic_uint here;
  if (index == 0) {
    atomic_store_explicit(&here, 0u, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  atomic_fetch_add_explicit(&here, 1u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (index == 0) {
    atomic_fetch_add_explicit(&total[0], atomic_load_explicit(&here, memory_order_relaxed), memory_order_relaxed);
  }
}

// Positions of a grid of three dimensions.
kernel void positions(device uint* y [[buffer(0)]], uint3 position [[thread_position_in_grid]],
                      uint3 grid [[threads_per_grid]], uint3 in_group [[thread_position_in_threadgroup]],
                      uint2 group [[threadgroup_position_in_grid]], uint simds [[simdgroups_per_threadgroup]]) {
  const uint at = (position.z * grid.y + position.y) * grid.x + position.x;
  y[at] = in_group.x + 100 * in_group.y + 10000 * group.x + 100000 * group.y + 1000000 * simds;
}

// Two SIMD groups exchange what they wrote, with the barriers that it takes; x is read and written again.
kernel void exchange(device float* x [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[index] = x[index];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  const float neighbour = tile[index ^ 1];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  tile[index] = neighbour;
  threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
  x[63 - index] = tile[index];
}

// Threads write the four bytes of a word each on its own; then the words are read, halved and read again.
kernel void parts(device uint* y [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup uint tile[16];
  ((threadgroup uchar*)tile)[index] = uchar(index);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (index < 16) {
    y[index] = tile[index];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (index < 32) {
    ((threadgroup ushort*)tile)[index] = ushort(1000 + index);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
  if (index < 16) {
    y[16 + index] = tile[index];
    ((device uchar*)y)[index] = uchar(((device const uchar*)y)[index] + 1);
  }
}
