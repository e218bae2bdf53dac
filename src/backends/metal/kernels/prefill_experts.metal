// The experts for many rows. The uses of each expert are gathered on the device (no wait of the host), tiles
// of them go through gate, up and SwiGLU here and through down in prefill_product.metal, and every row adds
// its nine results in order.
#include "backends/metal/kernels/tile.h"

constant uint kBits [[function_constant(0)]];  // of gate
constant uint kGroup [[function_constant(1)]];
constant uint kScaleKind [[function_constant(2)]];
constant uint kOtherBits [[function_constant(3)]];  // of up
constant uint kOtherGroup [[function_constant(4)]];
constant uint kOtherScaleKind [[function_constant(5)]];
constant bool kGrouped [[function_constant(6)]];  // the experts; else the shared one, with all rows

// How often each expert was chosen: a SIMD group for an expert. Groups: (experts / 8); 256 threads.
kernel void group_count(device const uint* experts [[buffer(0)]], device uint* counts [[buffer(1)]],
                        constant GroupArgs& a [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
                        uint simd [[simdgroup_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
  const uint expert = group.x * 8 + simd;
  uint count = 0;
  for (uint i = lane; i < a.rows * kTopExperts; i += 32) {
    count += experts[i] == expert ? 1 : 0;
  }
  count = simd_sum(count);
  if (lane == 0) {
    counts[expert] = count;
  }
}

// Uses in the order of experts, and of rows within one: uses[place] = row * 8 + rank and its inverse; and the
// table of tiles: how many, then (expert, first place, places) of each. Groups and threads as above.
kernel void group_scatter(device const uint* experts [[buffer(0)]], device const uint* counts [[buffer(1)]],
                          device uint* uses [[buffer(2)]], device uint* places [[buffer(3)]],
                          device uint* tiles [[buffer(4)]], constant GroupArgs& a [[buffer(5)]],
                          uint3 group [[threadgroup_position_in_grid]],
                          uint simd [[simdgroup_index_in_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]]) {
  const uint expert = group.x * 8 + simd;
  uint first = 0;
  uint first_tile = 0;
  for (uint e = lane; e < expert; e += 32) {
    first += counts[e];
    first_tile += (counts[e] + kTileRows - 1) / kTileRows;
  }
  first = simd_sum(first);
  first_tile = simd_sum(first_tile);
  const uint count = counts[expert];
  const uint of_expert = (count + kTileRows - 1) / kTileRows;
  for (uint i = lane; i < of_expert; i += 32) {
    device uint* tile = tiles + 1 + (first_tile + i) * 3;
    tile[0] = expert;
    tile[1] = first + i * kTileRows;
    tile[2] = min(kTileRows, count - i * kTileRows);
  }
  if (expert == a.experts - 1 && lane == 0) {
    tiles[0] = first_tile + of_expert;
  }
  for (uint base = 0; count > 0 && base < a.rows * kTopExperts; base += 32) {
    const uint use = base + lane;
    const bool mine = use < a.rows * kTopExperts && experts[use] == expert;
    const uint before = simd_prefix_exclusive_sum(mine ? 1u : 0u);
    if (mine) {
      uses[first + before] = use;
      places[use] = first + before;
    }
    first += simd_broadcast(before + (mine ? 1u : 0u), ushort(31));
  }
}

// inner[place] = silu(gate x) * (up x). The shared expert's places follow those of the others: its inner is
// bound there. Groups: (ffn / kTileOutputs, tiles); 128 threads.
kernel void tile_gate_up(device const uint* gate_codes [[buffer(0)]],
                         device const ushort* gate_scales [[buffer(1)]],
                         device const ushort* gate_biases [[buffer(2)]],
                         device const uint* up_codes [[buffer(3)]],
                         device const ushort* up_scales [[buffer(4)]],
                         device const ushort* up_biases [[buffer(5)]], device const float* x [[buffer(6)]],
                         device const uint* uses [[buffer(7)]], device const uint* tiles [[buffer(8)]],
                         device float* inner [[buffer(9)]], constant ExpertArgs& a [[buffer(10)]],
                         uint3 group [[threadgroup_position_in_grid]], uint t [[thread_index_in_threadgroup]],
                         uint simd [[simdgroup_index_in_threadgroup]]) {
  threadgroup float memory[(2 * kTileOutputs + kTileRows) * kWeightStride];
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
  threadgroup float* gates = memory;
  threadgroup float* ups = memory + kTileOutputs * kWeightStride;
  threadgroup float* inputs = memory + 2 * kTileOutputs * kWeightStride;
  const Matrix gate = {gate_codes, gate_scales, gate_biases, kBits, kGroup, kScaleKind};
  const Matrix up = {up_codes, up_scales, up_biases, kOtherBits, kOtherGroup, kOtherScaleKind};
  const uint place = first_row + min(t / 4, count - 1);
  device const float* row = x + (kGrouped ? uses[place] / kTopExperts : place) * a.hidden;
  simdgroup_float8x8 gate_sums[8];
  simdgroup_float8x8 up_sums[8];
  for (uint i = 0; i < 8; ++i) {
    gate_sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    up_sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  const uint3 shape = uint3(expert * a.ffn, a.ffn, a.hidden);
  for (uint depth = 0; depth < a.hidden; depth += kTileDepth) {
    decode_tile(gates, gate, shape, uint2(first, depth), t);
    decode_tile(ups, up, shape, uint2(first, depth), t);
    copy_inputs(inputs, row, depth, t);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    multiply_tile(inputs, gates, gate_sums, (count + 7) / 8, simd);
    multiply_tile(inputs, ups, up_sums, (count + 7) / 8, simd);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  threadgroup float* up_out = memory + kTileRows * kOutStride;
  store_tile(memory, gate_sums, simd);
  store_tile(up_out, up_sums, simd);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = t; i < kTileRows * kTileOutputs; i += 128) {
    const uint r = i / kTileOutputs;
    const uint unit = i % kTileOutputs;
    if (r < count && first + unit < a.ffn) {
      inner[(first_row + r) * a.ffn + first + unit] =
          silu_of(memory[r * kOutStride + unit]) * up_out[r * kOutStride + unit];
    }
  }
}

// stream[row] += its eight experts' results by weight in ascending order of index, then the shared one's,
// which are rows 8 * rows and on of `y`. Groups: (hidden / 1024, rows); 256 threads.
kernel void combine_experts(device const float* y [[buffer(0)]], device const uint* places [[buffer(1)]],
                            device const float* weights [[buffer(2)]], device float* stream [[buffer(3)]],
                            constant CombineArgs& a [[buffer(4)]],
                            uint3 group [[threadgroup_position_in_grid]],
                            uint t [[thread_index_in_threadgroup]]) {
  const uint i = group.x * 256 + t;
  const uint row = group.y;
  if (i >= a.hidden / 4) {
    return;
  }
  float4 sum = float4(0.0f);
  for (uint path = 0; path < kPaths; ++path) {
    const uint place = path < kTopExperts ? places[row * kTopExperts + path] : a.rows * kTopExperts + row;
    sum += weights[row * kPaths + path] * ((device const float4*)(y + place * a.hidden))[i];
  }
  device float4* to = (device float4*)(stream + row * a.hidden);
  to[i] += sum;
}
