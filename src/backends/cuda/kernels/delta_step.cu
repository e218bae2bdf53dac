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
  float q[kDeltaDim], k[kDeltaDim];
  float v[kColumns];
  float part[kWarps][kColumns];
  float squares[kWarps];
};

// Input of the convolution `back` tokens before row r of the segment: a row of the projection, or of the
// ring.
__device__ __forceinline__ float tap(const DeltaStepArgs& a, const Segment& segment, const float* ring,
                                     uint32_t r, uint32_t back, uint32_t channel) {
  if (back <= r) {
    return load_l2(a.mixed + size_t{segment.first_row - a.first_row + r - back} * a.ld + channel);
  }
  // Before position 0 the ring is zero.
  return load_l2(ring + ((segment.position + r - back) % kConvTaps) * conv_channels(a.dims) + channel);
}

__device__ __forceinline__ float convolve(const DeltaStepArgs& a, const Segment& segment, const float* ring,
                                          uint32_t r, uint32_t channel) {
  const uint32_t channels = conv_channels(a.dims);
  float sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < kConvTaps; ++i) {
    sum = fmaf(a.conv[i * channels + channel], tap(a, segment, ring, r, kConvTaps - 1 - i, channel), sum);
  }
  return silu(sum);
}

__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// Keeps the input of this token for the next three.
__device__ __forceinline__ void keep_input(const DeltaStepArgs& a, const Segment& segment, float* ring,
                                           uint32_t channel) {
  ring[(segment.position % kConvTaps) * conv_channels(a.dims) + channel] =
      load_l2(a.mixed + size_t{segment.first_row - a.first_row} * a.ld + channel);
}

__device__ __forceinline__ void put_out(const DeltaStepArgs& a, uint32_t row, uint32_t input, float o,
                                        float weight) {
  // One warp: 32 inputs of a row.
  const uint32_t width = value_width(a.dims);
  const float z = load_l2(a.mixed + size_t{row} * a.ld + conv_channels(a.dims) + input);
  const uint16_t bits = to_bf16(o * weight * silu(z));
  a.out.x[size_t{row} * width + fragment_position(input)] = bits;
  const float square = sum_lanes<kFeedBlock>(o * o);
  const float sum = sum_lanes<kFeedBlock>(from_bf16(bits));
  if (input % kFeedBlock == 0) {
    const size_t at = size_t{row} * (width / kFeedBlock) + input / kFeedBlock;
    a.out.sums[at] = sum;
    a.out.squares[at] = square;
  }
}

// What a block needs of one row, to shared memory: q and k of the head normalised, v of the strip.
__device__ __forceinline__ void load_row(Shared& sh, const DeltaStepArgs& a, const Segment& segment,
                                         const float* ring, uint32_t r) {
  const uint32_t head = blockIdx.x / kStrips;
  const uint32_t strip = blockIdx.x % kStrips;
  const uint32_t key_width = a.dims.k_heads * kDeltaDim;
  const uint32_t key_head = head / (a.dims.v_heads / a.dims.k_heads);
  const uint32_t warp = threadIdx.x / 32;
  const bool is_key = threadIdx.x >= kDeltaDim;
  const uint32_t dim = threadIdx.x % kDeltaDim;
  const float x = convolve(a, segment, ring, r, (is_key ? key_width : 0) + key_head * kDeltaDim + dim);
  if (warp == 0) {
    sh.v[threadIdx.x] =
        convolve(a, segment, ring, r, 2 * key_width + head * kDeltaDim + strip * kColumns + threadIdx.x);
  }
  const float square = sum_lanes<32>(x * x);
  if (threadIdx.x % 32 == 0) {
    sh.squares[warp] = square;
  }
  __syncthreads();
  const float* of = sh.squares + (is_key ? 4 : 0);
  const float factor = rsqrtf((of[0] + of[1]) + (of[2] + of[3]) + kEps);
  (is_key ? sh.k : sh.q)[dim] = is_key ? x * factor : x * (factor * 0.08838834764831845f);  // 128^-1/2
  __syncthreads();
}

__device__ __forceinline__ void load_state(float (&s)[kKeys], const float* state) {
#pragma unroll
  for (uint32_t i = 0; i < kKeys; ++i) {
    s[i] = load_l2(state + i * kDeltaDim);
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

__global__ void __launch_bounds__(kWarps * 32) delta_step_kernel(DeltaStepArgs a) {
  __shared__ Shared sh;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t head = blockIdx.x / kStrips;
  const uint32_t strip = blockIdx.x % kStrips;
  const Segment segment = a.segments[blockIdx.y];
  float* const delta = segment.recurrent + a.layer * recurrent_stride(a.dims);
  float* const ring = delta + delta_floats(a.dims);
  float* const state =
      delta + (size_t{head} * kDeltaDim + warp * kKeys) * kDeltaDim + strip * kColumns + lane;
  float s[kKeys];
  if (a.single != 0) {  // no kernel close before this one writes the state
    load_state(s, state);
  }
  const float weight = a.norm[strip * kColumns + lane];
  const float rate = a.decay_rate[head];
  const float dt_bias = a.dt_bias[head];

  wait_for_predecessors();
  start_successors();
  if (a.single == 0) {
    load_state(s, state);
  }
  for (uint32_t r = 0; r < segment.rows; ++r) {
    const uint32_t row = segment.first_row - a.first_row + r;
    const float* const gates = a.mixed + size_t{row} * a.ld + conv_channels(a.dims) + value_width(a.dims);
    const float decay = expf(-rate * softplus(load_l2(gates + head) + dt_bias));
    const float beta = 1.0f / (1.0f + expf(-load_l2(gates + a.dims.v_heads + head)));
    load_row(sh, a, segment, ring, r);
    const float* const k = sh.k + warp * kKeys;
    const float* const q = sh.q + warp * kKeys;
    float sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < kKeys; ++i) {
      s[i] *= decay;
      sum = fmaf(s[i], k[i], sum);
    }
    sh.part[warp][lane] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (uint32_t w = 0; w < kWarps; ++w) {
      sum += sh.part[w][lane];
    }
    const float change = beta * (sh.v[lane] - sum);
    float out = 0;
#pragma unroll
    for (uint32_t i = 0; i < kKeys; ++i) {
      s[i] = fmaf(k[i], change, s[i]);
      out = fmaf(s[i], q[i], out);
    }
    __syncthreads();
    sh.part[warp][lane] = out;
    __syncthreads();
    if (warp == 0) {
      out = 0;
#pragma unroll
      for (uint32_t w = 0; w < kWarps; ++w) {
        out += sh.part[w][lane];
      }
      put_out(a, row, head * kDeltaDim + strip * kColumns + lane, out, weight);
    }
    if (r + 1 < segment.rows) {
      __syncthreads();
    }
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

int launch_delta_step(const DeltaStepArgs& args, Stream queue) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(args.dims.v_heads * kStrips, args.segment_count);
  config.blockDim = dim3(kWarps * 32);
  config.stream = queue;
  int e = launch_dependent(delta_step_kernel, config, args);
  if (e == 0 && args.single == 0) {
    config.gridDim = dim3((conv_channels(args.dims) + 255) / 256, args.segment_count);
    config.blockDim = dim3(256);
    e = launch_dependent(keep_inputs_kernel, config, args);
  }
  return e;
}

}  // namespace lily::cuda
