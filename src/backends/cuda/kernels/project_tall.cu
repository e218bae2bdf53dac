// Dense projections of more than kFewRows rows by matrices of very many outputs, as the head is: the sums of
// project.cu, in the same order.
//
// There are outputs enough for every warp to have units of 16 of its own, two at a time: it goes over all
// their inputs, and no warp waits for another. The inputs of all rows are in shared memory; what a lane reads
// of them serves both units, and each word of weights is widened once for all rows.
#include "backends/cuda/kernels/project_many.cuh"

namespace lily::cuda {
namespace {

constexpr uint32_t kWarps = 12;  // leaves a lane 168 registers

template <class F_, uint32_t kInputTiles_, uint32_t kGroups_>
struct Tall {
  using F = F_;
  static constexpr uint32_t kInputTiles = kInputTiles_;
  static constexpr uint32_t kInputs = kInputTiles * kTileCols;
  static constexpr uint32_t kSplits = kInputTiles < 16 ? kInputTiles : 16;  // sums that are added in order
  static constexpr uint32_t kTiles = kInputTiles / kSplits;                 // of one of them
  static constexpr uint32_t kGroups = kGroups_;                             // of kGroupRows rows
  static constexpr uint32_t kRows = kGroups * kGroupRows;
  static constexpr uint32_t kUnits = F::kPlanes == 1 ? 2 : 1;  // at a time
  static constexpr uint32_t kPart = kTiles * F::kTileBytes;
  static constexpr uint32_t kStage = kUnits * kPart;
  static constexpr uint32_t kUnitBytes = kInputTiles * F::kTileBytes;
  static constexpr uint32_t kStride = kInputs * 2 + 16;  // bytes of a row: no bank conflicts
  static_assert(!F::kWide);
};

// What shared memory holds behind the rings.
struct Layout {
  uint32_t barriers, inputs_barrier, scales, starts, columns, total;
};
template <class P>
__host__ __device__ constexpr Layout layout_of(uint32_t stages) {
  Layout l{};
  l.barriers = align128(kWarps * stages * P::kStage);
  l.inputs_barrier = l.barriers + ring_barrier_bytes(kWarps);
  l.scales = l.inputs_barrier + 128;
  l.starts = l.scales + align128(P::kRows * 4);
  l.columns = l.starts + P::kInputTiles * P::kGroups * 64;
  l.total = l.columns + P::kRows * P::kStride;
  return l;
}

// Of the lane: where its column of the first group lies, and the starts (project_many.cu) of its outputs.
struct Inputs {
  const uint8_t* column;
  float4* starts;
};
template <class P>
__device__ __forceinline__ uint4 input(const Inputs& in, uint32_t group, uint32_t tile, uint32_t half) {
  return *reinterpret_cast<const uint4*>(in.column + group * kGroupRows * P::kStride + tile * 128 +
                                         half * 16);
}
template <class P>
__device__ __forceinline__ float4* start_of(const Inputs& in, uint32_t group, uint32_t tile) {
  return in.starts + (tile * P::kGroups + group) * 4;
}

// The starts of all tiles and groups, by all warps.
template <class P>
__device__ __forceinline__ void put_starts(const Inputs& in) {
#pragma unroll 1
  for (uint32_t i = threadIdx.x / 32; i < P::kInputTiles * P::kGroups; i += kWarps) {
    const uint32_t group = i % P::kGroups;
    const uint32_t tile = i / P::kGroups;
    const Column x = column_of(input<P>(in, group, tile, 0), input<P>(in, group, tile, 1));
    const float2 sum = sums_of<typename P::F>(x).part[0];
    if ((threadIdx.x & 31) < 4) {
      const float first = -128.0f * sum.x;
      const float second = -128.0f * sum.y;
      *start_of<P>(in, group, tile) = make_float4(first, second, first, second);
    }
  }
}

template <class P>
using Sums = float[P::kUnits][P::kGroups][4];

// c += codes of a plane times the inputs of a tile.
template <class P>
__device__ __forceinline__ void multiply_plane(Sums<P>& c, const TileWords<typename P::F> (&w)[P::kUnits],
                                               uint32_t plane, const Inputs& in, uint32_t tile) {
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    uint4 x[P::kGroups];
#pragma unroll
    for (uint32_t group = 0; group < P::kGroups; ++group) {
      x[group] = input<P>(in, group, tile, half);
    }
#pragma unroll
    for (uint32_t step = 0; step < 2; ++step) {
#pragma unroll
      for (uint32_t unit = 0; unit < P::kUnits; ++unit) {
        const uint4& words = w[unit].planes[plane];
        const uint32_t q = half == 0 ? (step == 0 ? words.x : words.y) : (step == 0 ? words.z : words.w);
        const uint32_t a0 = widen(q);
        const uint32_t a1 = widen(q >> 4);
        const uint32_t a2 = widen(q >> 8);
        const uint32_t a3 = widen(q >> 12);
#pragma unroll
        for (uint32_t group = 0; group < P::kGroups; ++group) {
          mma(c[unit][group], a0, a1, a2, a3, step == 0 ? x[group].x : x[group].z,
              step == 0 ? x[group].y : x[group].w);
        }
      }
    }
  }
}

// f += w x of one tile of each unit.
template <class P>
__device__ __forceinline__ void add_tiles(Sums<P>& f, const uint8_t* tiles, const Inputs& in, uint32_t tile) {
  using F = typename P::F;
  TileWords<F> w[P::kUnits];
  Sums<P> c;
#pragma unroll
  for (uint32_t unit = 0; unit < P::kUnits; ++unit) {
    w[unit] = load_tile<F>(tiles + unit * P::kPart, threadIdx.x & 31);
  }
#pragma unroll
  for (uint32_t group = 0; group < P::kGroups; ++group) {
    const float4 start = *start_of<P>(in, group, tile);
#pragma unroll
    for (uint32_t unit = 0; unit < P::kUnits; ++unit) {
      const float upper = w[unit].upper[0].y * -0.0078125f;  // exact, as the factor in the starts is
      const float lower = w[unit].lower[0].y * -0.0078125f;
      float(&to)[4] = f[unit][group];
      c[unit][group][0] = start.x;
      c[unit][group][1] = start.y;
      c[unit][group][2] = start.z;
      c[unit][group][3] = start.w;
      to[0] = fmaf(upper, start.x, to[0]);
      to[1] = fmaf(upper, start.y, to[1]);
      to[2] = fmaf(lower, start.z, to[2]);
      to[3] = fmaf(lower, start.w, to[3]);
    }
  }
  multiply_plane<P>(c, w, 0, in, tile);
  if constexpr (F::kPlanes == 2) {
    Sums<P> high;
#pragma unroll
    for (uint32_t group = 0; group < P::kGroups; ++group) {
      const float4 start = *start_of<P>(in, group, tile);
#pragma unroll
      for (uint32_t unit = 0; unit < P::kUnits; ++unit) {
        high[unit][group][0] = start.x;
        high[unit][group][1] = start.y;
        high[unit][group][2] = start.z;
        high[unit][group][3] = start.w;
      }
    }
    multiply_plane<P>(high, w, 1, in, tile);
#pragma unroll
    for (uint32_t unit = 0; unit < P::kUnits; ++unit) {
#pragma unroll
      for (uint32_t group = 0; group < P::kGroups; ++group) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          c[unit][group][i] = fmaf(16.0f, high[unit][group][i], c[unit][group][i]);
        }
      }
    }
  }
