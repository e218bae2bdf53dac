// Products of few rows with packed weights: one tile of 16 outputs x 64 inputs times the columns of a group,
// and the ring of shared memory through which a warp reads its tiles.
#pragma once

#include "backends/cuda/kernels/common.cuh"
#include "backends/cuda/kernels/decode.h"

namespace lily::cuda {

template <int kPlanes_, bool kWide_>
struct Format {
  static constexpr int kPlanes = kPlanes_;
  static constexpr bool kWide = kWide_;
  static constexpr uint32_t kTileBytes =
      kPlanes * kPlaneBytes + (kWide ? kWideScaleBytes : kNarrowScaleBytes);
};

// Calls f.template operator()<Format>() for the format of `w`.
template <class F>
int with_format(const PackedMatrix& w, F&& f) {
  if (w.planes == 1) {
    return w.wide ? f.template operator()<Format<1, true>>() : f.template operator()<Format<1, false>>();
  }
  return w.wide ? f.template operator()<Format<2, true>>() : f.template operator()<Format<2, false>>();
}

// ---- The columns of a group in shared memory ------------------------------------------------------------
// Rows of bf16 in fragment order, `stride` bytes apart; the stride is 16 more than a multiple of 128, which
// keeps the reads below free of bank conflicts.
__host__ __device__ constexpr uint32_t column_stride(uint32_t inputs) { return inputs * 2 + 16; }

// A lane's part of one tile's B operand: column lane / 4, 16 inputs. Zeros where the column is absent.
struct Column {
  uint32_t b[8];
};
__device__ __forceinline__ Column load_column(const uint8_t* column, uint32_t tile, uint32_t lane,
                                              bool present) {
  Column c;
  uint4 low = make_uint4(0, 0, 0, 0);
  uint4 high = low;
  if (present) {
    const uint4* from = reinterpret_cast<const uint4*>(column + tile * (kTileCols * 2) + (lane & 3) * 32);
    low = from[0];
    high = from[1];
  }
  c.b[0] = low.x, c.b[1] = low.y, c.b[2] = low.z, c.b[3] = low.w;
  c.b[4] = high.x, c.b[5] = high.y, c.b[6] = high.z, c.b[7] = high.w;
  return c;
}

// Sums of a column's inputs over each half tile, for columns 2t and 2t + 1 of lane t.
struct HalfSums {
  float2 half[2];
};
// `sums`: [half tile][kGroupRows]
__device__ __forceinline__ HalfSums load_half_sums(const float* sums, uint32_t tile, uint32_t lane) {
  HalfSums s;
  const float2* from = reinterpret_cast<const float2*>(sums + size_t{tile} * 2 * kGroupRows) + (lane & 3);
  s.half[0] = from[0];
  s.half[1] = from[kGroupRows / 2];
  return s;
}

// ---- One tile -------------------------------------------------------------------------------------------
// f[0], f[1]: output lane / 4, columns 2t and 2t + 1; f[2], f[3]: output lane / 4 + 8. Adds factor * (w x),
// where kScaled says that there is a factor per column.
//
// The tensor cores see codes 128 too large (8-bit codes are two planes, 128 + 16 * 128 too large): with the
// sum of the inputs, w x = scale * (sum of products) + (bias - offset * scale) * (sum of inputs).
template <bool kScaled>
__device__ __forceinline__ void add_half(float (&f)[4], const float (&c)[4], float2 upper, float2 lower,
                                         float2 sums, float2 factor) {
  // upper, lower: scale and corrected bias of the two outputs
  if constexpr (kScaled) {
    f[0] = fmaf(factor.x, fmaf(upper.x, c[0], upper.y * sums.x), f[0]);
    f[1] = fmaf(factor.y, fmaf(upper.x, c[1], upper.y * sums.y), f[1]);
    f[2] = fmaf(factor.x, fmaf(lower.x, c[2], lower.y * sums.x), f[2]);
    f[3] = fmaf(factor.y, fmaf(lower.x, c[3], lower.y * sums.y), f[3]);
  } else {
    f[0] = fmaf(upper.y, sums.x, fmaf(upper.x, c[0], f[0]));
    f[1] = fmaf(upper.y, sums.y, fmaf(upper.x, c[1], f[1]));
    f[2] = fmaf(lower.y, sums.x, fmaf(lower.x, c[2], f[2]));
    f[3] = fmaf(lower.y, sums.y, fmaf(lower.x, c[3], f[3]));
  }
}

// Two steps of 16 inputs with two words of codes.
__device__ __forceinline__ void two_steps(float (&c)[4], uint32_t w0, uint32_t w1, const uint32_t* b) {
  mma(c, widen(w0), widen(w0 >> 4), widen(w0 >> 8), widen(w0 >> 12), b[0], b[1]);
  mma(c, widen(w1), widen(w1 >> 4), widen(w1 >> 8), widen(w1 >> 12), b[2], b[3]);
}

template <class F, bool kScaled>
__device__ __forceinline__ void add_tile(float (&f)[4], const uint8_t* tile, const Column& column,
                                         const HalfSums& sums, float2 factor, uint32_t lane) {
  constexpr float kOffset = F::kPlanes == 2 ? 17 * 128.0f : 128.0f;
  const uint32_t g = lane >> 2;
  float c[2][4] = {};  // of the halves; a narrow tile uses the first for both
  const uint4 q = *reinterpret_cast<const uint4*>(tile + lane * 16);
  two_steps(c[0], q.x, q.y, column.b);
  two_steps(c[F::kWide ? 1 : 0], q.z, q.w, column.b + 4);
  if constexpr (F::kPlanes == 2) {
    float d[2][4] = {};
    const uint4 high = *reinterpret_cast<const uint4*>(tile + kPlaneBytes + lane * 16);
    two_steps(d[0], high.x, high.y, column.b);
    two_steps(d[F::kWide ? 1 : 0], high.z, high.w, column.b + 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      c[0][i] = fmaf(16.0f, d[0][i], c[0][i]);
      c[1][i] = fmaf(16.0f, d[1][i], c[1][i]);
    }
  }
  const uint8_t* scales = tile + F::kPlanes * kPlaneBytes;
  if constexpr (F::kWide) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2* pairs = reinterpret_cast<const float2*>(scales) + half * kTileRows;
      float2 upper = pairs[g];
      float2 lower = pairs[g + 8];
      upper.y = fmaf(-kOffset, upper.x, upper.y);
      lower.y = fmaf(-kOffset, lower.x, lower.y);
      add_half<kScaled>(f, c[half], upper, lower, sums.half[half], factor);
    }
  } else {
    const uint32_t* pairs = reinterpret_cast<const uint32_t*>(scales);
    const uint32_t u = pairs[g];
    const uint32_t l = pairs[g + 8];
    const float2 upper = make_float2(low_bf16(u), fmaf(-kOffset, low_bf16(u), high_bf16(u)));
    const float2 lower = make_float2(low_bf16(l), fmaf(-kOffset, low_bf16(l), high_bf16(l)));
    const float2 both = make_float2(sums.half[0].x + sums.half[1].x, sums.half[0].y + sums.half[1].y);
    add_half<kScaled>(f, c[0], upper, lower, both, factor);
  }
}

