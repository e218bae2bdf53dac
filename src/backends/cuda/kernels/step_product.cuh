// Dense products of a whole step: inputs from the board, weights from a tape, and the sums over the warps.
#pragma once

#include "backends/cuda/kernels/step_tape.cuh"

namespace lily::cuda::step {

// Where a block's shared memory goes. Slots of the in-tape are lent to attention.
struct Shared {
  uint32_t in_slots, rest_slots, barriers, layers, parts, out_parts, router_parts, scales, columns, sums,
      routing, y, shared_y, stream, mixer, total;
};
inline constexpr uint32_t kMostLayers = 40;
// Of the partial sums of an epoch of a product, whole chunks of all teams. There are two, in turn, or for
// many rows one, behind another barrier.
template <class P, uint32_t kRows>
struct Parts {
  static constexpr uint32_t kUnit = P::kSplits * kRows * kTileRows * 4;
  static constexpr uint32_t kChunk = P::kPieces * P::kTeams;  // units
  static constexpr uint32_t kEpoch = larger(6 * 1024 / kUnit / kChunk, 1) * kChunk;
  static constexpr uint32_t kBuffers = kRows <= 2 ? 2 : 1;
  static constexpr uint32_t kBytes = kEpoch * kUnit;
};
inline constexpr uint32_t kAttendBytes = 825 * 128;  // of queries, keys and values
inline constexpr uint32_t kMixerBytes = 3200;        // delta::Shared, or the factors of attention's splits

template <class W>
LILY_BOTH constexpr Shared shared_of(uint32_t gate_units) {
  constexpr uint32_t kUnit = kWarps * W::kRows * kTileRows * 4;  // partial sums of one
  constexpr uint32_t kIn =
      Parts<typename W::In, W::kRows>::kBuffers * Parts<typename W::In, W::kRows>::kBytes;
  const uint32_t gate = W::kSpreadParts ? gate_units * W::kGateParts * W::kRows * kTileRows * 4 : 0;
  Shared s{};
  // Lent to attention: the slots of the in-tape, and the inputs of the experts of the layer before.
  s.columns = kWarps * W::kInSlots * kSlot;
  s.sums = s.columns + align128(W::kRows * (W::kHidden * kTileCols * 2 + 16));
  s.rest_slots = larger(s.sums + align128(W::kRows * (W::kHidden * 4 + 16)), kAttendBytes);
  s.barriers = s.rest_slots + kWarps * W::kRestSlots * kSlot;
  s.layers = s.barriers + align128(kWarps * (W::kInSlots + W::kRestSlots) * 8);
  // Partial sums of the router and of gate_up lie where those of the projections in lay, those of the
  // projections out where the experts' outputs will: barriers are between them.
  s.parts = s.layers + align128(kMostLayers * sizeof(StepLayer));
  s.router_parts = s.parts;
  s.y = s.parts + align128(larger(larger(kIn, kUnit), gate));
  s.out_parts = s.y;
  s.shared_y = s.y + W::kRows * kTopK * kTileRows * 4;
  s.routing = s.y + align128(larger(W::kRows * (kTopK + W::kFfn) * kTileRows * 4, kUnit));
  s.scales = s.routing + align128(sizeof(Routing));
  s.stream = s.scales + 128;
  s.mixer = s.stream + align128(W::kRows * kTileRows * 4);
  s.total = s.mixer + kMixerBytes;
  return s;
}

// What everything in a block's step sees.
template <class W>
struct Block {
  const StepArgs& a;
  uint8_t* shared;
  const Shared& at;
  Weights weights;
  Routing& routing;
  InTape<W>& in;
  RestTape<W>& rest;

