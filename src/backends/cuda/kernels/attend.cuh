// What attention of single rows is made of, wherever its inputs come from: the phases of a block that takes
// one split of one key-value head of one row, its warps tiles of 16 tokens in turn, and the order in which
// everything is merged.
//
// Scores are K q^T (16 tokens x 8 heads), values V^T p (16 dims x 8 heads): no part of a tensor instruction
// is wasted, and a lane holds the same two heads in both.
#pragma once

#include "backends/cuda/kernels/common.cuh"
#include "backends/cuda/kernels/decode.h"

namespace lily::cuda::attend {

inline constexpr uint32_t kHeads = 8;  // query heads of a key-value head, in both shapes
inline constexpr uint32_t kTokens = 16;
inline constexpr uint32_t kRow = kHeadDim * 2 + 16;  // bytes of a row of keys or values in shared memory
inline constexpr uint32_t kHalfStage = kTokens * kRow;
inline constexpr uint32_t kStages = 2;
inline constexpr uint32_t kMostWarps = 4;
inline constexpr uint32_t kWarpBytes = kStages * 2 * kHalfStage;
inline constexpr uint32_t kQueryBytes = kHeads * kRow;
inline constexpr uint32_t kEach = kHeadDim / 32;                     // values of a head in a lane
inline constexpr float kScoreScale = 0.0625f * 1.4426950408889634f;  // 1/sqrt(256), for powers of two

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

// Values lane + 32 i of a head's projection.
struct HeadValues {
  float x[kEach];
  template <bool kRelayed>
  __device__ __forceinline__ void load(const float* from) {
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      x[i] = read<kRelayed>(from + i * 32 + (threadIdx.x & 31));
    }
  }
  __device__ __forceinline__ bool missing() const {
    bool any = false;
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      any = any || unwritten(x[i]);
    }
    return any;
  }
};

// What a head is normalised and turned by, asked for before its values are there.
struct Turn {
  HeadValues norm;
  float2 turn;
  __device__ __forceinline__ Turn(const float* weights, const float* rotary, uint32_t position) {
    const uint32_t lane = threadIdx.x & 31;
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      norm.x[i] = weights[i * 32 + lane];
    }
    turn = reinterpret_cast<const float2*>(rotary)[size_t{position} * (kRotaryDim / 2) + lane];
  }
};
// The pair of a rotation lies in one lane.
__device__ __forceinline__ void norm_and_turn(HeadValues& v, const Turn& by) {
  float square = 0;
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) {
    square = fmaf(v.x[i], v.x[i], square);
  }
  const float factor = rsqrtf(sum_lanes<32>(square) / static_cast<float>(kHeadDim) + kEps);
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) {
    v.x[i] = v.x[i] * factor * by.norm.x[i];
  }
  const float a = v.x[0];
  const float b = v.x[1];
  v.x[0] = a * by.turn.x - b * by.turn.y;
  v.x[1] = b * by.turn.x + a * by.turn.y;
}

// One warp: key and value of one row to its page.
struct KeyValue {
  HeadValues key, value;
  template <bool kRelayed>
  __device__ __forceinline__ void load(const AttendArgs& a, uint32_t row, uint32_t head) {
    const float* const from = a.mixed + size_t{row} * a.ld + a.dims.q_heads * 2 * kHeadDim + head * kHeadDim;
    key.load<kRelayed>(from);
    value.load<kRelayed>(from + kv_width(a.dims));
  }
  __device__ __forceinline__ void store(const AttendArgs& a, const RowPlace& place, uint32_t head,
                                        const Turn& turn) {
    const uint32_t lane = threadIdx.x & 31;
    norm_and_turn(key, turn);
    uint16_t* const page = place.segment.pages[place.position / kPageTokens];
    const size_t token = (place.position % kPageTokens) * kHeadDim;
    uint16_t* const keys = page + page_offset(a.dims, a.layer, 0, head) + token;
    uint16_t* const values = page + page_offset(a.dims, a.layer, 1, head) + token;
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      keys[i * 32 + lane] = to_bf16(key.x[i]);
      values[i * 32 + lane] = to_bf16(value.x[i]);
    }
  }
};

