// Gated DeltaNet, token by token: the convolution, the norms of q and k, the gates, the delta rule and the
// gated norm, fused. A block owns a strip of one head of one segment.
#include "backends/cuda/kernels/delta_step.cuh"

namespace lily::cuda {
namespace {

using namespace delta;  // NOLINT(google-build-using-namespace)

struct BlockSync {
  __device__ __forceinline__ void operator()() const { __syncthreads(); }
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
  return e != 0 ? e : prepare_kernel(keep_inputs_kernel, 0);
}

int launch_delta_step(const DeltaStepArgs& args, Stream queue) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(args.dims.v_heads * kStrips, args.segment_count);
  config.blockDim = dim3(kWarps * 32);
  config.dynamicSmemBytes = args.shared;
  config.stream = queue;
  if (args.relay.on != 0) {
    return args.single != 0 && args.segment_count <= kRelayedRows
               ? launch_dependent(delta_step_kernel<true>, config, args)
               : cudaErrorInvalidValue;
  }
  int e = launch_dependent(delta_step_kernel<false>, config, args);
  config.dynamicSmemBytes = 0;
  if (e == 0 && args.single == 0) {
    config.gridDim = dim3((conv_channels(args.dims) + 255) / 256, args.segment_count);
    config.blockDim = dim3(256);
    e = launch_dependent(keep_inputs_kernel, config, args);
  }
  return e;
}

}  // namespace lily::cuda