#pragma unroll
  for (uint32_t unit = 0; unit < P::kUnits; ++unit) {
#pragma unroll
    for (uint32_t group = 0; group < P::kGroups; ++group) {
      float(&to)[4] = f[unit][group];
      const float(&of)[4] = c[unit][group];
      to[0] = fmaf(w[unit].upper[0].x, of[0], to[0]);
      to[1] = fmaf(w[unit].upper[0].x, of[1], to[1]);
      to[2] = fmaf(w[unit].lower[0].x, of[2], to[2]);
      to[3] = fmaf(w[unit].lower[0].x, of[3], to[3]);
    }
  }
}

// 1 / rms of all rows, a warp for every kWarps-th.
template <class P>
__device__ __forceinline__ void scale_rows(float* scales, const ProjectArgs& a) {
  const uint32_t lane = threadIdx.x & 31;
#pragma unroll 1
  for (uint32_t row = threadIdx.x / 32; row < a.rows; row += kWarps) {
    float scale = 1;
    if (a.scaling == Scaling::row) {
      RowSquares<P::kInputs> squares;
      squares.load(a.feed.squares, row, lane);
      scale = squares.scale();
    }
    if (lane == 0) {
      scales[row] = scale;
    }
  }
}

// The outputs of the units from `unit` on, as many as there are.
template <class P>
__device__ __forceinline__ void put_outputs(const ProjectArgs& a, const float* scales, uint32_t unit,
                                            const Sums<P>& values) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t units = min(a.w.row_blocks, a.ld_y / kTileRows) - unit;
