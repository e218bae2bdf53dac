// Gated grouped-query attention of single rows (equations 5 to 9): the eight query heads of a key-value head
// share each row of keys and values. A context is cut into at most kMaxSplits splits whose length depends on
// the position alone; a block takes one split of one key-value head of one row, its warps take tiles of 16
// tokens in turn, and everything is merged in a fixed order.
//
// Scores are K q^T (16 tokens x 8 heads), values V^T p (16 dims x 8 heads): no part of a tensor instruction
// is wasted, and a lane holds the same two heads in both.
#include "backends/cuda/kernels/common.cuh"
#include "backends/cuda/kernels/decode.h"

namespace lily::cuda {
namespace {

constexpr uint32_t kHeads = 8;  // query heads of a key-value head, in both shapes
constexpr uint32_t kTokens = 16;
constexpr uint32_t kRow = kHeadDim * 2 + 16;  // bytes of a row of keys or values in shared memory
constexpr uint32_t kHalfStage = kTokens * kRow;
constexpr uint32_t kStages = 2;
constexpr uint32_t kMostWarps = 4;
constexpr uint32_t kWarpBytes = kStages * 2 * kHalfStage;
constexpr uint32_t kQueryBytes = kHeads * kRow;
constexpr uint32_t kEach = kHeadDim / 32;                     // values of a head in a lane
constexpr float kScoreScale = 0.0625f * 1.4426950408889634f;  // 1/sqrt(256), for powers of two

// Tokens of a split, for a context of `length` tokens.
__host__ __device__ inline uint32_t split_tokens(uint32_t length) {
  constexpr uint32_t kLeast = kPageTokens * kMaxSplits;
  return kPageTokens * ((length + kLeast - 1) / kLeast);
}

struct RowPlace {
  Segment segment;
  uint32_t position;
};
__device__ __forceinline__ RowPlace place_of(const AttendArgs& a, uint32_t row) {
  const Segment segment = a.segments[a.row_segment[row]];
  return {segment, segment.position + (row + a.first_row - segment.first_row)};
}

// A head normalised and turned; lane holds values lane + 32 i. The pair of a rotation lies in one lane.
__device__ __forceinline__ void norm_and_turn(float (&x)[kEach], const float* from, const float* norm,
                                              const float* rotary, uint32_t position) {
  const uint32_t lane = threadIdx.x & 31;
  float square = 0;
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) {
    x[i] = load_l2(from + i * 32 + lane);
    square = fmaf(x[i], x[i], square);
  }
  const float factor = rsqrtf(sum_lanes<32>(square) / static_cast<float>(kHeadDim) + kEps);
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) {
    x[i] = x[i] * factor * norm[i * 32 + lane];
  }
  const float2 turn = reinterpret_cast<const float2*>(rotary)[size_t{position} * (kRotaryDim / 2) + lane];
  const float a = x[0];
  const float b = x[1];
  x[0] = a * turn.x - b * turn.y;
  x[1] = b * turn.x + a * turn.y;
}

// Key and value of one row to its page: one warp.
__device__ __forceinline__ void write_key_value(const AttendArgs& a, const RowPlace& place, uint32_t row,
                                                uint32_t head) {
  const uint32_t lane = threadIdx.x & 31;
  const float* const key = a.mixed + size_t{row} * a.ld + a.dims.q_heads * 2 * kHeadDim + head * kHeadDim;
  const float* const value = key + kv_width(a.dims);
  float x[kEach];
  norm_and_turn(x, key, a.k_norm, a.rotary, place.position);
  uint16_t* const page = place.segment.pages[place.position / kPageTokens];
  const size_t token = (place.position % kPageTokens) * kHeadDim;
  uint16_t* const keys = page + page_offset(a.dims, a.layer, 0, head) + token;
  uint16_t* const values = page + page_offset(a.dims, a.layer, 1, head) + token;
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) {
    keys[i * 32 + lane] = to_bf16(x[i]);
    values[i * 32 + lane] = to_bf16(load_l2(value + i * 32 + lane));
  }
}

