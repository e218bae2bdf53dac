// The delta net for few rows: convolution, norms of q and k, gates, delta rule, gated norm (equations 11 to
// 17) of one value head in one threadgroup, token by token with its state in registers.
#include "backends/metal/kernels/delta.h"

constant constexpr uint kRowParts = 4;  // threads that share a column of the state
constant constexpr uint kRowsOfPart = 32;

// `ab` is [rows][a of all heads | b of all heads]. Groups: (v_heads); 512 threads, thread (part, column).
[[max_total_threads_per_threadgroup(512)]] kernel void delta_step(
    device const float* mixed [[buffer(0)]], device const float* before [[buffer(1)]],
    device const float* taps [[buffer(2)]], device const float* z [[buffer(3)]],
    device const float* ab [[buffer(4)]], device const float* rates [[buffer(5)]],
    device const float* dt_bias [[buffer(6)]], device const float* norm [[buffer(7)]],
    device float* states [[buffer(8)]], device float* heads [[buffer(9)]],
    constant DeltaArgs& a [[buffer(10)]], uint3 group [[threadgroup_position_in_grid]],
    uint t [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float qkv[3][kDeltaSize];
  threadgroup float parts[kRowParts][kDeltaSize];
  threadgroup float sums[kRowParts][kDeltaSize];
  threadgroup float factors[2];  // of q and k
  threadgroup float gates[2];    // decay, beta
  threadgroup float squares[4];
  const uint head = group.x;
  const uint key_head = head / (a.v_heads / a.k_heads);
  const uint channels = (2 * a.k_heads + a.v_heads) * kDeltaSize;
  const uint column = t % kDeltaSize;
  const uint part = t / kDeltaSize;
  device float* state = states + head * kDeltaSize * kDeltaSize + part * kRowsOfPart * kDeltaSize + column;
  float s[kRowsOfPart];
  for (uint i = 0; i < kRowsOfPart; ++i) {
    s[i] = state[i * kDeltaSize];
  }
  for (uint row = 0; row < a.rows; ++row) {
    if (part < 3) {
      const uint unit = part == 0 ? key_head : part == 1 ? a.k_heads + key_head : 2 * a.k_heads + head;
      const uint channel = unit * kDeltaSize + column;
      qkv[part][column] =
          convolved(mixed, before, ((device const float4*)taps)[channel], channels, channel, row);
    } else if (column == 0) {
      gates[0] = exp(log_decay(ab[row * 2 * a.v_heads + head], rates[head], dt_bias[head]));
      gates[1] = sigmoid_of(ab[(row * 2 + 1) * a.v_heads + head]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd < 2) {
      float sum = 0;
      for (uint i = 0; i < kDeltaSize / 32; ++i) {
        const float x = qkv[simd][lane + 32 * i];
        sum += x * x;
      }
      sum = simd_sum(sum);
      if (lane == 0) {
        factors[simd] = (simd == 0 ? 1.0f / sqrt(float(kDeltaSize)) : 1.0f) / sqrt(sum + kEpsilon);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float old = 0;  // of the decayed state's transpose times k
    for (uint i = 0; i < kRowsOfPart; ++i) {
      s[i] *= gates[0];
      old += s[i] * (qkv[1][part * kRowsOfPart + i] * factors[1]);
    }
    parts[part][column] = old;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float seen = 0;
    for (uint p = 0; p < kRowParts; ++p) {
      seen += parts[p][column];
    }
    const float change = gates[1] * (qkv[2][column] - seen);
    float out = 0;
    for (uint i = 0; i < kRowsOfPart; ++i) {
      s[i] += qkv[1][part * kRowsOfPart + i] * factors[1] * change;
      out += s[i] * (qkv[0][part * kRowsOfPart + i] * factors[0]);
    }
    sums[part][column] = out;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float o = 0;
    if (part == 0) {
      for (uint p = 0; p < kRowParts; ++p) {
        o += sums[p][column];
      }
      const float sum = simd_sum(o * o);
      if (lane == 0) {
        squares[simd] = sum;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (part == 0) {
      const float factor = norm_factor(squares[0] + squares[1] + squares[2] + squares[3], kDeltaSize);
      const uint at = (row * a.v_heads + head) * kDeltaSize + column;
      heads[at] = o * factor * norm[column] * silu_of(z[at]);
    }
  }
  for (uint i = 0; i < kRowsOfPart; ++i) {
    state[i * kDeltaSize] = s[i];
  }
}

// The inputs of the last three tokens become what the next row's convolution sees. Groups: (channels / 256);
// 256 threads.
kernel void conv_update(device const float* mixed [[buffer(0)]], device float* before [[buffer(1)]],
                        constant DeltaArgs& a [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
                        uint t [[thread_index_in_threadgroup]]) {
  const uint channels = (2 * a.k_heads + a.v_heads) * kDeltaSize;
  const uint channel = group.x * 256 + t;
  if (channel >= channels) {
    return;
  }
  float last[kConvTaps - 1];
  for (uint i = 0; i < kConvTaps - 1; ++i) {
    const uint at = a.rows + i;
    last[i] = at < kConvTaps - 1 ? before[at * channels + channel]
                                 : mixed[(at - (kConvTaps - 1)) * channels + channel];
  }
  for (uint i = 0; i < kConvTaps - 1; ++i) {
    before[i * channels + channel] = last[i];
  }
}
