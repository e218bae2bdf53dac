// Gated DeltaNet, token by token (equations 11 to 17): the convolution, the norms of q and k, the gates, the
// delta rule and the gated norm, fused. A block owns 32 value columns of one head of one segment and keeps
// their state in registers: warp w has keys 16w .. 16w + 15, a lane one column. Columns of the state do not
// mix, so no two blocks need each other's results: the norm over a head is left to the next product, as a
// factor per head.
#include "backends/cuda/kernels/common.cuh"
#include "backends/cuda/kernels/decode.h"

namespace lily::cuda {
namespace {

constexpr uint32_t kWarps = 8;
constexpr uint32_t kColumns = 32;
constexpr uint32_t kStrips = kDeltaDim / kColumns;
constexpr uint32_t kKeys = kDeltaDim / kWarps;  // of a warp

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
__device__ __forceinline__ Channel load_channel(const DeltaStepArgs& a, const Segment& segment,
                                                const float* ring, uint32_t channel) {
  const uint32_t channels = conv_channels(a.dims);
  Channel c;
  c.at = channel;
#pragma unroll
  for (uint32_t i = 0; i < kConvTaps; ++i) {
    c.taps[i] = a.conv[i * channels + channel];
  }
#pragma unroll
  for (uint32_t i = 0; i + 1 < kConvTaps; ++i) {  // before position 0 the ring is zero
    c.before[i] = load_l2(ring + ((segment.position + kConvTaps - 1 - i) % kConvTaps) * channels + channel);
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

// Keeps the input of this token for the next three.
__device__ __forceinline__ void keep_input(const DeltaStepArgs& a, const Segment& segment, float* ring,
                                           uint32_t channel) {
  ring[(segment.position % kConvTaps) * conv_channels(a.dims) + channel] =
      load_l2(a.mixed + size_t{segment.first_row - a.first_row} * a.ld + channel);
}

// One warp: 32 outputs of a row.
__device__ __forceinline__ void put_out(const DeltaStepArgs& a, uint32_t row, uint32_t input, float o,
                                        float gate) {
  const uint32_t width = value_width(a.dims);
  a.out.x[size_t{row} * width + fragment_position(input)] = to_bf16(o * gate);
  const float square = sum_lanes<kFeedBlock>(o * o);
  if (input % kFeedBlock == 0) {
    a.out.squares[size_t{row} * (width / kFeedBlock) + input / kFeedBlock] = square;
  }
}

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

// One token: s becomes the state after it, the strip of the head's output is written. Norms of q and k are
// factors of sums, so that only their squares must be known to all warps, not the normed vectors.
__device__ __forceinline__ void step(Shared& sh, float (&s)[kKeys], Channels& of, const DeltaStepArgs& a,
                                     const Place& place, uint32_t row) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t output = place.head * kDeltaDim + place.strip * kColumns + lane;
  const float* const mixed = a.mixed + size_t{row} * a.ld;
  const float* const gates = mixed + conv_channels(a.dims) + value_width(a.dims);
  const float key_input = load_l2(mixed + of.key.at);
  const float value_input = load_l2(mixed + of.value.at);
  const float decay_input = load_l2(gates + place.head);
  const float beta_input = load_l2(gates + a.dims.v_heads + place.head);
  const float z = load_l2(mixed + conv_channels(a.dims) + output);

  const float x = convolve(of.key, key_input);
  (threadIdx.x < kDeltaDim ? sh.q : sh.k)[threadIdx.x % kDeltaDim] = x;
  const float square = sum_lanes<32>(x * x);
  if (lane == 0) {
    sh.squares[warp] = square;
  }
  const float v = convolve(of.value, value_input);
  const float decay = expf(-place.rate * softplus(decay_input + place.dt_bias));
  const float beta = 1.0f / (1.0f + expf(-beta_input));
  __syncthreads();
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
  __syncthreads();
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
  __syncthreads();
  if (warp == 0) {
    out = 0;
#pragma unroll
    for (uint32_t w = 0; w < kWarps; ++w) {
      out += sh.out[w][lane];
    }
    put_out(a, row, output, out * of_q, place.weight * silu(z));
  }
}

// The inputs of a block's channels to the ring.
__device__ __forceinline__ void keep_inputs(const DeltaStepArgs& a, const Segment& segment, float* ring,
                                            uint32_t head, uint32_t strip) {
  const uint32_t share =
      a.dims.v_heads / a.dims.k_heads;  // value heads of a key head: the first keeps its inputs
  const uint32_t key_width = a.dims.k_heads * kDeltaDim;
  if (strip == 0 && head % share == 0) {
    keep_input(a, segment, ring,
               (threadIdx.x / kDeltaDim) * key_width + head / share * kDeltaDim + threadIdx.x % kDeltaDim);
  }
  if (threadIdx.x < kColumns) {
    keep_input(a, segment, ring, 2 * key_width + head * kDeltaDim + strip * kColumns + threadIdx.x);
  }
}

__global__ void __launch_bounds__(kWarps * 32, 4) delta_step_kernel(DeltaStepArgs a) {
  __shared__ Shared sh;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t head = blockIdx.x / kStrips;
  const uint32_t strip = blockIdx.x % kStrips;
  const uint32_t key_width = a.dims.k_heads * kDeltaDim;
  const uint32_t key_head = head / (a.dims.v_heads / a.dims.k_heads);
  const uint32_t key_channel =
      (threadIdx.x / kDeltaDim) * key_width + key_head * kDeltaDim + threadIdx.x % kDeltaDim;
  const uint32_t value_channel = 2 * key_width + head * kDeltaDim + strip * kColumns + lane;
  const Segment segment = a.segments[blockIdx.y];
  float* const delta = segment.recurrent + a.layer * recurrent_stride(a.dims);
  float* const ring = delta + delta_floats(a.dims);
  float* const state =
      delta + (size_t{head} * kDeltaDim + warp * kKeys) * kDeltaDim + strip * kColumns + lane;
  float s[kKeys];
  const Place place{head, strip, a.decay_rate[head], a.dt_bias[head], a.norm[strip * kColumns + lane]};
  start_successors();
  if (a.single == 0) {  // else no kernel close before this one writes the state
    wait_for_predecessors();
  }
  load_state(s, state);
  Channels channels{load_channel(a, segment, ring, key_channel),
                    load_channel(a, segment, ring, value_channel)};
  if (a.single != 0) {
    wait_for_predecessors();
  }
#pragma unroll 1
  for (uint32_t r = 0; r < segment.rows; ++r) {
    step(sh, s, channels, a, place, segment.first_row - a.first_row + r);
  }
#pragma unroll
  for (uint32_t i = 0; i < kKeys; ++i) {
    state[i * kDeltaDim] = s[i];
  }
  if (a.single != 0) {
    keep_inputs(a, segment, ring, head, strip);
  }
}

// The last inputs of each segment to its ring, where a launch has more than one row of it.
__global__ void __launch_bounds__(256) keep_inputs_kernel(DeltaStepArgs a) {
  const Segment segment = a.segments[blockIdx.y];
  const uint32_t channels = conv_channels(a.dims);
  wait_for_predecessors();
  start_successors();
  float* const ring = segment.recurrent + a.layer * recurrent_stride(a.dims) + delta_floats(a.dims);
  const uint32_t channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel >= channels) {
    return;
  }
  const uint32_t count = min(segment.rows, kConvTaps);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t r = segment.rows - count + i;
    ring[((segment.position + r) % kConvTaps) * channels + channel] =
        load_l2(a.mixed + size_t{segment.first_row - a.first_row + r} * a.ld + channel);
  }
}

}  // namespace

int prepare_delta_step(uint32_t bytes) {
  const int e = prepare_kernel(delta_step_kernel, bytes - sizeof(Shared));
  return e != 0 ? e : prepare_kernel(keep_inputs_kernel, 0);
}

int launch_delta_step(const DeltaStepArgs& args, Stream queue) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(args.dims.v_heads * kStrips, args.segment_count);
  config.blockDim = dim3(kWarps * 32);
  config.dynamicSmemBytes = args.shared;
  config.stream = queue;
  int e = launch_dependent(delta_step_kernel, config, args);
  config.dynamicSmemBytes = 0;
  if (e == 0 && args.single == 0) {
    config.gridDim = dim3((conv_channels(args.dims) + 255) / 256, args.segment_count);
    config.blockDim = dim3(256);
    e = launch_dependent(keep_inputs_kernel, config, args);
  }
  return e;
}

}  // namespace lily::cuda
