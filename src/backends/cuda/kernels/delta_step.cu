// Gated DeltaNet, token by token: the convolution, the norms of q and k, the gates, the delta rule and the
// gated norm, fused. A block owns a strip of one head of one segment, or of several segments a whole head;
// delta_ring.cu has many.
#include "backends/cuda/kernels/delta_head.cuh"
#include "backends/cuda/kernels/delta_ring.cuh"

namespace lily::cuda {
namespace {

using namespace delta;  // NOLINT(google-build-using-namespace)

struct BlockSync {
  __device__ __forceinline__ void operator()() const { __syncthreads(); }
};

template <bool kRelayed>
__device__ __forceinline__ TokenInputs load_inputs(const DeltaStepArgs& a, const Place& place,
                                                   const Channels& of, uint32_t row) {
  const float* const mixed = a.mixed + size_t{row} * a.ld;
  const float* const gates = mixed + conv_channels(a.dims) + value_width(a.dims);
  const uint32_t output = place.head * kDeltaDim + place.strip * kColumns + (threadIdx.x & 31);
  TokenInputs in;
  bool missing;
  do {
    in = {read<kRelayed>(mixed + of.key.at), read<kRelayed>(mixed + of.value.at),
          read<kRelayed>(gates + place.head), read<kRelayed>(gates + a.dims.v_heads + place.head),
          read<kRelayed>(mixed + conv_channels(a.dims) + output)};
    missing = unwritten(in.key) || unwritten(in.value) || unwritten(in.decay) || unwritten(in.beta) ||
              unwritten(in.z);
  } while (kRelayed && any_lane(missing));
  return in;
}

// The inputs of a block's channels to the ring, for the next three tokens.
__device__ __forceinline__ void keep_inputs(const DeltaStepArgs& a, const Segment& segment, float* ring,
                                            const Place& place, const Channels& of, const TokenInputs& in) {
  float* const to = ring + (segment.position % kConvTaps) * conv_channels(a.dims);
  // Of the value heads of a key head the first keeps its inputs.
  if (place.strip == 0 && place.head % (a.dims.v_heads / a.dims.k_heads) == 0) {
    to[of.key.at] = in.key;
  }
  if (threadIdx.x < kColumns) {
    to[of.value.at] = in.value;
  }
}

template <bool kRelayed>
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
  Channels channels{load_channel(a.dims, a.conv, segment.position, ring, key_channel),
                    load_channel(a.dims, a.conv, segment.position, ring, value_channel)};
  if (a.single != 0) {
    wait_for_results<kRelayed>(a.relay);
  }
  TokenInputs in;
#pragma unroll 1
  for (uint32_t r = 0; r < segment.rows; ++r) {
    const uint32_t row = segment.first_row - a.first_row + r;
    in = load_inputs<kRelayed>(a, place, channels, row);
    step(sh, s, channels, place, in, BlockSync(), [&](float o, float gate) {
      put_out<kRelayed>(a, row, head * kDeltaDim + strip * kColumns + lane, o, gate);
    });
  }
  announce_results<kRelayed>(a.relay);
#pragma unroll
  for (uint32_t i = 0; i < kKeys; ++i) {
    state[i * kDeltaDim] = s[i];
  }
  if (a.single != 0) {
    keep_inputs(a, segment, ring, place, channels, in);
  }
  end_relay<kRelayed>();
}

// ---- Whole heads ----------------------------------------------------------------------------------------
// Of more than kStripSegments segments a block owns a whole head: there are blocks enough.
constexpr uint32_t kStripSegments = 4;

__device__ __forceinline__ void load_head_state(float (&s)[kKeys][kEach], const float4* state) {
#pragma unroll
  for (uint32_t i = 0; i < kKeys; ++i) {
    const float4 of = load_l2(state + i * (kDeltaDim / 4));
    s[i][0] = of.x;
    s[i][1] = of.y;
    s[i][2] = of.z;
    s[i][3] = of.w;
  }
}

__global__ void __launch_bounds__(kWarps * 32, 2) delta_head_kernel(DeltaStepArgs a) {
  __shared__ HeadShared sh;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  const Head head(a.dims, blockIdx.x);
  const HeadGates gates{a.decay_rate[head.head], a.dt_bias[head.head]};
  const Segment segment = a.segments[blockIdx.y];
  float* const delta = segment.recurrent + a.layer * recurrent_stride(a.dims);
  float* const ring = delta + delta_floats(a.dims);
  float4* const state =
      reinterpret_cast<float4*>(delta + (size_t{head.head} * kDeltaDim + warp * kKeys) * kDeltaDim) + lane;
  float s[kKeys][kEach];
  const float norm = a.norm[threadIdx.x % kDeltaDim];
  start_successors();
  if (a.single == 0) {  // else no kernel close before this one writes the state
    wait_for_predecessors();
  }
  Channels channels{load_channel(a.dims, a.conv, segment.position, ring, head.key_channel),
                    load_channel(a.dims, a.conv, segment.position, ring, head.value_channel)};
  if (a.single != 0) {
    wait_for_predecessors();
  }
  const uint32_t first = segment.first_row - a.first_row;
  HeadInputs in = load_head_inputs(a, head, first);
  load_head_state(s, state);  // behind what is needed first
#pragma unroll 1
  for (uint32_t r = 0; r < segment.rows; ++r) {
    if (r > 0) {
      in = load_head_inputs(a, head, first + r);
    }
    prepare_token(sh, gates, channels, in);
    __syncthreads();
    const float of_q = head_step(sh, s);
    if (threadIdx.x < kDeltaDim) {
      float out = 0;
#pragma unroll
      for (uint32_t w = 0; w < kWarps; ++w) {
        out += reinterpret_cast<const float*>(sh.out[w])[threadIdx.x];
      }
      put_out<false>(a, first + r, head.head * kDeltaDim + threadIdx.x, out * of_q, norm * silu(in.z));
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < kKeys; ++i) {
    state[i * (kDeltaDim / 4)] = make_float4(s[i][0], s[i][1], s[i][2], s[i][3]);
  }
  if (a.single != 0) {  // keeps the inputs of this token for the next three
    float* const kept = ring + (segment.position % kConvTaps) * conv_channels(a.dims);
    if (head.head % (a.dims.v_heads / a.dims.k_heads) == 0) {  // the first of a key head
      kept[head.key_channel] = in.key;
    }
    if (threadIdx.x < kDeltaDim) {
      kept[head.value_channel] = in.other;
    }
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
  int e = prepare_kernel(delta_step_kernel<false>, bytes - sizeof(Shared));
  e = e != 0 ? e : prepare_kernel(delta_step_kernel<true>, bytes - sizeof(Shared));
  e = e != 0 ? e : prepare_kernel(delta_head_kernel, 0);
  e = e != 0 ? e : prepare_kernel(keep_inputs_kernel, 0);
  return e != 0 ? e : prepare_delta_ring(bytes);
}

int launch_delta_step(const DeltaStepArgs& args, Stream queue) {
  cudaLaunchConfig_t config = {};
  const bool strips = args.segment_count <= kStripSegments;
  config.gridDim = dim3(args.dims.v_heads * (strips ? kStrips : 1), args.segment_count);
  config.blockDim = dim3(kWarps * 32);
  config.dynamicSmemBytes = strips ? args.shared : 0;
  config.stream = queue;
  if (args.relay.on != 0) {
    return args.single != 0 && args.segment_count <= kRelayedRows
               ? launch_dependent(delta_step_kernel<true>, config, args)
               : cudaErrorInvalidValue;
  }
  int e = args.segment_count > kDeltaRingSegments
              ? launch_delta_ring(args, queue)
              : launch_dependent(strips ? delta_step_kernel<false> : delta_head_kernel, config, args);
  config.dynamicSmemBytes = 0;
  if (e == 0 && args.single == 0) {
    config.gridDim = dim3((conv_channels(args.dims) + 255) / 256, args.segment_count);
    config.blockDim = dim3(256);
    e = launch_dependent(keep_inputs_kernel, config, args);
  }
  return e;
}

}  // namespace lily::cuda
