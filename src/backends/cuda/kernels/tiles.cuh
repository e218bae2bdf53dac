// Products of few rows with packed weights: one tile of 16 outputs x 64 inputs times columns of inputs, the
// ring of shared memory through which a warp reads its tiles, and the residual stream.
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

__host__ __device__ constexpr uint32_t align128(uint32_t bytes) { return (bytes + 127) / 128 * 128; }

// ---- Columns --------------------------------------------------------------------------------------------
// A lane's part of one tile's B operand: 16 inputs of column lane / 4, in fragment order. Columns do not mix,
// so one that is absent may hold anything: it stands for another one, and nobody reads what comes of it.
struct Column {
  uint32_t b[8];
};
__device__ __forceinline__ Column column_of(const uint4& low, const uint4& high) {
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}
// Row of inputs in memory that another kernel has written.
template <bool kRelayed = false>
__device__ __forceinline__ Column fetch_column(const uint16_t* row, uint32_t tile, uint32_t lane) {
  const uint4* const from = reinterpret_cast<const uint4*>(row + tile * kTileCols) + (lane & 3) * 2;
  return column_of(read<kRelayed>(from), read<kRelayed>(from + 1));
}
__device__ __forceinline__ bool unwritten(const Column& x) {
  return max(max(max(x.b[0], x.b[1]), max(x.b[2], x.b[3])), max(max(x.b[4], x.b[5]), max(x.b[6], x.b[7]))) ==
         kUnwritten;
}

// Sums of the inputs of columns 2t and 2t + 1 of lane t: over the tile, or over each of its halves where
// these have scales of their own.
template <class F>
struct ColumnSums {
  float2 part[F::kWide ? 2 : 1];
};
// By the tensor cores: every output of a matrix of ones is the sum of a column.
template <class F>
__device__ __forceinline__ ColumnSums<F> sums_of(const Column& x) {
  constexpr uint32_t kOnes = 0x3f803f80u;
  float c[2][4] = {};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    mma(c[F::kWide ? step / 2 : 0], kOnes, kOnes, kOnes, kOnes, x.b[2 * step], x.b[2 * step + 1]);
  }
  ColumnSums<F> sums;
  sums.part[0] = make_float2(c[0][0], c[0][1]);
  if constexpr (F::kWide) {
    sums.part[1] = make_float2(c[1][0], c[1][1]);
  }
  return sums;
}

// ---- One tile -------------------------------------------------------------------------------------------
// The tensor cores see codes 128 too large. They start from -128 times the sum of the inputs, so that what
// they end with is the sum of code times input; 8-bit codes are two planes of four.
template <class F>
struct TileWords {
  uint4 planes[F::kPlanes];
  float2 upper[F::kWide ? 2 : 1];  // scale and bias of output lane / 4, for each half if wide
  float2 lower[F::kWide ? 2 : 1];  // of output lane / 4 + 8
};
template <class F>
__device__ __forceinline__ TileWords<F> load_tile(const uint8_t* tile, uint32_t lane) {
  TileWords<F> w;
#pragma unroll
  for (int i = 0; i < F::kPlanes; ++i) {
    w.planes[i] = *reinterpret_cast<const uint4*>(tile + i * kPlaneBytes + lane * 16);
  }
  const uint8_t* const scales = tile + F::kPlanes * kPlaneBytes;
  const uint32_t g = lane >> 2;
  if constexpr (F::kWide) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2* const pairs = reinterpret_cast<const float2*>(scales) + half * kTileRows;
      w.upper[half] = pairs[g];
      w.lower[half] = pairs[g + 8];
    }
  } else {
    const uint32_t upper = reinterpret_cast<const uint32_t*>(scales)[g];
    const uint32_t lower = reinterpret_cast<const uint32_t*>(scales)[g + 8];
    w.upper[0] = make_float2(low_bf16(upper), high_bf16(upper));
    w.lower[0] = make_float2(low_bf16(lower), high_bf16(lower));
  }
  return w;
}

// c: sums of code times input, of each half if wide. For outputs lane / 4 (c[0], c[1]) and lane / 4 + 8
// (c[2], c[3]) and columns 2t, 2t + 1.
template <class F, int kPlane>
__device__ __forceinline__ void multiply_plane(float (&c)[F::kWide ? 2 : 1][4], const TileWords<F>& w,
                                               const Column& x, const ColumnSums<F>& sums) {
#pragma unroll
  for (int part = 0; part < (F::kWide ? 2 : 1); ++part) {
    c[part][0] = c[part][2] = -128.0f * sums.part[part].x;
    c[part][1] = c[part][3] = -128.0f * sums.part[part].y;
  }
  const uint32_t words[4] = {w.planes[kPlane].x, w.planes[kPlane].y, w.planes[kPlane].z, w.planes[kPlane].w};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint32_t q = words[step];
    mma(c[F::kWide ? step / 2 : 0], widen(q), widen(q >> 4), widen(q >> 8), widen(q >> 12), x.b[2 * step],
        x.b[2 * step + 1]);
  }
}

// f += w x. f[0], f[1]: output lane / 4, columns 2t and 2t + 1; f[2], f[3]: output lane / 4 + 8.
template <class F>
__device__ __forceinline__ void add_tile(float (&f)[4], const TileWords<F>& w, const Column& x,
                                         const ColumnSums<F>& sums) {
  float c[F::kWide ? 2 : 1][4];
  multiply_plane<F, 0>(c, w, x, sums);
  if constexpr (F::kPlanes == 2) {
    float d[F::kWide ? 2 : 1][4];
    multiply_plane<F, 1>(d, w, x, sums);
#pragma unroll
    for (int part = 0; part < (F::kWide ? 2 : 1); ++part) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        c[part][i] = fmaf(16.0f, d[part][i], c[part][i]);
      }
    }
  }
