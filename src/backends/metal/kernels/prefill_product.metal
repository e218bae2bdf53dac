// Products over many rows: of one matrix, or of each expert with the rows that use it (down).
#include "backends/metal/kernels/tile.h"

constant uint kBits [[function_constant(0)]];
constant uint kGroup [[function_constant(1)]];
constant uint kScaleKind [[function_constant(2)]];
constant bool kGrouped [[function_constant(3)]];  // tiles are in a table, each of one matrix of the stack
constant bool kAdd [[function_constant(4)]];      // outputs are added to y

// y[row][output] (+)= w x. `cols` is a multiple of kTileDepth. Groups: (outputs / kTileOutputs, tiles of
// rows); 128 threads. Where tiles are in a table, groups beyond its end have nothing to do.
kernel void tile_product(device const uint* codes [[buffer(0)]], device const ushort* scales [[buffer(1)]],
                         device const ushort* biases [[buffer(2)]], device const float* x [[buffer(3)]],
                         device float* y [[buffer(4)]], device const uint* tiles [[buffer(5)]],
                         constant ProjectArgs& a [[buffer(6)]], uint2 group [[threadgroup_position_in_grid]],
                         uint t [[thread_index_in_threadgroup]],
                         uint simd [[simdgroup_index_in_threadgroup]]) {
  // Weights and inputs, then the sums.
  threadgroup float memory[(kTileOutputs + kTileRows) * kWeightStride];
  uint first_row = group.y * kTileRows;
  uint count = 0;
  uint expert = 0;
  if (kGrouped) {
    if (group.y >= tiles[0]) {
      return;
    }
    expert = tiles[1 + group.y * 3];
    first_row = tiles[2 + group.y * 3];
    count = tiles[3 + group.y * 3];
  } else {
    count = min(kTileRows, a.rows - first_row);
  }
  const uint first = group.x * kTileOutputs;
  threadgroup float* weights = memory;
  threadgroup float* inputs = memory + kTileOutputs * kWeightStride;
  const Matrix matrix = {codes, scales, biases, kBits, kGroup, kScaleKind};
  device const float* row = x + (first_row + min(t / 4, count - 1)) * a.x_stride;
  simdgroup_float8x8 sums[8];
  for (uint i = 0; i < 8; ++i) {
    sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (uint depth = 0; depth < a.cols; depth += kTileDepth) {
    decode_tile(weights, matrix, uint3(expert * a.outputs, a.outputs, a.cols), uint2(first, depth), t);
    copy_inputs(inputs, row, depth, t);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    multiply_tile(inputs, weights, sums, (count + 7) / 8, simd);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  store_tile(memory, sums, simd);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = t; i < kTileRows * kTileOutputs; i += 128) {
    const uint r = i / kTileOutputs;
    const uint output = first + i % kTileOutputs;
    if (r < count && output < a.outputs) {
      device float* to = y + (first_row + r) * a.y_stride + output;
      const float sum = memory[r * kOutStride + i % kTileOutputs];
      *to = kAdd ? *to + sum : sum;
    }
  }
}
