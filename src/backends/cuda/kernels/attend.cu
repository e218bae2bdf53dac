// Gated grouped-query attention of single rows (equations 5 to 9): the eight query heads of a key-value head
// share each row of keys and values. A context is cut into at most kMaxSplits splits whose length depends on
// the position alone; a block takes one split of one key-value head of one row.
#include "backends/cuda/kernels/attend.cuh"

namespace lily::cuda {
namespace {

using namespace attend;  // NOLINT(google-build-using-namespace)

// The block's part of one split. `first`: nothing of the pass has been waited for yet.
template <bool kRelayed>
__device__ __forceinline__ void attend_part(const AttendArgs& a, uint8_t* shared, const Part& part,
                                            bool first) {
  const uint32_t warp = threadIdx.x / 32;
  const Turn turn(a.q_norm, a.rotary, part.place.position);
  const Turn key_turn(a.k_norm, a.rotary, part.place.position);
  Tiles tiles(a, part, shared + kQueryBytes + warp * kWarpBytes);
  if (first) {
    // Tiles without a row of this pass can be fetched at once.
    while (a.single != 0 && tiles.fetched() < kStages &&
           tiles.first_token(tiles.fetched()) + kTokens <= part.place.position) {
      tiles.fetch();
    }
    wait_for_results<kRelayed>(a.relay);
  }
  const bool writes = a.single != 0 && part.end == part.place.position + 1 && warp == 0;
  WarpHeads heads;
  KeyValue row;
  bool missing;
  do {
    heads.load<kRelayed>(a, part.row, part.kv_head);
    missing = heads.missing(a.warps);
    if (writes) {
      row.load<kRelayed>(a, part.row, part.kv_head);
      missing = missing || row.key.missing() || row.value.missing();
    }
  } while (kRelayed && any_lane(missing));
  if (writes) {
    row.store(a, part.place, part.kv_head, key_turn);
  }
  heads.store(shared, a.warps, turn);
  __syncthreads();  // the key and value are written, too
  uint32_t q[16][2];
  load_queries(q, shared);
  attend_tiles(a, shared, tiles, part, q);
}

template <bool kRelayed>
__global__ void __launch_bounds__(kMostWarps * 32) attend_kernel(AttendArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  start_successors();
  Part part;
  part.row = blockIdx.z;
  part.kv_head = blockIdx.y;
  part.place = place_of(a, part.row);
  const uint32_t length = part.place.position + 1;
  const uint32_t each = split_tokens(length);
#pragma unroll 1
  for (part.split = blockIdx.x; part.split * each < length; part.split += gridDim.x) {
    part.begin = part.split * each;
    part.end = min(part.begin + each, length);
    attend_part<kRelayed>(a, shared, part, part.split == blockIdx.x);
    __syncthreads();
  }
  if constexpr (kRelayed) {
    count_block(a.relay);
  }
  end_relay<kRelayed>();
}

// Keys and values of all rows, where a launch has several rows of a segment.
__global__ void __launch_bounds__(32) write_key_value_kernel(AttendArgs a) {
  const RowPlace place = place_of(a, blockIdx.y);
  const Turn turn(a.k_norm, a.rotary, place.position);
  wait_for_predecessors();
  start_successors();
  KeyValue row;
  row.load<false>(a, blockIdx.y, blockIdx.x);
  row.store(a, place, blockIdx.x, turn);
}

// The splits of a quarter of a head to one, times the gate: the feed of the output projection. A thread adds
// up a few splits of four dims, then one the sums of all, in order.
constexpr uint32_t kCombineDims = kHeadDim / kCombineParts;
constexpr uint32_t kCombineLanes = kCombineDims / 4;
constexpr uint32_t kCombineGroups = 16;  // of splits
template <bool kRelayed>
__global__ void __launch_bounds__(kCombineLanes* kCombineGroups) combine_kernel(AttendArgs a) {
  __shared__ float factors[kMaxSplits];
  __shared__ float total;
  __shared__ float4 sums[kCombineGroups][kCombineLanes];
  constexpr uint32_t kEachGroup = kMaxSplits / kCombineGroups;
  const uint32_t head = blockIdx.x / kCombineParts;
  const uint32_t row = blockIdx.y;
  const uint32_t quarter = blockIdx.x % kCombineParts * kCombineDims;
  const uint32_t group = threadIdx.x / kCombineLanes;
  const uint32_t lane = threadIdx.x % kCombineLanes;
  const uint32_t length = place_of(a, row).position + 1;
  const uint32_t each = split_tokens(length);
  const uint32_t splits = (length + each - 1) / each;
  const size_t first = (size_t{row} * a.dims.q_heads + head) * kMaxSplits;
  start_successors();
  if constexpr (kRelayed) {
    wait_for_blocks(a.combine);
  } else {
    wait_for_predecessors();
  }
  const uint32_t dim = quarter + threadIdx.x % kCombineDims;
  float gate;
  do {  // no block of the kernel before has looked at it
    gate = read<kRelayed>(a.mixed + size_t{row} * a.ld + head * 2 * kHeadDim + kHeadDim + dim);
  } while (kRelayed && any_lane(unwritten(gate)));
  float4 of[kEachGroup];
#pragma unroll
  for (uint32_t i = 0; i < kEachGroup; ++i) {
    const uint32_t split = group * kEachGroup + i;
    of[i] = make_float4(0, 0, 0, 0);
    if (split < splits) {
      of[i] =
          load_l2(reinterpret_cast<const float4*>(a.partial + (first + split) * kHeadDim + quarter) + lane);
    }
  }
  if (threadIdx.x < 32) {
    float2 ml[kMaxSplits / 32];
#pragma unroll
    for (uint32_t i = 0; i < kMaxSplits / 32; ++i) {
      const uint32_t split = i * 32 + threadIdx.x;
      ml[i] = split < splits ? load_l2(reinterpret_cast<const float2*>(a.partial_ml) + first + split)
                             : make_float2(-INFINITY, 0);
    }
    weigh_splits(factors, total, ml);
  }
  __syncthreads();
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
  for (uint32_t i = 0; i < kEachGroup; ++i) {
    const float factor = factors[group * kEachGroup + i];
    sum.x = fmaf(factor, of[i].x, sum.x);
    sum.y = fmaf(factor, of[i].y, sum.y);
    sum.z = fmaf(factor, of[i].z, sum.z);
    sum.w = fmaf(factor, of[i].w, sum.w);
  }
  sums[group][lane] = sum;
  __syncthreads();
  if (threadIdx.x < kCombineDims) {
    float value = 0;
#pragma unroll
    for (uint32_t g = 0; g < kCombineGroups; ++g) {
      value += reinterpret_cast<const float*>(sums[g])[threadIdx.x];
    }
    put_input<kRelayed>(a.out.x + size_t{row} * q_width(a.dims), head * kHeadDim + dim,
                        value / total * sigmoid(gate), true);
  }
  announce_results<kRelayed>(a.combine);
  end_relay<kRelayed>();
}

}  // namespace

int prepare_attend(uint32_t bytes) {
  int e = prepare_kernel(attend_kernel<false>, bytes);
  e = e != 0 ? e : prepare_kernel(attend_kernel<true>, bytes);
  e = e != 0 ? e : prepare_kernel(combine_kernel<false>, 0);
  e = e != 0 ? e : prepare_kernel(combine_kernel<true>, 0);
  return e != 0 ? e : prepare_kernel(write_key_value_kernel, 0);
}

int launch_attend(const AttendArgs& args, Stream queue) {
  const bool relayed = args.relay.on != 0;
  if (args.dims.q_heads != kHeads * args.dims.kv_heads ||
      (relayed && (args.single == 0 || args.rows > kRelayedRows))) {
    return cudaErrorInvalidValue;
  }
  int e = 0;
  cudaLaunchConfig_t config = {};
  config.stream = queue;
  if (args.single == 0) {
    config.gridDim = dim3(args.dims.kv_heads, args.rows);
    config.blockDim = dim3(32);
    e = launch_dependent(write_key_value_kernel, config, args);
  }
  // As many blocks as two key-value heads of one row can use; of several rows each takes several splits.
  config.gridDim = dim3((kMaxSplits + args.rows - 1) / args.rows, args.dims.kv_heads, args.rows);
  config.blockDim = dim3(args.warps * 32);
  config.dynamicSmemBytes = kQueryBytes + args.warps * kWarpBytes;
  e = e != 0 ? e : launch_dependent(relayed ? attend_kernel<true> : attend_kernel<false>, config, args);
  config.gridDim = dim3(args.dims.q_heads * kCombineParts, args.rows);
  config.blockDim = dim3(kCombineLanes * kCombineGroups);
  config.dynamicSmemBytes = 0;
  return e != 0 ? e : launch_dependent(relayed ? combine_kernel<true> : combine_kernel<false>, config, args);
}

}  // namespace lily::cuda
