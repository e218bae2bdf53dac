// Gated grouped-query attention of single rows (equations 5 to 9): the eight query heads of a key-value head
// share each row of keys and values. A context is cut into at most kMaxSplits splits whose length depends on
// the position alone; a block takes one split of one key-value head of one row.
#include "backends/cuda/kernels/attend.cuh"

namespace lily::cuda {
namespace {

using namespace attend;  // NOLINT(google-build-using-namespace)

struct BlockSync {
  __device__ __forceinline__ void operator()() const { __syncthreads(); }
};

// The block's part of one split. `first`: nothing of the pass has been waited for yet.
__device__ __forceinline__ void attend_part(const AttendArgs& a, uint8_t* shared, const Part& part,
                                            bool first) {
  const uint32_t warp = threadIdx.x / 32;
  const MixedRow mixed{a.mixed + size_t{part.row} * a.ld};
  Tiles tiles(a, part, shared + kQueryBytes + warp * kWarpBytes);
  if (first) {
    // Tiles without a row of this pass can be fetched at once.
    while (a.single != 0 && tiles.fetched() < kStages &&
           tiles.first_token(tiles.fetched()) + kTokens <= part.place.position) {
      tiles.fetch();
    }
    wait_for_predecessors();
  }
  if (a.single != 0 && part.end == part.place.position + 1 && warp == 0) {
    write_key_value(a, part.place, mixed, part.kv_head);
  }
  uint32_t q[16][2];  // has a barrier: the key and value are written
  load_queries(q, shared, a, mixed, part, BlockSync());
  attend_tiles(a, shared, tiles, part, q, BlockSync());
}

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
    attend_part(a, shared, part, part.split == blockIdx.x);
    __syncthreads();
  }
}

// Keys and values of all rows, where a launch has several rows of a segment.
__global__ void __launch_bounds__(32) write_key_value_kernel(AttendArgs a) {
  const RowPlace place = place_of(a, blockIdx.y);
  wait_for_predecessors();
  start_successors();
  write_key_value(a, place, MixedRow{a.mixed + size_t{blockIdx.y} * a.ld}, blockIdx.x);
}

// The splits of a head to one, times the gate: the feed of the output projection.
__global__ void __launch_bounds__(kHeadDim) combine_kernel(AttendArgs a) {
  __shared__ float factors[kMaxSplits];
  __shared__ float total;
  const uint32_t head = blockIdx.x;
  const uint32_t row = blockIdx.y;
  const uint32_t dim = threadIdx.x;
  const RowPlace place = place_of(a, row);
  const uint32_t length = place.position + 1;
  const uint32_t each = split_tokens(length);
  const uint32_t splits = (length + each - 1) / each;
  const size_t first = (size_t{row} * a.dims.q_heads + head) * kMaxSplits;
  start_successors();
  wait_for_predecessors();
  const float gate = load_l2(a.mixed + size_t{row} * a.ld + head * 2 * kHeadDim + kHeadDim + dim);
  if (dim < 32) {
    float2 ml[kMaxSplits / 32];
#pragma unroll
    for (uint32_t i = 0; i < kMaxSplits / 32; ++i) {
      const uint32_t split = i * 32 + dim;
      ml[i] = split < splits ? load_l2(reinterpret_cast<const float2*>(a.partial_ml) + first + split)
                             : make_float2(-INFINITY, 0);
    }
    weigh_splits(factors, total, ml);
  }
  __syncthreads();
  float value = 0;
#pragma unroll 8
  for (uint32_t s = 0; s < splits; ++s) {
    value = fmaf(factors[s], load_l2(a.partial + (first + s) * kHeadDim + dim), value);
  }
  const uint16_t bits = to_bf16(value / total * sigmoid(gate));
  const uint32_t input = head * kHeadDim + dim;
  a.out.x[size_t{row} * q_width(a.dims) + fragment_position(input)] = bits;
}

}  // namespace

int prepare_attend(uint32_t bytes) {
  int e = prepare_kernel(attend_kernel, bytes);
  e = e != 0 ? e : prepare_kernel(combine_kernel, 0);
  return e != 0 ? e : prepare_kernel(write_key_value_kernel, 0);
}

int launch_attend(const AttendArgs& args, Stream queue) {
  if (args.dims.q_heads != kHeads * args.dims.kv_heads) {
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
  e = e != 0 ? e : launch_dependent(attend_kernel, config, args);
  config.gridDim = dim3(args.dims.q_heads, args.rows);
  config.blockDim = dim3(kHeadDim);
  config.dynamicSmemBytes = 0;
  return e != 0 ? e : launch_dependent(combine_kernel, config, args);
}

}  // namespace lily::cuda