#pragma unroll
  for (int part = 0; part < (F::kWide ? 2 : 1); ++part) {
    const float2 s = sums.part[part];
    f[0] = fmaf(w.upper[part].x, c[part][0], fmaf(w.upper[part].y, s.x, f[0]));
    f[1] = fmaf(w.upper[part].x, c[part][1], fmaf(w.upper[part].y, s.y, f[1]));
    f[2] = fmaf(w.lower[part].x, c[part][2], fmaf(w.lower[part].y, s.x, f[2]));
    f[3] = fmaf(w.lower[part].x, c[part][3], fmaf(w.lower[part].y, s.y, f[3]));
  }
}

// ---- A warp's ring of weights ---------------------------------------------------------------------------
// Stages of kBytes in shared memory, kStride apart, filled and used in turn. Whatever is fetched must be
// waited for.
template <uint32_t kStride, uint32_t kBytes = kStride>
struct Ring {
  uint8_t* base;
  uint64_t* full;  // barriers of the stages
  uint32_t stages;
  uint32_t head = 0;    // stage that is filled next
  uint32_t tail = 0;    // stage that is used next
  uint32_t parity = 0;  // of its barrier

  __device__ __forceinline__ void prepare(uint32_t lane) const {
    if (lane < stages) {
      init_copy_barrier(full + lane);
    }
    __syncwarp();
  }
  __device__ __forceinline__ void fetch(const uint8_t* from, uint32_t lane) {
    copy_block<kBytes>(base + head * kStride, from, full + head, lane);
    head = head + 1 == stages ? 0 : head + 1;
  }
  // A stage of several pieces, which lie `stride` apart.
  __device__ __forceinline__ void fetch_pieces(const uint8_t* from, uint32_t pieces, uint32_t bytes,
                                               uint64_t stride, uint32_t lane) {
    copy_pieces(base + head * kStride, from, pieces, bytes, stride, full + head, lane);
    head = head + 1 == stages ? 0 : head + 1;
  }
  // Waits until the stage `back` before the one that is filled next has arrived, in the first round.
  __device__ __forceinline__ void pace(uint32_t back) const {
    if (head >= back) {
      wait_barrier(full + head - back, 0);
    }
  }
  // The oldest stage, once its bytes are there.
  __device__ __forceinline__ const uint8_t* wait() const {
    wait_barrier(full + tail, parity);
    return base + tail * kStride;
  }
  // It may be filled again.
  __device__ __forceinline__ void release() {
    __syncwarp();
    ++tail;
    if (tail == stages) {
      tail = 0;
      parity ^= 1;
    }
  }
};
inline constexpr uint32_t kMostStages = 9;
// Bytes of the barriers of a block's rings; those of warp w begin at w * kMostStages.
__host__ __device__ constexpr uint32_t ring_barrier_bytes(uint32_t warps) {
  return align128(warps * kMostStages * 8);
}

// ---- The residual stream --------------------------------------------------------------------------------
// An element of the stream and the weight of the norm that comes next, read before they are needed.
struct Element {
  float value;
  float norm;
};
template <bool kRelayed = false>
__device__ __forceinline__ Element load_element(const StreamArgs& to, uint32_t row, uint32_t output) {
  return {read<kRelayed>(to.from + size_t{row} * to.hidden + output), to.next_norm[output]};
}

// Adds `value` to one element of the stream and writes its place in the feed of the next product. The 16
// lanes of a half warp hold 16 consecutive outputs of one row; all lanes of the warp must call, `active` or
// not.
template <bool kRelayed>
__device__ __forceinline__ void add_to_stream(const StreamArgs& to, uint32_t row, uint32_t output,
                                              float value, bool active, const Element& element) {
  float now = 0;
  if (active) {
    now = element.value + value;
    write<kRelayed>(to.stream + size_t{row} * to.hidden + output, now);
  }
  put_input<kRelayed>(to.feed.x + size_t{row} * to.hidden, output, now * element.norm, active);
  const float square = sum_lanes<kFeedBlock>(now * now);
  if (active && output % kFeedBlock == 0) {
    write<kRelayed>(to.feed.squares + size_t{row} * (to.hidden / kFeedBlock) + output / kFeedBlock, square);
  }
}

// Sums of squares of a row of the feed, spread over the lanes of a warp.
template <uint32_t kInputs>
struct RowSquares {
  static constexpr uint32_t kBlocks = kInputs / kFeedBlock;
  static constexpr uint32_t kEach = (kBlocks + 31) / 32;
  float each[kEach];

  template <bool kRelayed = false>
  __device__ __forceinline__ void load(const float* squares, uint32_t row, uint32_t lane) {
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      each[i] =
          i * 32 + lane < kBlocks ? read<kRelayed>(squares + size_t{row} * kBlocks + i * 32 + lane) : 0.0f;
    }
  }
  __device__ __forceinline__ bool missing() const {
    bool any = false;
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      any = any || unwritten(each[i]);
    }
    return any;
  }
  // 1 / rms, in all lanes.
  __device__ __forceinline__ float scale() const {
    float sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      sum += each[i];
    }
    return rsqrtf(sum_lanes<32>(sum) / static_cast<float>(kInputs) + kEps);
  }
};

}  // namespace lily::cuda