  template <class T>
  __device__ __forceinline__ T* place(uint32_t offset) const {
    return reinterpret_cast<T*>(shared + offset);
  }
  __device__ __forceinline__ uint64_t* words(uint32_t layer) const {
    return a.board + size_t{layer} * W::board().layer;
  }
  // Of a thread that finishes an output of the stream: its place there.
  __device__ __forceinline__ uint32_t stream_row() const { return threadIdx.x / kTileRows; }
  __device__ __forceinline__ uint32_t stream_output() const {
    return blockIdx.x * kTileRows + threadIdx.x % kTileRows;
  }
  __device__ __forceinline__ bool has_stream() const {
    return blockIdx.x * kTileRows < W::dims().hidden && stream_row() < W::kRows;
  }
};

// A warp's inputs, and the factors of their heads where they are normed by heads. A lane of a column that is
// absent stands for the last row.
template <class P>
struct Inputs {
  Column x[P::kTiles];
  ColumnSums<typename P::F> sums[P::kTiles];
  float2 factor[P::kHeads ? P::kTiles / P::kNormed : 1];

  __device__ __forceinline__ void sum() {
#pragma unroll
    for (uint32_t i = 0; i < P::kTiles; ++i) {
      sums[i] = sums_of<typename P::F>(x[i]);
    }
  }
  // From a feed of the board; waits for it.
  __device__ __forceinline__ void wait(const uint64_t* feed, uint32_t row_words, uint32_t rows,
                                       uint32_t tag) {
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t split = threadIdx.x / 32 % P::kSplits;
    const uint64_t* const row = feed + min(lane >> 2, rows - 1) * row_words;
    uint32_t pairs[P::kTiles * 8];
    wait_words<P::kTiles, 4>(pairs, row + split * P::kTiles * (kTileCols / 2) + (lane & 3) * 8, kTileCols / 2,
                             tag);
#pragma unroll
    for (uint32_t i = 0; i < P::kTiles; ++i) {
#pragma unroll
      for (uint32_t j = 0; j < 8; ++j) {
        x[i].b[j] = pairs[i * 8 + j];
      }
    }
    sum();
    if constexpr (P::kHeads) {
      wait_factors(feed, row_words, rows, tag);
    }
  }

 private:
  // 1 / rms of the warp's heads: lanes work them out for each other, the order is that of project.cu.
  __device__ __forceinline__ void wait_factors(const uint64_t* feed, uint32_t row_words, uint32_t rows,
                                               uint32_t tag) {
    constexpr uint32_t kCount = P::kTiles / P::kNormed;
    static_assert(kDeltaDim / kFeedBlock == 8);
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t split = threadIdx.x / 32 % P::kSplits;
    const uint32_t own = lane / kGroupRows % kCount;
    const uint32_t head = (split * P::kTiles + own * P::kNormed) / (kDeltaDim / kTileCols);
    uint32_t bits[8];
    wait_words<1, 4>(bits, feed + min(lane % kGroupRows, rows - 1) * row_words + P::kInputs / 2 + head * 8, 0,
                     tag);
    float s[8];
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      s[i] = __uint_as_float(bits[i]);
    }
    const float total = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    const float scale = rsqrtf(total / static_cast<float>(kDeltaDim) + kEps);
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) {
      const uint32_t from = i * kGroupRows + (lane & 3) * 2;
      factor[i] = make_float2(__shfl_sync(kAll, scale, from), __shfl_sync(kAll, scale, from + 1));
    }
  }
};

template <class P>
__device__ __forceinline__ void multiply(float (&f)[4], const uint8_t* tiles, const Inputs<P>& in) {
  using F = typename P::F;
  const uint32_t lane = threadIdx.x & 31;
#pragma unroll
  for (uint32_t i = 0; i < P::kTiles; i += P::kNormed) {
    float h[4] = {};
    float(&to)[4] = P::kHeads ? h : f;
#pragma unroll
    for (uint32_t j = 0; j < P::kNormed; ++j) {
      add_tile<F>(to, load_tile<F>(tiles + (i + j) * F::kTileBytes, lane), in.x[i + j], in.sums[i + j]);
    }
    if constexpr (P::kHeads) {
      const float2 factor = in.factor[i / P::kNormed];
      f[0] = fmaf(factor.x, h[0], f[0]);
      f[1] = fmaf(factor.y, h[1], f[1]);
      f[2] = fmaf(factor.x, h[2], f[2]);
      f[3] = fmaf(factor.y, h[3], f[3]);
    }
  }
}