// ---- A warp's ring of weights ---------------------------------------------------------------------------
// Stages of kBytes in shared memory. Every call of fetch() is one group of copies, also without an address.
template <uint32_t kBytes>
struct Ring {
  uint8_t* base;
  uint32_t stages;
  uint32_t lane;
  uint32_t head = 0;  // stage that is filled next
  uint32_t tail = 0;  // stage that is used next

  __device__ __forceinline__ void fetch(const uint8_t* from) {
    if (from != nullptr) {
      uint8_t* to = base + head * kBytes;
#pragma unroll
      for (uint32_t at = 0; at < kBytes; at += 512) {
        if (at + 512 <= kBytes || at + lane * 16 < kBytes) {
          copy_async(to + at + lane * 16, from + at + lane * 16);
        }
      }
    }
    commit_copies();
    head = head + 1 == stages ? 0 : head + 1;
  }
  // The oldest stage, once its bytes are there.
  __device__ __forceinline__ const uint8_t* wait() {
    wait_copies_but(stages - 1);
    __syncwarp();
    return base + tail * kBytes;
  }
  // It may be filled again.
  __device__ __forceinline__ void release() {
    __syncwarp();
    tail = tail + 1 == stages ? 0 : tail + 1;
  }
};

// ---- Results --------------------------------------------------------------------------------------------
// Partial results of one unit of 16 outputs, from `split` warps that share the inputs: [split][rows][16].
__device__ __forceinline__ void store_partial(float* part, uint32_t split, uint32_t rows, const float (&f)[4],
                                              uint32_t lane) {
  const uint32_t g = lane >> 2;
  const uint32_t column = (lane & 3) * 2;
  float* to = part + size_t{split} * rows * kTileRows;
  if (column < rows) {
    to[column * kTileRows + g] = f[0];
    to[column * kTileRows + g + 8] = f[2];
  }
  if (column + 1 < rows) {
    to[(column + 1) * kTileRows + g] = f[1];
    to[(column + 1) * kTileRows + g + 8] = f[3];
  }
}
__device__ __forceinline__ float sum_partials(const float* part, uint32_t splits, uint32_t rows, uint32_t row,
                                              uint32_t output) {
  float sum = 0;
#pragma unroll 8
  for (uint32_t s = 0; s < splits; ++s) {
    sum += part[(size_t{s} * rows + row) * kTileRows + output];
  }
  return sum;
}