__device__ __forceinline__ void copy_or_clear(void* to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(present ? 16 : 0)
               : "memory");
}

// What a warp has seen of its tokens: for heads 2t and 2t + 1 of lane t, the largest score and this lane's
// part of the sum of weights; values as 16 blocks of 16 dims x 8 heads.
struct Seen {
  float largest[2];
  float sum[2];
  float values[16][4];
};

__device__ __forceinline__ void see_tile(Seen& seen, const uint8_t* keys, const uint8_t* values,
                                         const uint32_t (&q)[16][2], uint32_t valid) {
  const uint32_t lane = threadIdx.x & 31;
  float c[4] = {};
  {
    const uint8_t* const at = keys + ((lane & 7) + ((lane >> 3) & 1) * 8) * kRow + (lane >> 4) * 16;
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i) {
      uint32_t k[4];
      load_matrices(k, at + i * 32);
      mma(c, k[0], k[1], k[2], k[3], q[i][0], q[i][1]);
    }
  }
  const bool upper = (lane >> 2) < valid;
  const bool lower = (lane >> 2) + 8 < valid;
  uint32_t p[2];
  float weights[4];
  float correction[2];
#pragma unroll
  for (uint32_t h = 0; h < 2; ++h) {
    const float s0 = upper ? c[h] * kScoreScale : -INFINITY;
    const float s1 = lower ? c[h + 2] * kScoreScale : -INFINITY;
    float most = fmaxf(s0, s1);
    most = fmaxf(most, __shfl_xor_sync(kAll, most, 4));
    most = fmaxf(most, __shfl_xor_sync(kAll, most, 8));
    most = fmaxf(most, __shfl_xor_sync(kAll, most, 16));
    most = fmaxf(most, seen.largest[h]);
    correction[h] = exp2f(seen.largest[h] - most);
    weights[h] = exp2f(s0 - most);
    weights[h + 2] = exp2f(s1 - most);
    seen.sum[h] = fmaf(seen.sum[h], correction[h], weights[h] + weights[h + 2]);
    seen.largest[h] = most;
  }
  p[0] = transpose_matrix(pack_bf16(weights[0], weights[1]));
  p[1] = transpose_matrix(pack_bf16(weights[2], weights[3]));
  const uint8_t* const at = values + ((lane & 7) + (lane >> 4) * 8) * kRow + ((lane >> 3) & 1) * 16;
#pragma unroll
  for (uint32_t i = 0; i < 16; ++i) {
    uint32_t v[4];
    load_matrices_transposed(v, at + i * 32);
    seen.values[i][0] *= correction[0];
    seen.values[i][1] *= correction[1];
    seen.values[i][2] *= correction[0];
    seen.values[i][3] *= correction[1];
    mma(seen.values[i], v[0], v[1], v[2], v[3], p[0], p[1]);
  }
}

// A warp's results to shared memory: values [kHeads][kHeadDim], then the largest scores and the sums.
__device__ __forceinline__ void put_seen(Seen& seen, float* to) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t g = lane >> 2;
#pragma unroll
  for (uint32_t h = 0; h < 2; ++h) {
    const uint32_t head = (lane & 3) * 2 + h;
    float sum = seen.sum[h];
    sum += __shfl_xor_sync(kAll, sum, 4);
    sum += __shfl_xor_sync(kAll, sum, 8);
    sum += __shfl_xor_sync(kAll, sum, 16);
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i) {
      to[head * kHeadDim + i * 16 + g] = seen.values[i][h];
      to[head * kHeadDim + i * 16 + g + 8] = seen.values[i][h + 2];
    }
    if (g == 0) {
      to[kHeads * kHeadDim + head] = seen.largest[h];
      to[kHeads * kHeadDim + kHeads + head] = sum;
    }
  }
}

