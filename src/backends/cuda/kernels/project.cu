// Dense projections of few rows: y = w x, with the norm of the input as a factor, or added to the stream.
//
// A block has 16 warps. They share the inputs: warp s of a split reads tiles [s * kTiles, (s + 1) * kTiles)
// of each of the block's units of 16 outputs, and the partial sums are added in the order of the warps. Where
// the inputs are too few for 16 warps, groups of warps take turns over the units. The weights of the first
// units are fetched before the kernel waits for the one before it.
#include "backends/cuda/kernels/tiles.cuh"

namespace lily::cuda {
namespace {

constexpr uint32_t kWarps = 16;
constexpr uint32_t kPartBytes = 32 * 1024;  // most partial results at a time
constexpr uint32_t kMostUnits = 8;          // of an epoch

struct Split {
  uint32_t splits;  // warps that share the inputs
  uint32_t groups;  // of such warps
  uint32_t units;   // of 16 outputs between two reductions
};
__host__ __device__ inline Split split_of(uint32_t k_tiles, uint32_t rows) {
  const uint32_t splits = k_tiles < kWarps ? k_tiles : kWarps;
  uint32_t units = kPartBytes / (splits * rows * kTileRows * 4);
  units = units > kMostUnits ? kMostUnits : units;
  const uint32_t groups = kWarps / splits;
  return {splits, groups, units < groups ? groups : units / groups * groups};
}

__host__ __device__ inline uint32_t align128(uint32_t bytes) { return (bytes + 127) / 128 * 128; }

struct Layout {
  uint32_t columns, sums, scales, part, total;  // offsets behind the ring
};
__host__ __device__ inline Layout layout_of(uint32_t ring, uint32_t k_tiles, uint32_t rows) {
  Layout l;
  const uint32_t inputs = k_tiles * kTileCols;
  const Split split = split_of(k_tiles, rows);
  l.columns = ring;
  l.sums = align128(l.columns + rows * column_stride(inputs));
  l.scales = l.sums + inputs / 32 * kGroupRows * 4;
  // Factors of a row, or of each head of a row.
  l.part = align128(l.scales + (inputs / kDeltaDim + 1) * kGroupRows * 4);
  l.total = l.part + split.units * split.splits * rows * kTileRows * 4;
  return l;
}

// Factors of a row's heads: [head][kGroupRows].
__device__ void load_head_scales(const Team& team, float* to, const float* squares, uint32_t inputs,
                                 uint32_t rows) {
  constexpr uint32_t kBlocks = kDeltaDim / kFeedBlock;
  const uint32_t heads = inputs / kDeltaDim;
  if (team.thread >= team.threads) {
    return;
  }
  for (uint32_t i = team.thread; i < heads * kGroupRows; i += team.threads) {
    const uint32_t row = i / heads;
    const uint32_t head = i % heads;
    float scale = 0;
    if (row < rows) {
      const float4* from =
          reinterpret_cast<const float4*>(squares + size_t{row} * (inputs / kFeedBlock) + head * kBlocks);
      const float4 a = load_l2(from);
      const float4 b = load_l2(from + 1);
      const float sum = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
      scale = rsqrtf(sum / static_cast<float>(kDeltaDim) + kEps);
    }
    to[head * kGroupRows + row] = scale;
  }
}

// The group of rows that a block works on.
struct Group {
  uint32_t first_row, rows;
  Split split;
};
// Units [first, first + count) of a block, whose partial results are complete.
struct Epoch {
  const float* part;
  uint32_t first, count;
};

// Sixteen threads for each unit and row, so that half a warp has 16 outputs of one row.
struct Place {
  uint32_t unit, row, output;
};
__device__ __forceinline__ Place place_of(uint32_t i, uint32_t rows) {
  return {i / kTileRows / rows, i / kTileRows % rows, i % kTileRows};
}

__device__ __forceinline__ void finish_units(const ProjectArgs& a, const Group& group, const Epoch& epoch,
                                             const float* scales, const Element& early) {
  const Split& split = group.split;
  const uint32_t work = epoch.count * group.rows * kTileRows;
  for (uint32_t i = threadIdx.x; i < (work + 31) / 32 * 32; i += blockDim.x) {
    const bool active = i < work;
    const Place at = place_of(i, group.rows);
    const uint32_t row = group.first_row + at.row;
    const uint32_t r = (blockIdx.x + (epoch.first + at.unit) * gridDim.x) * kTileRows + at.output;
    float value = 0;
    Element element = early;
    if (active) {
      if (a.y == nullptr && (epoch.first != 0 || i != threadIdx.x)) {
        element = load_element(a.to, row, r);
      }
      const float* const part = epoch.part + size_t{at.unit} * split.splits * group.rows * kTileRows;
      value = sum_partials(part, split.splits, group.rows, at.row, at.output);
      if (a.scaling == Scaling::row) {
        value *= scales[at.row];
      }
    }
    if (a.y == nullptr) {
      add_to_stream(a.to, row, r, value, active, element);
    } else if (active && r < a.ld_y) {
      a.y[size_t{row} * a.ld_y + r] = value;
    }
  }
}

// The feed of a block's rows to shared memory.
template <bool kHeads>
__device__ __forceinline__ void load_feed(const ProjectArgs& a, const Group& group, uint8_t* shared,
                                          const Layout& at) {
  const uint32_t inputs = a.w.k_tiles * kTileCols;
  const size_t parts = size_t{group.first_row} * (inputs / kFeedBlock);
  float* const scales = reinterpret_cast<float*>(shared + at.scales);
  load_columns(team_of(0, 9), shared + at.columns, a.feed.x + size_t{group.first_row} * inputs, inputs,
               group.rows);
  load_sums(team_of(9, 4), reinterpret_cast<float*>(shared + at.sums), a.feed.sums + parts, inputs,
            group.rows);
  if (kHeads) {
    load_head_scales(team_of(13, 3), scales, a.feed.squares + parts, inputs, group.rows);
  } else if (a.scaling == Scaling::row) {
    load_row_scales(team_of(13, 3), scales, a.feed.squares + parts, inputs, group.rows);
  }
}

template <class F, int kTiles, bool kHeads>
__global__ void __launch_bounds__(kWarps * 32) project_kernel(ProjectArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr uint32_t kStage = kTiles * F::kTileBytes;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t first_row = blockIdx.y * kGroupRows;
  const uint32_t rows = min(a.rows - first_row, static_cast<uint32_t>(kGroupRows));
  const uint32_t inputs = a.w.k_tiles * kTileCols;
  const Split split = split_of(a.w.k_tiles, rows);
  const Layout at = layout_of(kWarps * a.stages * kStage, a.w.k_tiles, rows);
  const uint32_t s = warp % split.splits;
  const uint32_t group = warp / split.splits;
  const uint32_t units =
      blockIdx.x < a.w.row_blocks ? (a.w.row_blocks - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;

  start_successors();  // what they fetch early is not written by the kernels around this one
  Ring<kStage> ring{shared + warp * a.stages * kStage, a.stages, lane};
  const uint8_t* const first = a.w.tiles + (size_t{blockIdx.x} * a.w.k_tiles + s * kTiles) * F::kTileBytes;
  const size_t step = size_t{gridDim.x} * a.w.k_tiles * F::kTileBytes;  // to the block's next unit
  uint32_t fetched = group;
  for (uint32_t i = 0; i < a.stages; ++i, fetched += split.groups) {
    ring.fetch(fetched < units ? first + fetched * step : nullptr);
  }

  float* const sums = reinterpret_cast<float*>(shared + at.sums);
  float* const scales = reinterpret_cast<float*>(shared + at.scales);
  float* const part = reinterpret_cast<float*>(shared + at.part);
  clear_sums(sums, inputs);
  __syncthreads();
  wait_for_predecessors();
  const Group of{first_row, rows, split};
  load_feed<kHeads>(a, of, shared, at);
  Element early = {0, 0};
  if (a.y == nullptr && threadIdx.x < min(split.units, units) * rows * kTileRows) {
    const Place place = place_of(threadIdx.x, rows);
    early = load_element(a.to, first_row + place.row,
                         (blockIdx.x + place.unit * gridDim.x) * kTileRows + place.output);
  }
  __syncthreads();

  const uint8_t* const column = shared + at.columns + (lane >> 2) * column_stride(inputs);
  const bool present = (lane >> 2) < rows;
  for (uint32_t unit0 = 0; unit0 < units; unit0 += split.units) {
    const uint32_t count = min(split.units, units - unit0);
    for (uint32_t u = group; u < count; u += split.groups) {
      const uint8_t* stage = ring.wait();
      float f[4] = {};
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const uint32_t tile = s * kTiles + i;
        float2 factor = make_float2(1, 1);
        if (kHeads) {
          factor = reinterpret_cast<const float2*>(scales + (tile / 2) * kGroupRows)[lane & 3];
        }
        add_tile<F, kHeads>(f, stage + i * F::kTileBytes, load_column(column, tile, lane, present),
                            load_half_sums(sums, tile, lane), factor, lane);
      }
      ring.release();
      ring.fetch(fetched < units ? first + fetched * step : nullptr);
      fetched += split.groups;
      store_partial(part + size_t{u} * split.splits * rows * kTileRows, s, rows, f, lane);
    }
    __syncthreads();
    finish_units(a, of, {part, unit0, count}, scales, early);
    if (unit0 + split.units < units) {
      __syncthreads();
    }
  }
  wait_copies<0>();
}

template <class F, int kTiles, bool kHeads>
int launch(const ProjectArgs& args, Stream queue) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(args.blocks, (args.rows + kGroupRows - 1) / kGroupRows);
  config.blockDim = dim3(kWarps * 32);
  config.dynamicSmemBytes = args.shared;
  config.stream = queue;
  return launch_dependent(project_kernel<F, kTiles, kHeads>, config, args);
}

template <class F>
int allow(uint32_t bytes) {
  for (const void* kernel : {reinterpret_cast<const void*>(project_kernel<F, 1, false>),
                             reinterpret_cast<const void*>(project_kernel<F, 2, false>),
                             reinterpret_cast<const void*>(project_kernel<F, 4, false>),
                             reinterpret_cast<const void*>(project_kernel<F, 1, true>),
                             reinterpret_cast<const void*>(project_kernel<F, 4, true>)}) {
    if (const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(bytes));
        e != cudaSuccess) {
      return e;
    }
  }
  return 0;
}