// What a warp has seen of its tokens: for heads 2t and 2t + 1 of lane t, the largest score and this lane's
// part of the sum of weights; values as 16 blocks of 16 dims x 8 heads.
struct Seen {
  float largest[2];
  float sum[2];
  float values[16][4];
};

// The weights of a tile's tokens as an operand, and what they do to those of the tiles before.
struct TileWeights {
  uint32_t p[2];
  float correction[2];
};
__device__ __forceinline__ TileWeights weigh_tile(Seen& seen, const uint8_t* keys, const uint32_t (&q)[16][2],
                                                  uint32_t valid) {
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
  TileWeights tile;
  float weights[4];
#pragma unroll
  for (uint32_t h = 0; h < 2; ++h) {
    const float s0 = upper ? c[h] * kScoreScale : -INFINITY;
    const float s1 = lower ? c[h + 2] * kScoreScale : -INFINITY;
    float most = fmaxf(s0, s1);
    most = fmaxf(most, __shfl_xor_sync(kAll, most, 4));
    most = fmaxf(most, __shfl_xor_sync(kAll, most, 8));
    most = fmaxf(most, __shfl_xor_sync(kAll, most, 16));
    most = fmaxf(most, seen.largest[h]);
    tile.correction[h] = exp2f(seen.largest[h] - most);
    weights[h] = exp2f(s0 - most);
    weights[h + 2] = exp2f(s1 - most);
    seen.sum[h] = fmaf(seen.sum[h], tile.correction[h], weights[h] + weights[h + 2]);
    seen.largest[h] = most;
  }
  tile.p[0] = transpose_matrix(pack_bf16(weights[0], weights[1]));
  tile.p[1] = transpose_matrix(pack_bf16(weights[2], weights[3]));
  return tile;
}
__device__ __forceinline__ void see_values(Seen& seen, const uint8_t* values, const TileWeights& tile) {
  const uint32_t lane = threadIdx.x & 31;
  const uint8_t* const at = values + ((lane & 7) + (lane >> 4) * 8) * kRow + ((lane >> 3) & 1) * 16;
#pragma unroll
  for (uint32_t i = 0; i < 16; ++i) {
    uint32_t v[4];
    load_matrices_transposed(v, at + i * 32);
    seen.values[i][0] *= tile.correction[0];
    seen.values[i][1] *= tile.correction[1];
    seen.values[i][2] *= tile.correction[0];
    seen.values[i][3] *= tile.correction[1];
    mma(seen.values[i], v[0], v[1], v[2], v[3], tile.p[0], tile.p[1]);
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

// One split of a row and key-value head.
struct Part {
  RowPlace place;
  uint32_t row, kv_head, split;
  uint32_t begin, end;  // tokens
};

// The warps' results to one, to memory: the threads of a head go over its values.
__device__ __forceinline__ void merge_warps(const AttendArgs& a, const uint8_t* of_warps, uint32_t warp_bytes,
                                            const Part& part) {
  const uint32_t warps = a.warps;
  const uint32_t threads = warps * 32 / kHeads;
  const uint32_t head = threadIdx.x / threads;
  const auto of = [&](uint32_t warp) { return reinterpret_cast<const float*>(of_warps + warp * warp_bytes); };
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
  const size_t place =
      (size_t{part.row} * a.dims.q_heads + part.kv_head * kHeads + head) * kMaxSplits + part.split;
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

// The heads of a warp: kLeastWarps warps have all of a block.
inline constexpr uint32_t kLeastWarps = 2;
struct WarpHeads {
  static constexpr uint32_t kMost = kHeads / kLeastWarps;
  HeadValues of[kMost];
  template <bool kRelayed>
  __device__ __forceinline__ void load(const AttendArgs& a, uint32_t row, uint32_t kv_head) {
    const float* const from = a.mixed + size_t{row} * a.ld;
#pragma unroll
    for (uint32_t i = 0; i < kMost; ++i) {
      const uint32_t head = threadIdx.x / 32 + i * a.warps;
      if (head < kHeads) {
        of[i].load<kRelayed>(from + (kv_head * kHeads + head) * 2 * kHeadDim);
      }
    }
  }
  __device__ __forceinline__ bool missing(uint32_t warps) const {
    bool any = false;
#pragma unroll
    for (uint32_t i = 0; i < kMost; ++i) {
      any = any || (threadIdx.x / 32 + i * warps < kHeads && of[i].missing());
    }
    return any;
  }
  __device__ __forceinline__ void store(uint8_t* shared_q, uint32_t warps, const Turn& turn) {
    const uint32_t lane = threadIdx.x & 31;
#pragma unroll
    for (uint32_t i = 0; i < kMost; ++i) {
      const uint32_t head = threadIdx.x / 32 + i * warps;
      if (head < kHeads) {
        norm_and_turn(of[i], turn);
        uint16_t* const to = reinterpret_cast<uint16_t*>(shared_q + head * kRow);
#pragma unroll
        for (uint32_t j = 0; j < kEach; ++j) {
          to[j * 32 + lane] = to_bf16(of[i].x[j]);
        }
      }
    }
  }
};
// The queries of the block's heads, as B operands.
__device__ __forceinline__ void load_queries(uint32_t (&q)[16][2], const uint8_t* shared_q) {
  const uint32_t lane = threadIdx.x & 31;
  const uint8_t* const at = shared_q + (lane >> 2) * kRow + (lane & 3) * 4;
#pragma unroll
  for (uint32_t i = 0; i < 16; ++i) {
    q[i][0] = *reinterpret_cast<const uint32_t*>(at + i * 32);
    q[i][1] = *reinterpret_cast<const uint32_t*>(at + i * 32 + 16);
  }
}

// A warp's tiles of a split, through its stages of shared memory.
class Tiles {
 public:
  __device__ __forceinline__ Tiles(const AttendArgs& a, const Part& part, uint8_t* own)
      : part_(part),
        own_(own),
        warps_(a.warps),
        keys_(page_offset(a.dims, a.layer, 0, part.kv_head)),
        values_(page_offset(a.dims, a.layer, 1, part.kv_head)) {}
  __device__ __forceinline__ uint32_t first_token(uint32_t i) const {
    return part_.begin + (i * warps_ + threadIdx.x / 32) * kTokens;
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
  const uint32_t warps_;
  const uint64_t keys_, values_;
  uint32_t fetched_ = 0;
};

// Scores and values of a warp's tiles, from the first that it fetched on; merged with those of the others.
__device__ __forceinline__ void attend_tiles(const AttendArgs& a, uint8_t* shared, Tiles& tiles,
                                             const Part& part, const uint32_t (&q)[16][2]) {
  while (tiles.fetched() < kStages) {
    tiles.fetch();
  }
  Seen seen = {{-INFINITY, -INFINITY}, {0, 0}, {}};
#pragma unroll 1
  for (uint32_t i = 0; tiles.first_token(i) < part.end; ++i) {
    wait_copies<kStages - 1>();
    __syncwarp();
    const TileWeights tile = weigh_tile(seen, tiles.stage(i), q, part.end - tiles.first_token(i));
    see_values(seen, tiles.stage(i) + kHalfStage, tile);
    __syncwarp();
    tiles.fetch();
  }
  wait_copies<0>();
  __syncwarp();
  put_seen(seen, reinterpret_cast<float*>(shared + kQueryBytes + threadIdx.x / 32 * kWarpBytes));
  __syncthreads();
  merge_warps(a, shared + kQueryBytes, kWarpBytes, part);
}

// One warp: the factors of a head's splits and the sum of all weights, from the largest score and the sum of
// each. Split 32 i + lane is ml[i]; one that is not there has {-infinity, 0}.
__device__ __forceinline__ void weigh_splits(float* factors, float& total,
                                             const float2 (&ml)[kMaxSplits / 32]) {
  const uint32_t lane = threadIdx.x & 31;
  float largest = -INFINITY;
#pragma unroll
  for (uint32_t i = 0; i < kMaxSplits / 32; ++i) {
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
    factors[i * 32 + lane] = factor;
    sum = fmaf(factor, ml[i].y, sum);
  }
  sum = sum_lanes<32>(sum);
  if (lane == 0) {
    total = sum;
  }
}

}  // namespace lily::cuda::attend