// The warps' results to one, to memory: the threads of a head go over its values.
__device__ __forceinline__ void merge_warps(const AttendArgs& a, const uint8_t* of_warps, uint32_t row,
                                            uint32_t kv_head, uint32_t split) {
  const uint32_t warps = blockDim.x / 32;
  const uint32_t threads = blockDim.x / kHeads;
  const uint32_t head = threadIdx.x / threads;
  const auto of = [&](uint32_t warp) { return reinterpret_cast<const float*>(of_warps + warp * kWarpBytes); };
  float factor[kMostWarps];
  float largest = -INFINITY;
#pragma unroll
  for (uint32_t w = 0; w < kMostWarps; ++w) {
    factor[w] = w < warps ? of(w)[kHeads * kHeadDim + head] : -INFINITY;
    largest = fmaxf(largest, factor[w]);
  }
  float sum = 0;
#pragma unroll
  for (uint32_t w = 0; w < kMostWarps; ++w) {
    factor[w] = exp2f(factor[w] - largest);
    sum = w < warps ? fmaf(factor[w], of(w)[kHeads * kHeadDim + kHeads + head], sum) : sum;
  }
  const size_t place = (size_t{row} * a.dims.q_heads + kv_head * kHeads + head) * kMaxSplits + split;
#pragma unroll 1
  for (uint32_t i = threadIdx.x % threads; i < kHeadDim / 4; i += threads) {
    float4 value = make_float4(0, 0, 0, 0);
#pragma unroll
    for (uint32_t w = 0; w < kMostWarps; ++w) {
      if (w < warps) {
        const float4 v = reinterpret_cast<const float4*>(of(w) + head * kHeadDim)[i];
        value.x = fmaf(factor[w], v.x, value.x);
        value.y = fmaf(factor[w], v.y, value.y);
        value.z = fmaf(factor[w], v.z, value.z);
        value.w = fmaf(factor[w], v.w, value.w);
      }
    }
    reinterpret_cast<float4*>(a.partial + place * kHeadDim)[i] = value;
  }
  if (threadIdx.x % threads == 0) {
    reinterpret_cast<float2*>(a.partial_ml)[place] = make_float2(largest, sum);
  }
}

// The queries of the block's heads, as B operands.
__device__ __forceinline__ void load_queries(uint32_t (&q)[16][2], uint8_t* shared_q, const AttendArgs& a,
                                             uint32_t row, uint32_t kv_head, uint32_t position) {
  const uint32_t lane = threadIdx.x & 31;
  for (uint32_t head = threadIdx.x / 32; head < kHeads; head += blockDim.x / 32) {
    float x[kEach];
    norm_and_turn(x, a.mixed + size_t{row} * a.ld + (kv_head * kHeads + head) * 2 * kHeadDim, a.q_norm,
                  a.rotary, position);
    uint16_t* const to = reinterpret_cast<uint16_t*>(shared_q + head * kRow);
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      to[i * 32 + lane] = to_bf16(x[i]);
    }
  }
  __syncthreads();
  const uint8_t* const at = shared_q + (lane >> 2) * kRow + (lane & 3) * 4;
#pragma unroll
  for (uint32_t i = 0; i < 16; ++i) {
    q[i][0] = *reinterpret_cast<const uint32_t*>(at + i * 32);
    q[i][1] = *reinterpret_cast<const uint32_t*>(at + i * 32 + 16);
  }
}

// One split of a row and key-value head.
struct Part {
  RowPlace place;
  uint32_t row, kv_head, split;
  uint32_t begin, end;  // tokens
};

