// Gated DeltaNet, elementwise: convolution, silu and unit vectors in front of the delta rule, the gated norm
// behind it.
#include "backends/cuda/kernels/prefill_delta.cuh"
#include "backends/cuda/kernels/prefill_mma.cuh"

namespace lily::cuda::prefill {
namespace {

constexpr float kEps = 1e-6F;
constexpr uint32_t kRun = 16;       // tokens a warp convolves one after the other
constexpr uint32_t kLookahead = 4;  // of which are loaded at once
constexpr uint32_t kWarps = 8;

// Four neighbouring channels of a lane.
struct Channels {
  float value[4];
};
__device__ __forceinline__ Channels to_channels(uint2 pairs) {
  return {low_bf16(pairs.x), high_bf16(pairs.x), low_bf16(pairs.y), high_bf16(pairs.y)};
}
__device__ __forceinline__ Channels load_channels(const float* from) {
  const float4 loaded = *reinterpret_cast<const float4*>(from);
  return {loaded.x, loaded.y, loaded.z, loaded.w};
}

// The projection of the token `back` before row `in_segment` of a segment.
__device__ __forceinline__ Channels earlier(const DeltaArgs& args, const Segment& segment, int in_segment,
                                            uint32_t channel) {
  const uint32_t channels = conv_channels(args.dims);
  if (in_segment >= 0) {
    const uint16_t* row = args.mixed + size_t{segment.first_row + in_segment} * channels + channel;
    return to_channels(*reinterpret_cast<const uint2*>(row));
  }
  const float* ring = layer_state(args, segment) + delta_floats(args.dims);
  const uint32_t position = segment.position + kConvTaps + in_segment;  // of the token, plus kConvTaps
  return load_channels(ring + size_t{position % kConvTaps} * channels + channel);
}

// Where a head of 128 convolved channels goes, and by what its unit vectors are multiplied (0: v is left as
// it is).
struct HeadTarget {
  uint16_t* to;
  uint32_t stride;
  float scale;
};
__device__ __forceinline__ HeadTarget head_target(const DeltaArgs& args, uint32_t head) {
  const uint32_t keys = args.dims.k_heads;
  if (head < 2 * keys) {
    const bool query = head < keys;
    return {(query ? args.q : args.k) + (query ? head : head - keys) * kDeltaDim, keys * kDeltaDim,
            query ? 0.08838834764831845F : 1.0F};
  }
  return {args.v + (head - 2 * keys) * kDeltaDim, value_width(args.dims), 0.0F};
}

__device__ __forceinline__ void finish_channels(const HeadTarget& target, uint32_t row, Channels y) {
  float factor = 1;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    y.value[i] = silu(y.value[i]);
  }
  if (target.scale != 0) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum += y.value[i] * y.value[i];
    }
    factor = target.scale * rsqrtf(warp_sum(sum) + kEps);
  }
  const uint2 packed{pack_bf16(y.value[0] * factor, y.value[1] * factor),
                     pack_bf16(y.value[2] * factor, y.value[3] * factor)};
  *reinterpret_cast<uint2*>(target.to + size_t{row} * target.stride + threadIdx.x % 32 * 4) = packed;
}