// The columns of a warp's sums of a unit to [rows][16].
template <uint32_t kRows>
__device__ __forceinline__ void store_columns(float* to, const float (&f)[4]) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t row = (lane & 3) * 2;
  to += row * kTileRows + (lane >> 2);
  if (row < kRows) {
    to[0] = f[0];
    to[8] = f[2];
  }
  if (row + 1 < kRows) {
    to[kTileRows] = f[1];
    to[kTileRows + 8] = f[3];
  }
}

// 1 / rms of each row of a feed, by a warp each; whoever reads them waits at a barrier of the block.
template <uint32_t kInputs, uint32_t kRows>
__device__ __forceinline__ void wait_scales(float* scales, const uint64_t* feed, uint32_t row_words,
                                            uint32_t tag) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  if (warp < kRows) {
    RowSquares<kInputs> squares;
    constexpr uint32_t kEach = RowSquares<kInputs>::kEach;
    const uint64_t* from[kEach];
    uint32_t bits[kEach];
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      from[i] = feed + warp * row_words + kInputs / 2 + min(i * 32 + lane, kInputs / kFeedBlock - 1);
    }
    wait_each(bits, from, tag);
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      squares.each[i] = i * 32 + lane < kInputs / kFeedBlock ? __uint_as_float(bits[i]) : 0.0f;
    }
    const float scale = squares.scale();
    if (lane == 0) {
      scales[warp] = scale;
    }
  }
}

// Units first, first + 1, .. first + count - 1 of the block (every gridDim.x-th of the product), whose
// partial sums are complete: calls finish(row, output of the product, sum, active) in whole warps.
template <class P, uint32_t kRows, class Finish>
__device__ __forceinline__ void finish_units(const float* part, uint32_t first, uint32_t count,
                                             const Finish& finish) {
  const uint32_t work = count * kRows * kTileRows;
  for (uint32_t i = threadIdx.x; i < (work + 31) / 32 * 32; i += kWarps * 32) {
    const bool active = i < work;
    const uint32_t unit = i / kTileRows / kRows;
    const uint32_t row = i / kTileRows % kRows;
    float value = 0;
    if (active) {
      const float* const from = part + (unit * P::kSplits * kRows + row) * kTileRows + i % kTileRows;
#pragma unroll
      for (uint32_t s = 0; s < P::kSplits; ++s) {
        value += from[s * kRows * kTileRows];
      }
    }
    finish(row, (blockIdx.x + (first + unit) * gridDim.x) * kTileRows + i % kTileRows, value, active);
  }
}

// All units of the block times its inputs, in epochs whose partial sums fit; `refill` fetches the next chunk.
// Ends without a barrier behind the last finish: other phases use other memory, or come after a barrier.
template <uint32_t kRows, class P, class Refill, class Finish>
__device__ __forceinline__ void multiply_all(float* parts, uint32_t row_blocks, const Inputs<P>& in,
                                             Slots& slots, const Refill& refill, const Finish& finish) {
  const uint32_t split = threadIdx.x / 32 % P::kSplits;
  const uint32_t team = threadIdx.x / 32 / P::kSplits;
  const uint32_t all = blockIdx.x < row_blocks ? (row_blocks - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
  using Of = Parts<P, kRows>;
  constexpr uint32_t unit_floats = Of::kUnit / 4;
  uint32_t buffer = 0;
#pragma unroll 1
  for (uint32_t first = 0; first < all; first += Of::kEpoch) {
    const uint32_t count = min(Of::kEpoch, all - first);
    float* const part = parts + buffer * (Of::kBytes / 4);
#pragma unroll 1
    for (uint32_t chunk = team; chunk < count; chunk += Of::kChunk) {
      const uint8_t* const tiles = slots.wait();
#pragma unroll
      for (uint32_t piece = 0; piece < P::kPieces; ++piece) {
        const uint32_t unit = chunk + piece * P::kTeams;
        if (unit < count) {
          float f[4] = {};
          multiply(f, tiles + piece * P::kPiece, in);
          store_columns<kRows>(part + unit * unit_floats + split * kRows * kTileRows, f);
        }
      }
      slots.release();
      refill();
    }
    __syncthreads();
    finish_units<P, kRows>(part, first, count, finish);
    if constexpr (Of::kBuffers == 1) {
      __syncthreads();
    } else {
      buffer ^= 1;
    }
  }
}

}  // namespace lily::cuda::step