// An element of the stream and the weight of the norm that comes next, read before they are needed.
struct Element {
  float value;
  float norm;
};
__device__ __forceinline__ Element load_element(const StreamArgs& to, uint32_t row, uint32_t output) {
  return {__ldcg(to.stream + size_t{row} * to.hidden + output), to.next_norm[output]};
}

// Adds `value` to one element of the stream and writes its place in the feed of the next product. The 16
// lanes of a half warp hold 16 consecutive outputs of one row; all lanes of the warp must call, `active` or
// not.
__device__ __forceinline__ void add_to_stream(const StreamArgs& to, uint32_t row, uint32_t output,
                                              float value, bool active, const Element& element) {
  float now = 0;
  float fed = 0;
  if (active) {
    now = element.value + value;
    to.stream[size_t{row} * to.hidden + output] = now;
    const uint16_t bits = to_bf16(now * element.norm);
    fed = from_bf16(bits);
    to.feed.x[size_t{row} * to.hidden + fragment_position(output)] = bits;
  }
  const float square = sum_lanes<kFeedBlock>(now * now);
  const float sum = sum_lanes<kFeedBlock>(fed);
  if (active && output % kFeedBlock == 0) {
    const size_t at = size_t{row} * (to.hidden / kFeedBlock) + output / kFeedBlock;
    to.feed.sums[at] = sum;
    to.feed.squares[at] = square;
  }
}

// ---- Feeds to shared memory -----------------------------------------------------------------------------
// Each part of a feed is brought by warps of its own, so that one latency is paid for all of them.
struct Team {
  uint32_t thread;  // of this thread in the team; not below `threads`: it is not in the team
  uint32_t threads;
};
__device__ __forceinline__ Team team_of(uint32_t first_warp, uint32_t warps) {
  return {threadIdx.x - first_warp * 32, warps * 32};
}

// Columns of a group, from rows of the feed.
__device__ __forceinline__ void load_columns(const Team& team, uint8_t* columns, const uint16_t* x,
                                             uint32_t inputs, uint32_t rows) {
  const uint32_t chunks = inputs / 8;  // of 16 bytes
  if (team.thread < team.threads) {
#pragma unroll 4
    for (uint32_t i = team.thread; i < rows * chunks; i += team.threads) {
      const uint32_t row = i / chunks;
      const uint32_t chunk = i % chunks;
      *reinterpret_cast<uint4*>(columns + size_t{row} * column_stride(inputs) + chunk * 16) =
          load_l2(reinterpret_cast<const uint4*>(x + size_t{row} * inputs) + chunk);
    }
  }
}
// Sums over half tiles: [inputs / 32][kGroupRows]. Those of absent rows are cleared before the kernel waits.
__device__ __forceinline__ void clear_sums(float* to, uint32_t inputs) {
  for (uint32_t i = threadIdx.x; i < inputs / 32 * kGroupRows; i += blockDim.x) {
    to[i] = 0;
  }
}
__device__ __forceinline__ void load_sums(const Team& team, float* to, const float* sums, uint32_t inputs,
                                          uint32_t rows) {
  const uint32_t halves = inputs / 32;
  if (team.thread < team.threads) {
    for (uint32_t i = team.thread; i < rows * halves; i += team.threads) {
      const uint32_t row = i / halves;
      const uint32_t half = i % halves;
      const float2 two =
          load_l2(reinterpret_cast<const float2*>(sums + size_t{row} * (inputs / kFeedBlock)) + half);
      to[half * kGroupRows + row] = two.x + two.y;
    }
  }
}
// 1 / rms of each row: a warp of the team takes a row at a time.
__device__ __forceinline__ void load_row_scales(const Team& team, float* to, const float* squares,
                                                uint32_t inputs, uint32_t rows) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t blocks = inputs / kFeedBlock;
  if (team.thread < team.threads) {
    for (uint32_t row = team.thread / 32; row < rows; row += team.threads / 32) {
      float sum = 0;
#pragma unroll 4
      for (uint32_t i = lane; i < blocks; i += 32) {
        sum += load_l2(squares + size_t{row} * blocks + i);
      }
      sum = sum_lanes<32>(sum);
      if (lane == 0) {
        to[row] = rsqrtf(sum / static_cast<float>(inputs) + kEps);
      }
    }
  }
}

}  // namespace lily::cuda