#pragma unroll
  for (uint32_t group = 0; group < P::kGroups; ++group) {
#pragma unroll
    for (uint32_t odd = 0; odd < 2; ++odd) {
      const uint32_t row = group * kGroupRows + (lane & 3) * 2 + odd;
      if (row < a.rows) {
        const float scale = scales[row];
        float* const to = a.y + size_t{row} * a.ld_y + unit * kTileRows + (lane >> 2);
#pragma unroll
        for (uint32_t u = 0; u < P::kUnits; ++u) {
          if (u < units) {
            to[u * kTileRows] = values[u][group][odd] * scale;
            to[u * kTileRows + 8] = values[u][group][2 + odd] * scale;
          }
        }
      }
    }
  }
}

template <class P>
__global__ void __launch_bounds__(kWarps * 32, 1) project_tall_kernel(ProjectArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  const Layout at = layout_of<P>(a.stages);
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = __shfl_sync(kAll, threadIdx.x / 32, 0);  // known to be the same for all lanes
  start_successors();
  Ring<P::kStage> ring{shared + warp * a.stages * P::kStage,
                       reinterpret_cast<uint64_t*>(shared + at.barriers) + warp * kMostStages, a.stages};
  uint64_t* const arrived = reinterpret_cast<uint64_t*>(shared + at.inputs_barrier);
  float* const scales = reinterpret_cast<float*>(shared + at.scales);
  uint8_t* const columns = shared + at.columns;
  ring.prepare(lane);
  if (threadIdx.x == 0) {
    init_copy_barrier(arrived);
  }
  __syncthreads();
  // The warps of all blocks take turns.
  const uint32_t first = (warp * gridDim.x + blockIdx.x) * P::kUnits;
  const uint32_t step = kWarps * gridDim.x * P::kUnits;
  uint32_t fetched = first;  // unit
  uint32_t split = 0;        // of it
  const auto fetch = [&] {
    if (fetched < a.w.row_blocks) {
      const uint8_t* const from = a.w.tiles + size_t{fetched} * P::kUnitBytes + split * P::kPart;
      ring.fetch_pieces(from, min(a.w.row_blocks - fetched, P::kUnits), P::kPart, P::kUnitBytes, lane);
      split = split + 1 == P::kSplits ? 0 : split + 1;
      fetched += split == 0 ? step : 0;
    }
  };
#pragma unroll 1
  for (uint32_t i = 0; i < a.stages; ++i) {
    fetch();
  }
  wait_for_predecessors();
  if (warp == 0) {
    copy_rows(columns, P::kStride, reinterpret_cast<const uint8_t*>(a.feed.x) + size_t{lane} * P::kInputs * 2,
              a.rows, P::kInputs * 2, arrived, lane);
  }
  scale_rows<P>(scales, a);
  wait_barrier(arrived, 0);
  const Inputs in{columns + (lane >> 2) * P::kStride + (lane & 3) * 32,
                  reinterpret_cast<float4*>(shared + at.starts) + (lane & 3)};
  put_starts<P>(in);
  __syncthreads();
#pragma unroll 1
  for (uint32_t unit = first; unit < a.w.row_blocks; unit += step) {
    Sums<P> values = {};
#pragma unroll 1
    for (uint32_t i = 0; i < P::kSplits; ++i) {
      const uint8_t* const stage = ring.wait();
      Sums<P> f = {};
#pragma unroll
      for (uint32_t tile = 0; tile < P::kTiles; ++tile) {
        add_tiles<P>(f, stage + tile * P::F::kTileBytes, in, i * P::kTiles + tile);
      }
      ring.release();
      fetch();
#pragma unroll
      for (uint32_t u = 0; u < P::kUnits; ++u) {
#pragma unroll
        for (uint32_t group = 0; group < P::kGroups; ++group) {
#pragma unroll
          for (uint32_t j = 0; j < 4; ++j) {
            values[u][group][j] += f[u][group][j];
          }
        }
      }
    }
    put_outputs<P>(a, scales, unit, values);
  }
}

