// One fault in each kernel: tests/metal_emulator/test/fault_test.cpp expects the report.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

struct Large {
  uint values[12];
};

kernel void race_in_threadgroup(device float* y [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[index] = 1.0f;
  y[index] = tile[63 - index];  // no barrier
}

kernel void race_of_flags(device float* y [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[index] = 1.0f;
  threadgroup_barrier(mem_flags::mem_device);  // of the other memory
  y[index] = tile[63 - index];
}

kernel void race_of_simd_groups(device float* y [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[index] = 1.0f;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  y[index] = tile[63 - index];  // written by the other SIMD group
}

kernel void race_without_simd_barrier(device float* y [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[index] = simd_sum(1.0f);
  const float all = simd_sum(1.0f);  // orders no memory
  y[index] = tile[index ^ 1] + all;
}

kernel void race_of_parts(device uint* y [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup uint tile[32];
  if (index < 32) {
    tile[index] = 7u;
  } else {
    ((threadgroup uchar*)tile)[(index - 32) * 4 + 3] = uchar(1);  // a byte of a word that another thread writes
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[index] = tile[index % 32];
}

kernel void race_after_read(device float* y [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[index] = 1.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float next = tile[(index + 1) % 64];
  tile[index] = next + 1.0f;  // another thread may not have read it yet
  y[index] = next;
}

kernel void race_in_device(device float* y [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  y[index] = 1.0f;
  y[64 + index] = y[index ^ 1];
}

kernel void race_of_groups(device float* y [[buffer(0)]], uint group [[threadgroup_position_in_grid]],
                           uint index [[thread_index_in_threadgroup]]) {
  if (index == 0) {
    y[group / 2] = 1.0f;  // two groups, one element
  }
}

kernel void race_with_atomic(device atomic_uint* count [[buffer(0)]], device uint* plain [[buffer(1)]],
                             uint index [[thread_index_in_threadgroup]]) {
  atomic_fetch_add_explicit(&count[0], 1u, memory_order_relaxed);
  if (index == 40) {
    plain[0] = 7u;  // the same memory
  }
}

kernel void race_of_store(device float* y [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  simdgroup_float8x8 ones = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
  simdgroup_store(ones, &tile[0], 8);
  y[index] = tile[index];  // not before a barrier
}

kernel void write_one(device float* y [[buffer(0)]], uint position [[thread_position_in_grid]]) {
  y[position] = 1.0f;
}

kernel void read_one(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                     uint position [[thread_position_in_grid]]) {
  y[position] = x[position];
}

kernel void divergent_barrier(device float* y [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  if (index < 32) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  y[index] = 1.0f;
}

kernel void two_barriers(device float* y [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  if (index < 32) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
  } else {
    threadgroup_barrier(mem_flags::mem_none);
  }
  y[index] = 1.0f;
}

kernel void early_return(device float* y [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  if (index == 5) {
    return;
  }
  y[index] = simd_sum(1.0f);
}

kernel void divergent_simd(device float* y [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  float value = 1.0f;
  if (index % 2 == 0) {
    value = simd_max(value);
  }
  y[index] = value;
}

kernel void divergent_matrix(device float* y [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  simdgroup_float8x8 a = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
  if (index % 32 != 7) {
    simdgroup_multiply_accumulate(a, a, a, a);
  }
  y[index] = simd_sum(1.0f);
}

kernel void unwritten_device(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                             uint index [[thread_index_in_threadgroup]]) {
  y[index] = x[index];
}

kernel void unwritten_sum(device float* y [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  y[index] += 1.0f;  // read before it is written
}

kernel void unwritten_threadgroup(device float* y [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup half tile[64];
  if (index != 9) {
    tile[index] = half(1.0f);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[index] = float(tile[index]);
}

kernel void large_threadgroup(device float* y [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup float a[4096];
  threadgroup float b[4097];
  a[index] = 1.0f;
  b[index] = a[index];
  y[index] = b[index];
}

kernel void dynamic_threadgroup(device float* y [[buffer(0)]], threadgroup float* tile [[threadgroup(0)]],
                                uint index [[thread_index_in_threadgroup]]) {
  tile[index] = 1.0f;
  y[index] = tile[index];
}

kernel void read_outside(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                         uint index [[thread_index_in_threadgroup]]) {
  y[index] = x[index + 1];
}

kernel void write_outside(device uchar* y [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  y[index * 4] = uchar(1);
}

kernel void wide_outside(device const Large* x [[buffer(0)]], device Large* y [[buffer(1)]],
                         uint index [[thread_index_in_threadgroup]]) {
  for (uint i = 0; i < 12; ++i) {
    y[index].values[i] = x[index].values[i];
  }
}

kernel void threadgroup_outside(device float* y [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup float a[63];
  threadgroup float b[64];
  b[index] = 2.0f;
  a[index] = 1.0f;  // the last one is not in it
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[index] = a[0] + b[0];
}

kernel void misaligned(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                       uint index [[thread_index_in_threadgroup]]) {
  const float4 four = *(device const float4*)(x + index);
  y[index] = four.x;
}

kernel void write_constant(device float* y [[buffer(0)]], device float* x [[buffer(1)]],
                           uint index [[thread_index_in_threadgroup]]) {
  x[index] = 1.0f;  // memory that the host has mapped
  y[index] = 2.0f;
}
