// Products of an affine matrix with few rows of inputs. A SIMD group makes four outputs; each of its threads
// takes sixteen inputs at a time, and their sum for the bias. A norm of the inputs costs no pass of its own:
// y = 1/rms(x) * W (x * weight), and every SIMD group sees all of x anyway.
#include "backends/metal/kernels/common.h"

constant uint kBits [[function_constant(0)]];
constant uint kGroup [[function_constant(1)]];
constant uint kScaleKind [[function_constant(2)]];
constant bool kNorm [[function_constant(3)]];  // inputs are normed
constant bool kAdd [[function_constant(4)]];   // outputs are added to y

struct Product {
  device const uint* codes;
  device const ushort* scales;
  device const ushort* biases;
  device const float* x;
  device const float* norm;
  device float* y;
};

// Rows [group.y * Rows, + Rows) of the inputs. The sums of a row do not depend on Rows.
template <int Rows>
inline void project(thread const Product& p, constant ProjectArgs& a, uint2 group, uint simd, uint lane) {
  const uint first = group.x * kProjectOutputs + simd * 4;
  const uint first_row = group.y * Rows;
  if (first >= a.outputs) {
    return;
  }
  float sums[Rows][4];
  float squares[Rows];
  for (int r = 0; r < Rows; ++r) {
    squares[r] = 0;
    for (uint o = 0; o < 4; ++o) {
      sums[r][o] = 0;
    }
  }
  for (uint col = lane * kPiece; col < a.cols; col += 32 * kPiece) {
    float x[Rows][kPiece];
    float total[Rows];
    float weight[kPiece];
    if (kNorm) {
      load_inputs(p.norm + col, weight);
    }
    for (int r = 0; r < Rows; ++r) {
      const uint row = min(first_row + uint(r), a.rows - 1);
      load_inputs(p.x + row * a.x_stride + col, x[r]);
      if (kNorm) {
        squares[r] += dot_of(x[r], x[r]);
        for (uint i = 0; i < kPiece; ++i) {
          x[r][i] *= weight[i];
        }
      }
      total[r] = sum_of(x[r]);
    }
    for (uint o = 0; o < 4; ++o) {
      const uint output = min(first + o, a.outputs - 1);
      const uint place = output * (a.cols / kGroup) + col / kGroup;
      float q[kPiece];
      load_codes(p.codes, output, a.cols, col, kBits, q);
      const float scale = affine_value(p.scales, place, kScaleKind);
      const float bias = affine_value(p.biases, place, kScaleKind);
      for (int r = 0; r < Rows; ++r) {
        sums[r][o] += scale * dot_of(q, x[r]) + bias * total[r];
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    float4 sum = simd_sum(float4(sums[r][0], sums[r][1], sums[r][2], sums[r][3]));
    if (kNorm) {
      sum = sum * norm_factor(simd_sum(squares[r]), a.cols);
    }
    const uint row = first_row + uint(r);
    if (row < a.rows && lane < 4 && first + lane < a.outputs) {
      const float mine = lane == 0 ? sum.x : lane == 1 ? sum.y : lane == 2 ? sum.z : sum.w;
      device float* y = p.y + row * a.y_stride + first + lane;
      *y = kAdd ? *y + mine : mine;
    }
  }
}

// One row that is normed: the same sums, of inputs in threadgroup memory.
inline void project_staged(thread const Product& p, constant ProjectArgs& a, threadgroup const float* staged,
                           float factor, uint first, uint lane) {
  float sums[4];
  for (uint o = 0; o < 4; ++o) {
    sums[o] = 0;
  }
  for (uint col = lane * kPiece; col < a.cols; col += 32 * kPiece) {
    float x[kPiece];
    load_staged(staged, col / kPiece, x);
    const float total = sum_of(x);
    for (uint o = 0; o < 4; ++o) {
      const uint output = min(first + o, a.outputs - 1);
      const uint place = output * (a.cols / kGroup) + col / kGroup;
      float q[kPiece];
      load_codes(p.codes, output, a.cols, col, kBits, q);
      sums[o] += affine_value(p.scales, place, kScaleKind) * dot_of(q, x) +
                 affine_value(p.biases, place, kScaleKind) * total;
    }
  }
  const float4 sum = simd_sum(float4(sums[0], sums[1], sums[2], sums[3])) * factor;
  if (lane < 4 && first + lane < a.outputs) {
    const float mine = lane == 0 ? sum.x : lane == 1 ? sum.y : lane == 2 ? sum.z : sum.w;
    device float* y = p.y + first + lane;
    *y = kAdd ? *y + mine : mine;
  }
}

// Groups: (outputs / kProjectOutputs, rows / Rows); 256 threads.
kernel void project_1(device const uint* codes [[buffer(0)]], device const ushort* scales [[buffer(1)]],
                      device const ushort* biases [[buffer(2)]], device const float* x [[buffer(3)]],
                      device const float* norm [[buffer(4)]], device float* y [[buffer(5)]],
                      constant ProjectArgs& a [[buffer(6)]], uint2 group [[threadgroup_position_in_grid]],
                      uint t [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]],
                      uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float staged[kStaged];
  threadgroup float factor[1];
  const Product p = {codes, scales, biases, x, norm, y};
  if (kNorm) {
    stage_normed(staged, &factor[0], x, norm, a.cols, t);
    const uint first = group.x * kProjectOutputs + simd * 4;
    if (first < a.outputs) {
      project_staged(p, a, staged, factor[0], first, lane);
    }
  } else {
    project<1>(p, a, group, simd, lane);
  }
}
kernel void project_2(device const uint* codes [[buffer(0)]], device const ushort* scales [[buffer(1)]],
                      device const ushort* biases [[buffer(2)]], device const float* x [[buffer(3)]],
                      device const float* norm [[buffer(4)]], device float* y [[buffer(5)]],
                      constant ProjectArgs& a [[buffer(6)]], uint2 group [[threadgroup_position_in_grid]],
                      uint simd [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  const Product p = {codes, scales, biases, x, norm, y};
  project<2>(p, a, group, simd, lane);
}
kernel void project_4(device const uint* codes [[buffer(0)]], device const ushort* scales [[buffer(1)]],
                      device const ushort* biases [[buffer(2)]], device const float* x [[buffer(3)]],
                      device const float* norm [[buffer(4)]], device float* y [[buffer(5)]],
                      constant ProjectArgs& a [[buffer(6)]], uint2 group [[threadgroup_position_in_grid]],
                      uint simd [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  const Product p = {codes, scales, biases, x, norm, y};
  project<4>(p, a, group, simd, lane);
}
