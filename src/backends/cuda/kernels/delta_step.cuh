// What a step of Gated DeltaNet is made of, wherever its inputs come from (equations 11 to 17). 256 threads
// own 32 value columns of one head of one sequence and keep their state in registers: warp w has keys
// 16w .. 16w + 15, a lane one column. Columns of the state do not mix, so no two strips need each other's
// results: the norm over a head is left to the next product, as a factor per head.
#pragma once

#include "backends/cuda/kernels/common.cuh"
#include "backends/cuda/kernels/decode.h"

namespace lily::cuda::delta {

inline constexpr uint32_t kWarps = 8;
inline constexpr uint32_t kColumns = kDeltaColumns;
inline constexpr uint32_t kStrips = kDeltaDim / kColumns;
inline constexpr uint32_t kKeys = kDeltaDim / kWarps;  // of a warp

struct Shared {
  float q[kDeltaDim], k[kDeltaDim];  // before their norms
  float squares[kWarps];
  float change[kWarps][kColumns], out[kWarps][kColumns];
};

// The convolution of one channel: its taps, and the inputs of the tokens before the launch, youngest first.
struct Channel {
  uint32_t at;
  float taps[kConvTaps];
  float before[kConvTaps - 1];
};
__device__ __forceinline__ Channel load_channel(const Dims& dims, const float* conv, uint32_t position,
                                                const float* ring, uint32_t channel) {
  const uint32_t channels = conv_channels(dims);
  Channel c;
  c.at = channel;
#pragma unroll
  for (uint32_t i = 0; i < kConvTaps; ++i) {
    c.taps[i] = conv[i * channels + channel];
  }
#pragma unroll
  for (uint32_t i = 0; i + 1 < kConvTaps; ++i) {  // before position 0 the ring is zero
    c.before[i] = load_l2(ring + ((position + kConvTaps - 1 - i) % kConvTaps) * channels + channel);
  }
  return c;
}
// A thread's: one of q or k, and one of v.
struct Channels {
  Channel key, value;
};
// Takes in the next token's input.
__device__ __forceinline__ float convolve(Channel& c, float x) {
  float sum = 0;
#pragma unroll
  for (uint32_t i = kConvTaps - 1; i > 0; --i) {
    sum = fmaf(c.taps[kConvTaps - 1 - i], c.before[i - 1], sum);
  }
  sum = fmaf(c.taps[kConvTaps - 1], x, sum);
#pragma unroll
  for (uint32_t i = kConvTaps - 2; i > 0; --i) {
    c.before[i] = c.before[i - 1];
  }
  c.before[0] = x;
  return silu(sum);
}

__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

__device__ __forceinline__ void load_state(float (&s)[kKeys], const float* state) {
#pragma unroll
  for (uint32_t i = 0; i < kKeys; ++i) {
    s[i] = load_l2(state + i * kDeltaDim);
  }
}

// What every row of a block's segment has in common.
struct Place {
  uint32_t head, strip;
  float rate, dt_bias;
  float weight;  // of the gated norm
};

// What a thread needs of a token's projections: the inputs of its two channels, the head's gates, and the
// gate of its output.
struct TokenInputs {
  float key, value, decay, beta, z;
};

// One token: s becomes the state after it. The first warp puts out the strip of the head's output: value and
// gate of lane's column. Norms of q and k are factors of sums, so that only their squares must be known to
// all warps, not the normed vectors. `sync` is a barrier of the threads of the strip.
template <class Sync, class Put>
__device__ __forceinline__ void step(Shared& sh, float (&s)[kKeys], Channels& of, const Place& place,
                                     const TokenInputs& in, const Sync& sync, const Put& put) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  const float x = convolve(of.key, in.key);
  (threadIdx.x < kDeltaDim ? sh.q : sh.k)[threadIdx.x % kDeltaDim] = x;
  const float square = sum_lanes<32>(x * x);
  if (lane == 0) {
    sh.squares[warp] = square;
  }
  const float v = convolve(of.value, in.value);
  const float decay = expf(-place.rate * softplus(in.decay + place.dt_bias));
  const float beta = 1.0f / (1.0f + expf(-in.beta));
  sync();
  const float4 q4 = *reinterpret_cast<const float4*>(sh.squares);
  const float4 k4 = *reinterpret_cast<const float4*>(sh.squares + 4);
  const float of_q = rsqrtf((q4.x + q4.y) + (q4.z + q4.w) + kEps) * 0.08838834764831845f;  // 128^-1/2
  const float of_k = rsqrtf((k4.x + k4.y) + (k4.z + k4.w) + kEps);
  const float4* const k = reinterpret_cast<const float4*>(sh.k + warp * kKeys);
  const float4* const q = reinterpret_cast<const float4*>(sh.q + warp * kKeys);
  float sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < kKeys; i += 4) {
    const float4 of = k[i / 4];
    s[i] *= decay;
    s[i + 1] *= decay;
    s[i + 2] *= decay;
    s[i + 3] *= decay;
    sum = fmaf(s[i], of.x, sum);
    sum = fmaf(s[i + 1], of.y, sum);
    sum = fmaf(s[i + 2], of.z, sum);
    sum = fmaf(s[i + 3], of.w, sum);
  }
  sh.change[warp][lane] = sum;
  sync();
  sum = 0;
#pragma unroll
  for (uint32_t w = 0; w < kWarps; ++w) {
    sum += sh.change[w][lane];
  }
  const float change = beta * (v - sum * of_k) * of_k;
  float out = 0;
#pragma unroll
  for (uint32_t i = 0; i < kKeys; i += 4) {
    const float4 of = k[i / 4];
    const float4 by = q[i / 4];
    s[i] = fmaf(of.x, change, s[i]);
    s[i + 1] = fmaf(of.y, change, s[i + 1]);
    s[i + 2] = fmaf(of.z, change, s[i + 2]);
    s[i + 3] = fmaf(of.w, change, s[i + 3]);
    out = fmaf(s[i], by.x, out);
    out = fmaf(s[i + 1], by.y, out);
    out = fmaf(s[i + 2], by.z, out);
    out = fmaf(s[i + 3], by.w, out);
  }
  sh.out[warp][lane] = out;
  sync();
  if (warp == 0) {
    out = 0;
#pragma unroll
    for (uint32_t w = 0; w < kWarps; ++w) {
      out += sh.out[w][lane];
    }
    put(out * of_q, place.weight * silu(in.z));
  }
}

}  // namespace lily::cuda::delta
