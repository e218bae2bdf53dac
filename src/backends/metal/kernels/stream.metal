// The residual stream: embedding, norms for many rows, and copies of rows.
#include "backends/metal/kernels/common.h"

// One row of the table for each row of the stream. Groups: (hidden / 256, rows); 256 threads.
kernel void embed(device const uint* codes [[buffer(0)]], device const ushort* scales [[buffer(1)]],
                  device const ushort* biases [[buffer(2)]], device const int* ids [[buffer(3)]],
                  device float* stream [[buffer(4)]], constant EmbedArgs& a [[buffer(5)]],
                  uint3 group [[threadgroup_position_in_grid]], uint t [[thread_index_in_threadgroup]]) {
  const uint row = uint(clamp(ids[group.y], 0, int(a.vocab) - 1));
  const uint col = group.x * 256 + t;
  if (col >= a.hidden) {
    return;
  }
  const uint per_word = 32 / a.bits;
  const uint word = codes[row * (a.hidden / per_word) + col / per_word];
  const uint code = (word >> (col % per_word * a.bits)) & ((1u << a.bits) - 1u);
  const uint place = row * (a.hidden / a.group) + col / a.group;
  const float product = affine_value(scales, place, a.scale_kind) * float(code);
  stream[group.y * a.hidden + col] = product + affine_value(biases, place, a.scale_kind);
}

// y = norm(x, weight), a SIMD group for a row. Groups: (rows / 8); 256 threads.
kernel void norm_rows(device const float* x [[buffer(0)]], device const float* weight [[buffer(1)]],
                      device float* y [[buffer(2)]], constant NormArgs& a [[buffer(3)]],
                      uint3 group [[threadgroup_position_in_grid]],
                      uint simd [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  const uint row = group.x * 8 + simd;
  if (row >= a.rows) {
    return;
  }
  device const float4* from = (device const float4*)(x + row * a.width);
  device const float4* scale = (device const float4*)weight;
  device float4* to = (device float4*)(y + row * a.width);
  float squares = 0;
  for (uint i = lane; i < a.width / 4; i += 32) {
    squares += dot(from[i], from[i]);
  }
  const float factor = norm_factor(simd_sum(squares), a.width);
  for (uint i = lane; i < a.width / 4; i += 32) {
    to[i] = from[i] * factor * scale[i];
  }
}

// Row rows[i] of the stream becomes row i of `out`. Groups: (width / 1024, rows); 256 threads.
kernel void gather_rows(device const float* stream [[buffer(0)]], device const uint* rows [[buffer(1)]],
                        device float* out [[buffer(2)]], constant NormArgs& a [[buffer(3)]],
                        uint3 group [[threadgroup_position_in_grid]],
                        uint t [[thread_index_in_threadgroup]]) {
  const uint i = group.x * 256 + t;
  if (i < a.width / 4) {
    ((device float4*)(out + group.y * a.width))[i] =
        ((device const float4*)(stream + rows[group.y] * a.width))[i];
  }
}

// Groups: (count / 1024); 256 threads, four floats each.
kernel void copy_floats(device const float4* from [[buffer(0)]], device float4* to [[buffer(1)]],
                        constant CopyArgs& a [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
                        uint t [[thread_index_in_threadgroup]]) {
  const uint i = group.x * 256 + t;
  if (i < a.count / 4) {
    to[i] = from[i];
  }
}
