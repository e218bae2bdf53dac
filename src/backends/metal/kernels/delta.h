// What the step and the chunked form of the delta net share: convolution and gates.
#pragma once

#include "backends/metal/kernels/common.h"

// Equation 11 for one channel of row `row` of a sequence. `mixed` holds the inputs of its rows, `before`
// those of the three tokens before them, oldest first.
inline float convolved(device const float* mixed, device const float* before, float4 taps, uint channels,
                       uint channel, uint row) {
  float sum = 0;
  for (uint tap = 0; tap < kConvTaps; ++tap) {
    const uint at = row + tap;  // of the inputs with the three before them
    const float x = at < kConvTaps - 1 ? before[at * channels + channel]
                                       : mixed[(at - (kConvTaps - 1)) * channels + channel];
    sum += taps[tap] * x;
  }
  return silu_of(sum);
}

// log(1 + exp(x)), exact to the last bits for small exp(x) too: the rounding of 1 + y is divided out.
inline float softplus_of(float x) {
  if (x > 20.0f) {
    return x;
  }
  const float y = exp(x);
  const float rounded = 1.0f + y;
  return rounded == 1.0f ? y : log(rounded) * (y / (rounded - 1.0f));
}

// Equation 13: g, the logarithm of the decay. `rate` is exp(A_log).
inline float log_decay(float a, float rate, float dt_bias) { return -rate * softplus_of(a + dt_bias); }

// First token of a chunk and how many it has.
inline uint chunk_first(constant DeltaArgs& a, uint chunk) {
  return chunk == 0 ? 0 : a.first_rows + (chunk - 1) * kDeltaChunk;
}
inline uint chunk_rows(constant DeltaArgs& a, uint chunk) {
  return chunk == 0 ? min(a.first_rows, a.rows) : min(kDeltaChunk, a.rows - chunk_first(a, chunk));
}
