// The delta step of many segments: blocks take whole heads, one after the other. A warp has its keys of each
// head in a ring of states in shared memory: while one head is computed, the states of the next are on their
// way, and that of the one before is on its way back.
#include "backends/cuda/kernels/delta_ring.cuh"

#include "backends/cuda/kernels/delta_head.cuh"
#include "backends/cuda/kernels/tiles.cuh"

namespace lily::cuda {
namespace {

using namespace delta;  // NOLINT(google-build-using-namespace)

constexpr uint32_t kStateBytes = kKeys * kDeltaDim * 4;  // of a warp
using StateRing = Ring<kStateBytes>;

struct RingShared {
  HeadShared of;
  Segment segments[kSmallRows];
};
static_assert(align128(sizeof(RingShared)) <= kDeltaRingStatic);

// All that a thread reads for a head but its state.
struct HeadWork {
  Channels channels;
  HeadInputs in;
  HeadGates gates;
};
__device__ __forceinline__ float* kept_inputs(const DeltaStepArgs& a, const Segment& segment) {
  return segment.recurrent + a.layer * recurrent_stride(a.dims) + delta_floats(a.dims);
}
__device__ __forceinline__ HeadWork load_work(const DeltaStepArgs& a, const RingShared& sh, uint32_t item) {
  const Segment& segment = sh.segments[item / a.dims.v_heads];
  const Head head(a.dims, item % a.dims.v_heads);
  const float* const kept = kept_inputs(a, segment);
  return {{load_channel(a.dims, a.conv, segment.position, kept, head.key_channel),
           load_channel(a.dims, a.conv, segment.position, kept, head.value_channel)},
          load_head_inputs(a, head, segment.first_row - a.first_row),
          {a.decay_rate[head.head], a.dt_bias[head.head]}};
}

__device__ __forceinline__ void read_state(float (&s)[kKeys][kEach], const float4* state) {
#pragma unroll
  for (uint32_t i = 0; i < kKeys; ++i) {
    const float4 of = state[i * (kDeltaDim / 4)];
    s[i][0] = of.x;
    s[i][1] = of.y;
    s[i][2] = of.z;
    s[i][3] = of.w;
  }
}
__device__ __forceinline__ void write_state(float4* state, const float (&s)[kKeys][kEach]) {
#pragma unroll
  for (uint32_t i = 0; i < kKeys; ++i) {
    state[i * (kDeltaDim / 4)] = make_float4(s[i][0], s[i][1], s[i][2], s[i][3]);
  }
}

// The warp's part of a head's state.
__device__ __forceinline__ uint8_t* state_of(const DeltaStepArgs& a, const RingShared& sh, uint32_t item,
                                             uint32_t warp) {
  const uint32_t head = item % a.dims.v_heads;
  float* const delta = sh.segments[item / a.dims.v_heads].recurrent + a.layer * recurrent_stride(a.dims);
  return reinterpret_cast<uint8_t*>(delta + (size_t{head} * kDeltaDim + warp * kKeys) * kDeltaDim);
}
// The inputs of a segment's only token, for the next three. `kept`: its ring.
__device__ __forceinline__ void keep_head_inputs(const DeltaStepArgs& a, float* kept, uint32_t position,
                                                 const Head& head, const HeadInputs& in) {
  float* const to = kept + (position % kConvTaps) * conv_channels(a.dims);
  if (head.head % (a.dims.v_heads / a.dims.k_heads) == 0) {  // the first of a key head
    to[head.key_channel] = in.key;
  }
  if (threadIdx.x < kDeltaDim) {
    to[head.value_channel] = in.other;
  }
}

__global__ void __launch_bounds__(kWarps * 32, 1) delta_ring_kernel(DeltaStepArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ RingShared sh;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = __shfl_sync(kAll, threadIdx.x / 32, 0);  // known to be the same for all lanes
  const uint32_t count = a.segment_count * a.dims.v_heads;       // heads of all segments
  start_successors();
  StateRing ring{shared + warp * a.stages * kStateBytes,
                 reinterpret_cast<uint64_t*>(shared + kWarps * a.stages * kStateBytes) + warp * kMostStages,
                 a.stages};
  ring.prepare(lane);
  if (threadIdx.x < a.segment_count) {
    sh.segments[threadIdx.x] = a.segments[threadIdx.x];
  }
  const float norm = a.norm[threadIdx.x % kDeltaDim];
  __syncthreads();
  if (a.single == 0) {  // else no kernel close before this one writes the state
    wait_for_predecessors();
  }
  uint32_t fetched = blockIdx.x;
  const auto fetch = [&] {
    if (fetched < count) {
      ring.fetch(state_of(a, sh, fetched, warp), lane);
      fetched += gridDim.x;
    }
  };
#pragma unroll 1
  for (uint32_t i = 0; i < a.stages; ++i) {
    fetch();
  }
  if (a.single != 0) {
    wait_for_predecessors();
  }
  HeadWork next = load_work(a, sh, blockIdx.x);
#pragma unroll 1
  for (uint32_t item = blockIdx.x; item < count; item += gridDim.x) {
    HeadWork work = next;
    const Segment& segment = sh.segments[item / a.dims.v_heads];
    const Head head(a.dims, item % a.dims.v_heads);
    const uint32_t first = segment.first_row - a.first_row;
    float s[kKeys][kEach];
    float4* state = nullptr;
#pragma unroll 1
    for (uint32_t r = 0; r < segment.rows; ++r) {
      if (r > 0) {
        work.in = load_head_inputs(a, head, first + r);
      }
      prepare_token(sh.of, work.gates, work.channels, work.in);
      __syncthreads();
      if (r == 0) {
        if (item != blockIdx.x) {  // where the state before this one was
          wait_stores();
          fetch();
        }
        state = reinterpret_cast<float4*>(const_cast<uint8_t*>(ring.wait())) + lane;
        read_state(s, state);
        next = load_work(a, sh,
                         min(item + gridDim.x, count - 1));  // behind the uses of what was asked for before
      }
      const float of_q = head_step(sh.of, s);
      if (threadIdx.x < kDeltaDim) {
        float out = 0;
#pragma unroll
        for (uint32_t w = 0; w < kWarps; ++w) {
          out += reinterpret_cast<const float*>(sh.of.out[w])[threadIdx.x];
        }
        put_out<false>(a, first + r, head.head * kDeltaDim + threadIdx.x, out * of_q, norm * silu(work.in.z));
      }
    }
    write_state(state, s);
    store_block<kStateBytes>(state_of(a, sh, item, warp), reinterpret_cast<uint8_t*>(state - lane), lane);
    ring.release();
    if (a.single != 0) {
      keep_head_inputs(a, kept_inputs(a, segment), segment.position, head, work.in);
    }
  }
  finish_stores();
}

}  // namespace

uint32_t delta_ring_bytes(uint32_t stages) {
  return kWarps * stages * kStateBytes + ring_barrier_bytes(kWarps);
}

int prepare_delta_ring(uint32_t bytes) { return prepare_kernel(delta_ring_kernel, bytes - kDeltaRingStatic); }

int launch_delta_ring(const DeltaStepArgs& args, Stream queue) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(args.blocks);
  config.blockDim = dim3(kWarps * 32);
  config.dynamicSmemBytes = args.shared;
  config.stream = queue;
  return launch_dependent(delta_ring_kernel, config, args);
}

}  // namespace lily::cuda