uint32_t tiles_per_warp(uint32_t k_tiles) { return k_tiles <= kWarps ? 1 : k_tiles / kWarps; }

}  // namespace

uint32_t project_shared_bytes(const PackedMatrix& w, uint32_t stages, uint32_t rows) {
  const uint32_t ring = kWarps * stages * tiles_per_warp(w.k_tiles) * w.tile_bytes;
  return layout_of(ring, w.k_tiles, rows < kGroupRows ? rows : kGroupRows).total;
}

int allow_shared_memory_project(uint32_t bytes) {
  int e = allow<Format<1, false>>(bytes);
  e = e != 0 ? e : allow<Format<1, true>>(bytes);
  e = e != 0 ? e : allow<Format<2, false>>(bytes);
  return e != 0 ? e : allow<Format<2, true>>(bytes);
}

int launch_project(const ProjectArgs& args, Stream queue) {
  const uint32_t k = args.w.k_tiles;
  const bool heads = args.scaling == Scaling::head;
  return with_format(args.w, [&]<class F>() -> int {
    if (k == 4 || k == 16) {
      return heads ? launch<F, 1, true>(args, queue) : launch<F, 1, false>(args, queue);
    }
    if (k == 32 && !heads) {
      return launch<F, 2, false>(args, queue);
    }
    if (k == 64) {
      return heads ? launch<F, 4, true>(args, queue) : launch<F, 4, false>(args, queue);
    }
    return cudaErrorInvalidValue;
  });
}

}  // namespace lily::cuda