// A warp's tiles of a split, through its stages of shared memory.
class Tiles {
 public:
  __device__ __forceinline__ Tiles(const AttendArgs& a, const Part& part, uint8_t* own)
      : part_(part),
        own_(own),
        keys_(page_offset(a.dims, a.layer, 0, part.kv_head)),
        values_(page_offset(a.dims, a.layer, 1, part.kv_head)) {}
  __device__ __forceinline__ uint32_t first_token(uint32_t i) const {
    return part_.begin + (i * (blockDim.x / 32) + threadIdx.x / 32) * kTokens;
  }
  __device__ __forceinline__ uint32_t fetched() const { return fetched_; }
  __device__ __forceinline__ const uint8_t* stage(uint32_t i) const {
    return own_ + (i % kStages) * 2 * kHalfStage;
  }
  __device__ __forceinline__ void fetch() {
    const uint32_t token = first_token(fetched_);
    const uint32_t lane = threadIdx.x & 31;
    if (token < part_.end) {
      const uint16_t* const page = part_.place.segment.pages[token / kPageTokens];
      uint8_t* const to = own_ + (fetched_ % kStages) * 2 * kHalfStage + lane * 16;
      const uint64_t offset = uint64_t{token % kPageTokens} * kHeadDim + lane * 8;
#pragma unroll 4
      for (uint32_t t = 0; t < kTokens; ++t) {
        const bool present = token + t < part_.end;
        copy_or_clear(to + t * kRow, page + keys_ + offset + t * kHeadDim, present);
        copy_or_clear(to + kHalfStage + t * kRow, page + values_ + offset + t * kHeadDim, present);
      }
    }
    commit_copies();
    ++fetched_;
  }

 private:
  const Part& part_;
  uint8_t* const own_;
  const uint64_t keys_, values_;
  uint32_t fetched_ = 0;
};

// The block's part of one split. `first`: nothing of the pass has been waited for yet.
__device__ __forceinline__ void attend_part(const AttendArgs& a, uint8_t* shared, const Part& part,
                                            bool first) {
  const uint32_t warp = threadIdx.x / 32;
  uint8_t* const own = shared + kQueryBytes + warp * kWarpBytes;
  Tiles tiles(a, part, own);
  if (first) {
    // Tiles without a row of this pass can be fetched at once.
    while (a.single != 0 && tiles.fetched() < kStages &&
           tiles.first_token(tiles.fetched()) + kTokens <= part.place.position) {
      tiles.fetch();
    }
    wait_for_predecessors();
  }
  if (a.single != 0 && part.end == part.place.position + 1 && warp == 0) {
    write_key_value(a, part.place, part.row, part.kv_head);
  }
  uint32_t q[16][2];  // has a barrier: the key and value are written
  load_queries(q, shared, a, part.row, part.kv_head, part.place.position);
  while (tiles.fetched() < kStages) {
    tiles.fetch();
  }
  Seen seen = {{-INFINITY, -INFINITY}, {0, 0}, {}};
#pragma unroll 1
  for (uint32_t i = 0; tiles.first_token(i) < part.end; ++i) {
    wait_copies<kStages - 1>();
    __syncwarp();
    see_tile(seen, tiles.stage(i), tiles.stage(i) + kHalfStage, q, part.end - tiles.first_token(i));
    __syncwarp();
    tiles.fetch();
  }
  wait_copies<0>();
  __syncwarp();
  put_seen(seen, reinterpret_cast<float*>(own));
  __syncthreads();
  merge_warps(a, shared + kQueryBytes, part.row, part.kv_head, part.split);
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
  write_key_value(a, place, blockIdx.y, blockIdx.x);
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
    float largest = -INFINITY;
#pragma unroll
    for (uint32_t i = 0; i < kMaxSplits / 32; ++i) {
      const uint32_t split = i * 32 + dim;
      ml[i] = split < splits ? load_l2(reinterpret_cast<const float2*>(a.partial_ml) + first + split)
                             : make_float2(-INFINITY, 0);
      largest = fmaxf(largest, ml[i].x);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, offset));
    }
    float sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < kMaxSplits / 32; ++i) {
      const float factor = exp2f(ml[i].x - largest);
      factors[i * 32 + dim] = factor;
      sum = fmaf(factor, ml[i].y, sum);
    }
    sum = sum_lanes<32>(sum);
    if (dim == 0) {
      total = sum;
    }
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
