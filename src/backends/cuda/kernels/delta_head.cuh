// A step of Gated DeltaNet for whole heads: what does not depend on the column is worked out for all of them
// at once. 256 threads own a head of one sequence; a lane has four columns of its warp's keys. The sums are
// those of step() in delta_step.cuh.
#pragma once

#include "backends/cuda/kernels/delta_step.cuh"

namespace lily::cuda::delta {

inline constexpr uint32_t kEach = kDeltaDim / 32;  // columns of a lane

struct HeadShared {
  float q[kDeltaDim], k[kDeltaDim], v[kDeltaDim];
  float squares[kWarps];
  float decay, beta;
  float4 change[kWarps][32], out[kWarps][32];
};

// One warp: 32 outputs of a row.
template <bool kRelayed>
__device__ __forceinline__ void put_out(const DeltaStepArgs& a, uint32_t row, uint32_t input, float o,
                                        float gate) {
  const uint32_t width = value_width(a.dims);
  put_input<kRelayed>(a.out.x + size_t{row} * width, input, o * gate, true);
  const float square = sum_lanes<kFeedBlock>(o * o);
  if (input % kFeedBlock == 0) {
    write<kRelayed>(a.out.squares + size_t{row} * (width / kFeedBlock) + input / kFeedBlock, square);
  }
}

__device__ __forceinline__ float4 sum_of_warps(const float4 (&of)[kWarps][32], uint32_t lane) {
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
  for (uint32_t w = 0; w < kWarps; ++w) {
    const float4 x = of[w][lane];
    sum.x += x.x;
    sum.y += x.y;
    sum.z += x.z;
    sum.w += x.w;
  }
  return sum;
}

// A head, and a thread's channels: one of q or k, and in the first four warps one of v. The other warps work
// out the gates.
struct Head {
  uint32_t head, key_channel, value_channel;
  __device__ __forceinline__ Head(const Dims& dims, uint32_t index)
      : head(index),
        key_channel((threadIdx.x / kDeltaDim) * dims.k_heads * kDeltaDim +
                    head / (dims.v_heads / dims.k_heads) * kDeltaDim + threadIdx.x % kDeltaDim),
        value_channel(2 * dims.k_heads * kDeltaDim + head * kDeltaDim + threadIdx.x % kDeltaDim) {}
};
struct HeadGates {
  float rate, dt_bias;
};

// What a thread needs of a token's projections: the input of its channel of q or k; of its channel of v, or
// in the fifth and sixth warp of a gate; and in the first four warps the gate of an output.
struct HeadInputs {
  float key, other, z;
};
__device__ __forceinline__ HeadInputs load_head_inputs(const DeltaStepArgs& a, const Head& head,
                                                       uint32_t row) {
  const float* const mixed = a.mixed + size_t{row} * a.ld;
  const float* const gates = mixed + conv_channels(a.dims) + value_width(a.dims);
  const bool decays = threadIdx.x / 32 == kDeltaDim / 32;
  return {load_l2(mixed + head.key_channel),
          load_l2(threadIdx.x < kDeltaDim ? mixed + head.value_channel
                  : decays                ? gates + head.head
                                          : gates + a.dims.v_heads + head.head),
          load_l2(mixed + conv_channels(a.dims) + head.head * kDeltaDim + threadIdx.x % kDeltaDim)};
}

// Before the first barrier of a token: q, k and v of the head, and its gates.
__device__ __forceinline__ void prepare_token(HeadShared& sh, const HeadGates& gates, Channels& of,
                                              const HeadInputs& in) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  const float x = convolve(of.key, in.key);
  (threadIdx.x < kDeltaDim ? sh.q : sh.k)[threadIdx.x % kDeltaDim] = x;
  const float square = sum_lanes<32>(x * x);
  if (lane == 0) {
    sh.squares[warp] = square;
  }
  if (threadIdx.x < kDeltaDim) {
    sh.v[threadIdx.x] = convolve(of.value, in.other);
  } else if (warp == kDeltaDim / 32 && lane == 0) {
    sh.decay = expf(-gates.rate * softplus(in.other + gates.dt_bias));
  } else if (warp == kDeltaDim / 32 + 1 && lane == 0) {
    sh.beta = 1.0f / (1.0f + expf(-in.other));
  }
}

// One token; sh holds what prepare_token() has put there. Ends with a barrier, behind which sh.out is there.
__device__ __forceinline__ float head_step(HeadShared& sh, float (&s)[kKeys][kEach]) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  const float4 q4 = *reinterpret_cast<const float4*>(sh.squares);
  const float4 k4 = *reinterpret_cast<const float4*>(sh.squares + 4);
  const float of_q = rsqrtf((q4.x + q4.y) + (q4.z + q4.w) + kEps) * 0.08838834764831845f;  // 128^-1/2
  const float of_k = rsqrtf((k4.x + k4.y) + (k4.z + k4.w) + kEps);
  const float decay = sh.decay;
  const float* const k = sh.k + warp * kKeys;
  const float* const q = sh.q + warp * kKeys;
  float sum[kEach] = {};
#pragma unroll
  for (uint32_t i = 0; i < kKeys; ++i) {
    const float of = k[i];
#pragma unroll
    for (uint32_t c = 0; c < kEach; ++c) {
      s[i][c] *= decay;
      sum[c] = fmaf(s[i][c], of, sum[c]);
    }
  }
  sh.change[warp][lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
  __syncthreads();
  const float4 total = sum_of_warps(sh.change, lane);
  const float4 v = reinterpret_cast<const float4*>(sh.v)[lane];
  const float beta = sh.beta;
  const float change[kEach] = {beta * (v.x - total.x * of_k) * of_k, beta * (v.y - total.y * of_k) * of_k,
                               beta * (v.z - total.z * of_k) * of_k, beta * (v.w - total.w * of_k) * of_k};
  float out[kEach] = {};
#pragma unroll
  for (uint32_t i = 0; i < kKeys; ++i) {
    const float of = k[i];
    const float by = q[i];
#pragma unroll
    for (uint32_t c = 0; c < kEach; ++c) {
      s[i][c] = fmaf(of, change[c], s[i][c]);
      out[c] = fmaf(s[i][c], by, out[c]);
    }
  }
  sh.out[warp][lane] = make_float4(out[0], out[1], out[2], out[3]);
  __syncthreads();
  return of_q;
}

}  // namespace lily::cuda::delta