// Calls f.template operator()<Tall>() for this product, or returns an error where there is none.
template <class Call>
int with_product(const PackedMatrix& w, uint32_t rows, Call&& call) {
  const auto with = [&]<class F>() -> int {
    const auto of = [&]<uint32_t kInputTiles>() -> int {
      switch (project_rows_of_block(w, rows) / kGroupRows) {
        case 1:
          return call.template operator()<Tall<F, kInputTiles, 1>>();
        case 2:
          return call.template operator()<Tall<F, kInputTiles, 2>>();
        default:
          return call.template operator()<Tall<F, kInputTiles, 4>>();
      }
    };
    return w.k_tiles == 4 ? of.template operator()<4>() : of.template operator()<32>();
  };
  return w.planes == 1 ? with.template operator()<Format<1, false>>()
                       : with.template operator()<Format<2, false>>();
}

}  // namespace

uint32_t project_tall_shared_bytes(const PackedMatrix& w, uint32_t stages, uint32_t rows) {
  uint32_t bytes = 0;
  with_product(w, rows, [&]<class P>() -> int {
    bytes = layout_of<P>(stages).total;
    return 0;
  });
  return bytes;
}

int prepare_project_tall(uint32_t bytes) {
  PackedMatrix w{};
  w.row_blocks = kTallBlocks;
  for (w.planes = 1; w.planes <= 2; ++w.planes) {
    for (const uint32_t k_tiles : {4, 32}) {
      for (const uint32_t rows : {kGroupRows, 2 * kGroupRows, kSmallRows}) {
        w.k_tiles = k_tiles;
        const int e = with_product(
            w, rows, [&]<class P>() -> int { return prepare_kernel(project_tall_kernel<P>, bytes); });
        if (e != cudaSuccess) {
          return e;
        }
      }
    }
  }
  return 0;
}

int launch_project_tall(const ProjectArgs& args, Stream queue) {
  if (args.y == nullptr || args.scaling == Scaling::head || args.ld_y % kTileRows != 0) {
    return cudaErrorInvalidValue;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(args.blocks);
  config.blockDim = dim3(kWarps * 32);
  config.dynamicSmemBytes = args.shared;
  config.stream = queue;
  return with_product(args.w, args.rows, [&]<class P>() -> int {
    return launch_dependent(project_tall_kernel<P>, config, args);
  });
}

}  // namespace lily::cuda
