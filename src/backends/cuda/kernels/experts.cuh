// What the products of the experts are made of, wherever their inputs come from.
#pragma once

#include "backends/cuda/kernels/routing.cuh"
#include "backends/cuda/kernels/tiles.cuh"

namespace lily::cuda::experts {

inline constexpr uint32_t kPartTiles = 4;  // tiles of a part of gate_up, whose parts are added in order

// The inputs of all rows in shared memory and their sums over tiles, or over half tiles where these have
// scales of their own. Behind the last row is one of zeros, for columns that are absent. Rows are 16 bytes
// longer than they need be, which keeps reads of neighbours free of bank conflicts.
template <class F, uint32_t kInputTiles>
struct Rows {
  static constexpr uint32_t kInputs = kInputTiles * kTileCols;
  static constexpr uint32_t kStride = kInputs * 2 + 16;
  static constexpr uint32_t kOfTile = F::kWide ? 2 : 1;
  static constexpr uint32_t kSums = kInputTiles * kOfTile + 4;  // floats of a row
  uint8_t* columns;
  float* sums;
  uint32_t rows;

  // By `threads` threads; `thread` is this one's number among them.
  template <bool kRelayed>
  __device__ __forceinline__ void load(const uint16_t* x, uint32_t thread, uint32_t threads) const {
    constexpr uint32_t kChunks = kInputs / 8;  // of 16 bytes; a lane of mma has two, a tile eight
    static_assert(kChunks % 32 == 0);
    for (uint32_t i = thread; i < rows * kChunks; i += threads) {
      const uint32_t row = i / kChunks;
      const uint32_t chunk = i % kChunks;
      uint4 v;
      do {
        v = read<kRelayed>(reinterpret_cast<const uint4*>(x) + i);
      } while (kRelayed && any_lane(unwritten(v)));
      put(row, chunk, v);
    }
  }
  // A chunk of a row and its part of the sums. The eight chunks of a tile are put by eight lanes in a row.
  __device__ __forceinline__ void put(uint32_t row, uint32_t chunk, const uint4& v) const {
    *reinterpret_cast<uint4*>(columns + row * kStride + chunk * 16) = v;
    // The first chunk of a lane has the steps of the first half, the second those of the second.
    float sum = ((low_bf16(v.x) + high_bf16(v.x)) + (low_bf16(v.y) + high_bf16(v.y))) +
                ((low_bf16(v.z) + high_bf16(v.z)) + (low_bf16(v.w) + high_bf16(v.w)));
    sum += __shfl_xor_sync(kAll, sum, 2);
    sum += __shfl_xor_sync(kAll, sum, 4);
    if (!F::kWide) {
      sum += __shfl_xor_sync(kAll, sum, 1);
    }
    if (chunk % 8 < kOfTile) {
      sums[row * kSums + chunk / 8 * kOfTile + chunk % 8] = sum;
    }
  }
  // Row of a column of an entry; any where the column is absent.
  __device__ __forceinline__ uint32_t row_of(const Entry& entry, uint32_t column) const {
    return min(uint32_t{entry.rows[column]}, rows - 1);
  }
  __device__ __forceinline__ Column column(uint32_t row, uint32_t tile, uint32_t lane) const {
    const uint4* const from =
        reinterpret_cast<const uint4*>(columns + row * kStride + tile * 128 + (lane & 3) * 32);
    return column_of(from[0], from[1]);
  }
  // Sums of a row over the tiles of a part.
  struct PartSums {
    float4 of[kOfTile];
    __device__ __forceinline__ float at(uint32_t i) const {
      const float4& four = of[i / 4];
      return i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
    }
  };
  __device__ __forceinline__ PartSums part_sums(uint32_t row, uint32_t part) const {
    PartSums p;
#pragma unroll
    for (uint32_t i = 0; i < kOfTile; ++i) {
      p.of[i] = reinterpret_cast<const float4*>(sums + row * kSums)[part * kOfTile + i];
    }
    return p;
  }
};

// A unit and what its columns are.
struct Unit {
  const Entry* entry;
  uint32_t block;  // of 16 outputs
};
__device__ __forceinline__ Unit unit_of(const Routing& r, const PackedMatrix& w, uint32_t index) {
  const uint32_t shift = 31 - __clz(w.row_blocks);  // a power of two
  return {&r.entries[index >> shift], index & (w.row_blocks - 1)};
}

template <class F, uint32_t kInputTiles>
__device__ __forceinline__ void add_part(float (&f)[4], const uint8_t* stage,
                                         const Rows<F, kInputTiles>& inputs, const Entry& entry,
                                         uint32_t part) {
  static_assert(kPartTiles == 4);
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t row = inputs.row_of(entry, lane >> 2);
  const auto first = inputs.part_sums(inputs.row_of(entry, (lane & 3) * 2), part);
  const auto second = inputs.part_sums(inputs.row_of(entry, (lane & 3) * 2 + 1), part);
#pragma unroll
  for (uint32_t i = 0; i < kPartTiles; ++i) {
    ColumnSums<F> sums;
#pragma unroll
    for (uint32_t j = 0; j < Rows<F, kInputTiles>::kOfTile; ++j) {
      const uint32_t at = i * Rows<F, kInputTiles>::kOfTile + j;
      sums.part[j] = make_float2(first.at(at), second.at(at));
    }
    add_tile<F>(f, load_tile<F>(stage + i * F::kTileBytes, lane),
                inputs.column(row, part * kPartTiles + i, lane), sums);
  }
}

// 16 outputs of the lane's columns to y[row * per_row + index].
__device__ __forceinline__ void put_outputs(float* y, const Entry& entry, uint32_t per_row, bool by_slot,
                                            uint32_t index, const float (&f)[4]) {
  const uint32_t lane = threadIdx.x & 31;
#pragma unroll
  for (uint32_t c = 0; c < 2; ++c) {
    const uint32_t column = (lane & 3) * 2 + c;
    const uint32_t row = entry.rows[column];
    if (row != kAbsent) {
      float* const to =
          y + (row * per_row + (by_slot ? entry.slots[column] : index)) * kTileRows + (lane >> 2);
      to[0] = f[c];
      to[8] = f[c + 2];
    }
  }
}

// Notes which experts the rows chose. All threads of one block call.
__device__ __forceinline__ void note_experts(const ExpertArgs& a, const Routing& r) {
  for (uint32_t i = r.shared + threadIdx.x; i < r.count; i += blockDim.x) {
    atomicOr(a.experts_used + r.entries[i].expert / 32, 1u << (r.entries[i].expert % 32));
  }
}

// What a thread adds to the stream: a row's experts in ascending order, then the shared one.
template <uint32_t kInputTiles>
__device__ __forceinline__ float sum_of_row(const Routing& r, const float* y, const float* shared_y,
                                            uint32_t row, uint32_t output) {
  float shared = 0;
#pragma unroll
  for (uint32_t i = 0; i < kInputTiles; ++i) {
    shared += shared_y[(row * kInputTiles + i) * kTileRows + output];
  }
  float value = 0;
#pragma unroll
  for (uint32_t slot = 0; slot < kTopK; ++slot) {
    value = fmaf(r.weights[row][slot], y[(row * kTopK + slot) * kTileRows + output], value);
  }
  return fmaf(r.weights[row][kTopK], shared, value);
}

}  // namespace lily::cuda::experts
