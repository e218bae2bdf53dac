// The experts for few rows: the choice, gate and up with SwiGLU, and down with the weighted sum. A row has
// nine paths: its eight experts in ascending order of index, then the shared expert.
#include "backends/metal/kernels/common.h"

// Formats: of gate, up and down, or of the shared expert's down.
constant uint kBits [[function_constant(0)]];
constant uint kGroup [[function_constant(1)]];
constant uint kScaleKind [[function_constant(2)]];
constant uint kOtherBits [[function_constant(3)]];
constant uint kOtherGroup [[function_constant(4)]];
constant uint kOtherScaleKind [[function_constant(5)]];

// A number that orders floats as their values, and NaNs somehow.
inline uint ordered(float x) {
  const uint bits = as_type<uint>(x == 0.0f ? 0.0f : x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The eight largest logits of a row, lower indices first among equals; their softmax; the shared expert's
// gate. A SIMD group for a row; `logits` is [rows][experts + 1]. Groups: (rows); 32 threads.
kernel void route(device const float* logits [[buffer(0)]], device uint* experts [[buffer(1)]],
                  device float* weights [[buffer(2)]], constant RouteArgs& a [[buffer(3)]],
                  uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  device const float* of_row = logits + group.x * (a.experts + 1);
  uint keys[8];
  for (uint i = 0; i < 8; ++i) {
    const uint expert = lane + 32 * i;
    keys[i] = expert < a.experts ? max(ordered(of_row[expert]), 1u) : 0u;
  }
  uint chosen = 0;  // of lane i: the expert of rank i
  for (uint rank = 0; rank < kTopExperts; ++rank) {
    uint best = 0;
    uint index = 0xffffffffu;
    for (uint i = 0; i < 8; ++i) {
      if (keys[i] > best) {
        best = keys[i];
        index = lane + 32 * i;
      }
    }
    const uint largest = simd_max(best);
    const uint winner = simd_min(best == largest ? index : 0xffffffffu);
    if (winner % 32 == lane) {
      keys[winner / 32] = 0;
    }
    if (lane == rank) {
      chosen = winner;
    }
  }
  const float logit = lane < kTopExperts ? of_row[chosen] : 0.0f;
  const float top = simd_broadcast(logit, ushort(0));
  const float mass = lane < kTopExperts ? exp(logit - top) : 0.0f;
  float total = 0;
  uint place = 0;  // among the chosen, by index
  for (uint i = 0; i < kTopExperts; ++i) {
    total += simd_broadcast(mass, ushort(i));
    place += simd_broadcast(chosen, ushort(i)) < chosen ? 1 : 0;
  }
  if (lane < kTopExperts) {
    experts[group.x * kTopExperts + place] = chosen;
    weights[group.x * kPaths + place] = mass / total;
  }
  if (lane == kTopExperts) {
    weights[group.x * kPaths + kTopExperts] = sigmoid_of(of_row[a.experts]);
  }
}

// inner[row][path] = silu(gate x) * (up x) with x = norm(stream row). A SIMD group makes four units. Groups:
// (ffn / kExpertOutputs, paths, rows); 256 threads.
kernel void gate_up(device const uint* gate_codes [[buffer(0)]],
                    device const ushort* gate_scales [[buffer(1)]],
                    device const ushort* gate_biases [[buffer(2)]], device const uint* up_codes [[buffer(3)]],
                    device const ushort* up_scales [[buffer(4)]],
                    device const ushort* up_biases [[buffer(5)]], device const float* stream [[buffer(6)]],
                    device const float* norm [[buffer(7)]], device const uint* experts [[buffer(8)]],
                    device float* inner [[buffer(9)]], constant ExpertArgs& a [[buffer(10)]],
                    uint3 group [[threadgroup_position_in_grid]], uint t [[thread_index_in_threadgroup]],
                    uint simd [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float staged[kStaged];
  threadgroup float factor[1];
  const uint first = group.x * kExpertOutputs + simd * 4;
  const uint path = a.first_path + group.y;
  const uint row = group.z;
  stage_normed(staged, &factor[0], stream + row * a.hidden, norm, a.hidden, t);
  if (first >= a.ffn) {
    return;
  }
  const uint expert = path < kTopExperts ? experts[row * kTopExperts + path] : 0;
  const uint base = expert * a.ffn + first;
  float gate[4];
  float up[4];
  for (uint o = 0; o < 4; ++o) {
    gate[o] = 0;
    up[o] = 0;
  }
  for (uint col = lane * kPiece; col < a.hidden; col += 32 * kPiece) {
    float x[kPiece];
    float q[kPiece];
    load_staged(staged, col / kPiece, x);
    const float total = sum_of(x);
    for (uint o = 0; o < 4; ++o) {
      const uint place = (base + o) * (a.hidden / kGroup) + col / kGroup;
      load_codes(gate_codes, base + o, a.hidden, col, kBits, q);
      gate[o] += affine_value(gate_scales, place, kScaleKind) * dot_of(q, x) +
                 affine_value(gate_biases, place, kScaleKind) * total;
      const uint other = (base + o) * (a.hidden / kOtherGroup) + col / kOtherGroup;
      load_codes(up_codes, base + o, a.hidden, col, kOtherBits, q);
      up[o] += affine_value(up_scales, other, kOtherScaleKind) * dot_of(q, x) +
               affine_value(up_biases, other, kOtherScaleKind) * total;
    }
  }
  const float4 gates = simd_sum(float4(gate[0], gate[1], gate[2], gate[3]));
  const float4 ups = simd_sum(float4(up[0], up[1], up[2], up[3]));
  if (lane < 4) {
    const float g = (lane == 0 ? gates.x : lane == 1 ? gates.y : lane == 2 ? gates.z : gates.w) * factor[0];
    const float u = (lane == 0 ? ups.x : lane == 1 ? ups.y : lane == 2 ? ups.z : ups.w) * factor[0];
    inner[(row * kPaths + path) * a.ffn + first + lane] = silu_of(g) * u;
  }
}

// stream[row] += sum over the nine paths of weight * down(inner). Groups: (hidden / kExpertOutputs, rows);
// 256 threads.
kernel void down(device const uint* codes [[buffer(0)]], device const ushort* scales [[buffer(1)]],
                 device const ushort* biases [[buffer(2)]], device const uint* shared_codes [[buffer(3)]],
                 device const ushort* shared_scales [[buffer(4)]],
                 device const ushort* shared_biases [[buffer(5)]], device const float* inner [[buffer(6)]],
                 device const uint* experts [[buffer(7)]], device const float* weights [[buffer(8)]],
                 device float* stream [[buffer(9)]], constant ExpertArgs& a [[buffer(10)]],
                 uint3 group [[threadgroup_position_in_grid]], uint simd [[simdgroup_index_in_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]]) {
  const uint first = group.x * kExpertOutputs + simd * 4;
  const uint row = group.y;
  float sums[4];
  for (uint o = 0; o < 4; ++o) {
    sums[o] = 0;
  }
  for (uint path = 0; path < kPaths; ++path) {
    const bool shared = path == kTopExperts;
    const uint expert = shared ? 0 : experts[row * kTopExperts + path];
    const float weight = weights[row * kPaths + path];
    const uint base = expert * a.hidden + first;
    for (uint col = lane * kPiece; col < a.ffn; col += 32 * kPiece) {
      float x[kPiece];
      float q[kPiece];
      load_inputs(inner + (row * kPaths + path) * a.ffn + col, x);
      const float total = sum_of(x);
      for (uint o = 0; o < 4; ++o) {
        float scale;
        float bias;
        if (shared) {
          const uint place = (base + o) * (a.ffn / kOtherGroup) + col / kOtherGroup;
          load_codes(shared_codes, base + o, a.ffn, col, kOtherBits, q);
          scale = affine_value(shared_scales, place, kOtherScaleKind);
          bias = affine_value(shared_biases, place, kOtherScaleKind);
        } else {
          const uint place = (base + o) * (a.ffn / kGroup) + col / kGroup;
          load_codes(codes, base + o, a.ffn, col, kBits, q);
          scale = affine_value(scales, place, kScaleKind);
          bias = affine_value(biases, place, kScaleKind);
        }
        sums[o] += weight * (scale * dot_of(q, x) + bias * total);
      }
    }
  }
  const float4 sum = simd_sum(float4(sums[0], sums[1], sums[2], sums[3]));
  if (lane < 4) {
    stream[row * a.hidden + first + lane] += lane == 0   ? sum.x
                                             : lane == 1 ? sum.y
                                             : lane == 2 ? sum.z
                                                         : sum.w;
  }
}