// One warp a head and run of tokens. Equations 11, 12, 14.
__global__ void __launch_bounds__(kWarps * 32) convolve_kernel(const DeltaArgs args) {
  const ChunkRows chunk = find_chunk(args, blockIdx.x / (kChunk / kRun));
  const uint32_t first = blockIdx.x % (kChunk / kRun) * kRun;
  const uint32_t head = blockIdx.y * kWarps + threadIdx.x / 32;
  if (first >= chunk.count || head >= 2 * args.dims.k_heads + args.dims.v_heads) {
    return;
  }
  const Segment segment = args.segments[chunk.segment];
  const uint32_t channels = conv_channels(args.dims);
  const uint32_t channel = head * kDeltaDim + threadIdx.x % 32 * 4;
  Channels taps[kConvTaps];
  Channels window[kConvTaps];  // the last is the current token
#pragma unroll
  for (int i = 0; i < static_cast<int>(kConvTaps); ++i) {
    taps[i] = load_channels(args.conv + size_t{static_cast<uint32_t>(i)} * channels + channel);
    window[i] = i == 0 ? Channels{}
                       : earlier(args, segment, static_cast<int>(chunk.in_segment + first) - 4 + i, channel);
  }
  const HeadTarget target = head_target(args, head);
  const uint32_t rows = min(kRun, chunk.count - first);
  const uint16_t* from = args.mixed + size_t{chunk.row + first} * channels + channel;
  for (uint32_t group = 0; group < rows; group += kLookahead) {
    uint2 loaded[kLookahead];
#pragma unroll
    for (uint32_t i = 0; i < kLookahead; ++i) {
      loaded[i] = *reinterpret_cast<const uint2*>(from + size_t{min(group + i, rows - 1)} * channels);
    }
#pragma unroll
    for (uint32_t i = 0; i < kLookahead; ++i) {
      window[0] = window[1];
      window[1] = window[2];
      window[2] = window[3];
      window[3] = to_channels(loaded[i]);
      Channels y{};
#pragma unroll
      for (uint32_t tap = 0; tap < kConvTaps; ++tap) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          y.value[c] += taps[tap].value[c] * window[tap].value[c];
        }
      }
      if (group + i < rows) {
        finish_channels(target, chunk.row + first + group + i, y);
      }
    }
  }
}

// The last projections of every segment, for the pass after this one. Runs when the ring has been read.
__global__ void __launch_bounds__(256) ring_kernel(const DeltaArgs args) {
  const Segment segment = args.segments[blockIdx.y];
  const uint32_t channels = conv_channels(args.dims);
  const uint32_t channel = blockIdx.x * 256 + threadIdx.x;
  if (channel >= channels) {
    return;
  }
  float* ring = layer_state(args, segment) + delta_floats(args.dims);
  for (uint32_t back = 1; back <= min(kConvTaps - 1, segment.rows); ++back) {
    const uint32_t row = segment.rows - back;
    const uint16_t value = args.mixed[size_t{segment.first_row + row} * channels + channel];
    ring[size_t{(segment.position + row) % kConvTaps} * channels + channel] =
        __uint_as_float(static_cast<uint32_t>(value) << 16);
  }
}

// Equation 17: one warp a head of a token, in place.
__global__ void __launch_bounds__(kWarps * 32) gated_norm_kernel(const DeltaArgs args) {
  const uint32_t index = blockIdx.x * kWarps + threadIdx.x / 32;
  if (index >= args.tokens * args.dims.v_heads) {
    return;
  }
  const uint32_t lane = threadIdx.x % 32;
  const size_t at = size_t{index} * kDeltaDim + lane * 4;
  const Channels o = to_channels(*reinterpret_cast<const uint2*>(args.out + at));
  const Channels z = to_channels(*reinterpret_cast<const uint2*>(args.z + at));
  const Channels weight = load_channels(args.norm + lane * 4);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum += o.value[i] * o.value[i];
  }
  const float factor = rsqrtf(warp_sum(sum) / static_cast<float>(kDeltaDim) + kEps);
  float y[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    y[i] = o.value[i] * factor * weight.value[i] * silu(z.value[i]);
  }
  *reinterpret_cast<uint2*>(args.out + at) = {pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3])};
}

}  // namespace

void delta_convolve(const DeltaArgs& args, Device device) {
  const uint32_t heads = 2 * args.dims.k_heads + args.dims.v_heads;
  const dim3 grid(args.chunks * (kChunk / kRun), (heads + kWarps - 1) / kWarps);
  convolve_kernel<<<grid, kWarps * 32, 0, device.queue>>>(args);
  const dim3 ring_grid((conv_channels(args.dims) + 255) / 256, args.segment_count);
  ring_kernel<<<ring_grid, 256, 0, device.queue>>>(args);
}

void delta_gated_norm(const DeltaArgs& args, Device device) {
  const uint32_t heads = args.tokens * args.dims.v_heads;
  gated_norm_kernel<<<(heads + kWarps - 1) / kWarps, kWarps * 32, 0, device.queue>>>(args);
}

void delta_net(const DeltaArgs& args, Device device) {
  delta_convolve(args, device);
  delta_prepare(args, device);
  delta_pass_states(args, device);
  delta_gated_norm(args, device);
}

}  // namespace lily::cuda::prefill
