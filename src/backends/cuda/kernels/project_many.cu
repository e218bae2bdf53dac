// Dense projections of more than kFewRows rows: the sums of project.cu, in the same order, for groups of
// eight rows at a time.
//
// As there, a warp holds its inputs in registers while the block goes over its units of 16 outputs. Each word
// of weights is widened once for all groups, whose chains of tensor instructions do not wait for each other.
// What a warp knows of its inputs but the inputs themselves is in shared memory: registers are full.
#include "backends/cuda/kernels/project_many.cuh"

namespace lily::cuda {
namespace {

constexpr uint32_t kWarps = 16;
constexpr uint32_t kPace = 1;  // as in project.cu
template <class F_, uint32_t kInputTiles_, uint32_t kGroups_, bool kHeads_>
struct Product {
  using F = F_;
  static constexpr uint32_t kInputTiles = kInputTiles_;
  static constexpr uint32_t kInputs = kInputTiles * kTileCols;
  static constexpr uint32_t kSplits = kInputTiles < kWarps ? kInputTiles : kWarps;  // warps that share them
  static constexpr uint32_t kTeams = kWarps / kSplits;                              // of such warps
  static constexpr uint32_t kTiles = kInputTiles / kSplits;
  static constexpr uint32_t kGroups = kGroups_;  // of kGroupRows rows
  static constexpr uint32_t kRows = kGroups * kGroupRows;
  static constexpr bool kHeads = kHeads_;
  static constexpr uint32_t kNormed = kHeads && kTiles > 1 ? 2 : 1;  // tiles with one factor
  static constexpr uint32_t kStage = kTiles * F::kTileBytes;
  static constexpr uint32_t kUnitFloats = kSplits * kGroups * 128;  // partial results of a unit
  static constexpr uint32_t kEpoch = 4 / kGroups * kTeams;          // units between two barriers
  static constexpr uint32_t kItems = kEpoch * kGroups * 2;          // of a warp, to finish them
  static_assert(!F::kWide && kTiles * kGroups <= 8);                // inputs fit into registers
};

// What shared memory holds behind the rings.
struct Layout {
  uint32_t barriers, scales, starts, factors, part, total;
};
template <class P>
Layout layout_of(uint32_t row_blocks, uint32_t stages, uint32_t blocks) {
  const uint32_t units = (row_blocks + blocks - 1) / blocks;  // most of a block
  Layout l;
  l.barriers = align128(stages * kWarps * P::kStage);
  l.scales = l.barriers + ring_barrier_bytes(kWarps);
  l.starts = l.scales + align128(P::kRows * 4);
  l.factors = l.starts + kWarps * P::kTiles * P::kGroups * 64;
  l.part = l.factors + (P::kHeads ? P::kInputTiles / P::kNormed * P::kRows * 4 : 0);
  l.total = l.part + (units > P::kEpoch ? 2 : 1) * P::kEpoch * P::kUnitFloats * 4;
  return l;
}
struct Launch {
  ProjectArgs args;
  Layout at;
};

// Where the sums of a tile times a group begin: -128 times the sums of the inputs (tiles.cuh), for all four
// that a lane has.
template <class P>
__device__ __forceinline__ float4* start_of(float4* starts, uint32_t tile, uint32_t group) {
  return starts + (tile * P::kGroups + group) * 4 + (threadIdx.x & 3);
}
template <class P>
__device__ __forceinline__ void put_start(float4* starts, uint32_t tile, uint32_t group, const Column& x) {
  const float2 sum = sums_of<typename P::F>(x).part[0];
  if ((threadIdx.x & 31) < 4) {
    const float first = -128.0f * sum.x;
    const float second = -128.0f * sum.y;
    *start_of<P>(starts, tile, group) = make_float4(first, second, first, second);
  }
}

// f += w x of one tile for all groups.
template <class P>
__device__ __forceinline__ void add_tile_to_groups(float (&f)[P::kGroups][4], const uint8_t* tile,
                                                   float4* starts, const Column (&x)[P::kGroups][P::kTiles],
                                                   uint32_t index) {
  using F = typename P::F;
  const TileWords<F> w = load_tile<F>(tile, threadIdx.x & 31);
  float c[P::kGroups][4];
  const float upper = w.upper[0].y * -0.0078125f;  // exact, as the factor in the starts is
  const float lower = w.lower[0].y * -0.0078125f;
#pragma unroll
  for (uint32_t group = 0; group < P::kGroups; ++group) {
    const float4 start = *start_of<P>(starts, index, group);
    c[group][0] = start.x;
    c[group][1] = start.y;
    c[group][2] = start.z;
    c[group][3] = start.w;
    f[group][0] = fmaf(upper, start.x, f[group][0]);
    f[group][1] = fmaf(upper, start.y, f[group][1]);
    f[group][2] = fmaf(lower, start.z, f[group][2]);
    f[group][3] = fmaf(lower, start.w, f[group][3]);
  }
  const auto multiply = [&](const uint4& plane) {
    const uint32_t words[4] = {plane.x, plane.y, plane.z, plane.w};
#pragma unroll
    for (uint32_t step = 0; step < 4; ++step) {
      const uint32_t q = words[step];
      const uint32_t a0 = widen(q);
      const uint32_t a1 = widen(q >> 4);
      const uint32_t a2 = widen(q >> 8);
      const uint32_t a3 = widen(q >> 12);
#pragma unroll
      for (uint32_t group = 0; group < P::kGroups; ++group) {
        const Column& column = x[group][index];
        mma(c[group], a0, a1, a2, a3, column.b[2 * step], column.b[2 * step + 1]);
      }
    }
  };
  multiply(w.planes[0]);
  if constexpr (F::kPlanes == 2) {
    float low[P::kGroups][4];
#pragma unroll
    for (uint32_t group = 0; group < P::kGroups; ++group) {
      const float4 start = *start_of<P>(starts, index, group);
      const float at[4] = {start.x, start.y, start.z, start.w};
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        low[group][i] = c[group][i];
        c[group][i] = at[i];
      }
    }
    multiply(w.planes[1]);
#pragma unroll
    for (uint32_t group = 0; group < P::kGroups; ++group) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        c[group][i] = fmaf(16.0f, c[group][i], low[group][i]);
      }
    }
  }
#pragma unroll
  for (uint32_t group = 0; group < P::kGroups; ++group) {
    f[group][0] = fmaf(w.upper[0].x, c[group][0], f[group][0]);
    f[group][1] = fmaf(w.upper[0].x, c[group][1], f[group][1]);
    f[group][2] = fmaf(w.lower[0].x, c[group][2], f[group][2]);
    f[group][3] = fmaf(w.lower[0].x, c[group][3], f[group][3]);
  }
}

// The rows of a block.
struct Rows {
  uint32_t first, count;
  __device__ __forceinline__ uint32_t at(uint32_t i) const { return first + min(i, count - 1); }
};

// A warp's inputs.
template <class P>
struct Inputs {
  Column x[P::kGroups][P::kTiles];
  float4* starts;
  const float* factors;  // [head or tile of the warp][row], or none

  __device__ __forceinline__ void load(const ProjectArgs& a, const Rows& rows, uint32_t split) {
    const uint32_t lane = threadIdx.x & 31;
#pragma unroll
    for (uint32_t group = 0; group < P::kGroups; ++group) {
      const uint16_t* const row = a.feed.x + size_t{rows.at(group * kGroupRows + (lane >> 2))} * P::kInputs;
#pragma unroll
      for (uint32_t i = 0; i < P::kTiles; ++i) {
        x[group][i] = fetch_column(row, split * P::kTiles + i, lane);
      }
    }
  }
  __device__ __forceinline__ void add_up() const {
#pragma unroll
    for (uint32_t group = 0; group < P::kGroups; ++group) {
#pragma unroll
      for (uint32_t i = 0; i < P::kTiles; ++i) {
        put_start<P>(starts, i, group, x[group][i]);
      }
    }
  }
  // The warp's tiles of one unit.
  __device__ __forceinline__ void multiply(float (&f)[P::kGroups][4], const uint8_t* stage) const {
#pragma unroll
    for (uint32_t i = 0; i < P::kTiles; i += P::kNormed) {
      float h[P::kGroups][4] = {};
#pragma unroll
      for (uint32_t j = 0; j < P::kNormed; ++j) {
        add_tile_to_groups<P>(P::kHeads ? h : f, stage + (i + j) * P::F::kTileBytes, starts, x, i + j);
      }
      if constexpr (P::kHeads) {
#pragma unroll
        for (uint32_t group = 0; group < P::kGroups; ++group) {
          const float2 factor = *reinterpret_cast<const float2*>(factors + i / P::kNormed * P::kRows +
                                                                 group * kGroupRows + (threadIdx.x & 3) * 2);
          f[group][0] = fmaf(factor.x, h[group][0], f[group][0]);
          f[group][1] = fmaf(factor.y, h[group][1], f[group][1]);
          f[group][2] = fmaf(factor.x, h[group][2], f[group][2]);
          f[group][3] = fmaf(factor.y, h[group][3], f[group][3]);
        }
      }
    }
  }
};

// 1 / rms of the heads of all rows: a thread for each. A head has kDeltaDim inputs, two tiles.
template <class P>
__device__ __forceinline__ void scale_heads(float* factors, const ProjectArgs& a, const Rows& rows) {
  static_assert(kDeltaDim == 2 * kTileCols && kDeltaDim / kFeedBlock == 8);
  constexpr uint32_t kHeadCount = P::kInputTiles / 2;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < kHeadCount * P::kRows; i += kWarps * 32) {
    const uint32_t row = i % P::kRows;
    const uint32_t head = i / P::kRows;
    const float4* const from = reinterpret_cast<const float4*>(
        a.feed.squares + size_t{rows.at(row)} * (P::kInputs / kFeedBlock) + head * 8);
    const float4 low = load_l2(from);
    const float4 high = load_l2(from + 1);
    const float sum = ((low.x + low.y) + (low.z + low.w)) + ((high.x + high.y) + (high.z + high.w));
    const float scale = rsqrtf(sum / static_cast<float>(kDeltaDim) + kEps);
    if constexpr (P::kNormed == 2) {
      factors[i] = scale;
    } else {  // a factor for each tile
      factors[head * 2 * P::kRows + row] = scale;
      factors[(head * 2 + 1) * P::kRows + row] = scale;
    }
  }
}

// 1 / rms of all rows, a warp for each kWarps-th.
template <class P>
__device__ __forceinline__ void scale_rows(float* scales, const ProjectArgs& a, const Rows& rows) {
  const uint32_t lane = threadIdx.x & 31;
  constexpr uint32_t kEach = (P::kRows + kWarps - 1) / kWarps;
  RowSquares<P::kInputs> squares[kEach];
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) {
    squares[i].load(a.feed.squares, rows.at(threadIdx.x / 32 + i * kWarps), lane);
  }
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) {
    const float scale = squares[i].scale();
    const uint32_t row = threadIdx.x / 32 + i * kWarps;
    if (lane == 0 && row < P::kRows) {
      scales[row] = scale;
    }
  }
}

// What of this the product needs.
template <class P>
__device__ __forceinline__ void scale_inputs(float* scales, float* factors, const ProjectArgs& a,
                                             const Rows& rows) {
  if constexpr (P::kHeads) {
    scale_heads<P>(factors, a, rows);
  } else if (a.scaling == Scaling::row) {
    scale_rows<P>(scales, a, rows);
  }
}
// Behind it, the factors of heads are there, and what a warp has put about its inputs.
template <class P>
__device__ __forceinline__ void sync_inputs() {
  if constexpr (P::kHeads) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

// What a warp finishes: of a unit of the epoch a group's rows 2t or 2t + 1, a lane two outputs of one.
template <class P>
struct Item {
  uint32_t unit, group, odd;
  __device__ __forceinline__ explicit Item(uint32_t index)
      : unit(index / (2 * P::kGroups)), group(index / 2 % P::kGroups), odd(index % 2) {}
  __device__ __forceinline__ uint32_t row() const { return group * kGroupRows + (threadIdx.x & 3) * 2 + odd; }
};
struct Pair {
  Element upper, lower;
};
__device__ __forceinline__ Element load_sum(const StreamArgs& to, uint32_t row, uint32_t output) {
  return {load_l2(to.stream + size_t{row} * to.hidden + output), to.next_norm[output]};
}
__device__ __forceinline__ Pair load_pair(const StreamArgs& to, uint32_t row, uint32_t output) {
  return {load_sum(to, row, output), load_sum(to, row, output + 8)};
}

// Adds outputs lane / 4 and lane / 4 + 8 of a unit to the stream, as add_to_stream() does with a lane for
// each.
__device__ __forceinline__ void add_pair(const StreamArgs& to, uint32_t row, uint32_t output, float2 value,
                                         bool active, const Pair& pair) {
  float upper = 0;
  float lower = 0;
  if (active) {
    upper = pair.upper.value + value.x;
    lower = pair.lower.value + value.y;
    float* const stream = to.stream + size_t{row} * to.hidden + output;
    stream[0] = upper;
    stream[8] = lower;
    uint16_t* const x = to.feed.x + size_t{row} * to.hidden;
    x[fragment_position(output)] = to_bf16(upper * pair.upper.norm);
    x[fragment_position(output + 8)] = to_bf16(lower * pair.lower.norm);
  }
  float square = __fadd_rn(__fmul_rn(upper, upper), __fmul_rn(lower, lower));
#pragma unroll
  for (uint32_t offset = 16; offset >= 4; offset /= 2) {
    square += __shfl_xor_sync(kAll, square, offset);
  }
  if (active && output % kFeedBlock == 0) {
    to.feed.squares[size_t{row} * (to.hidden / kFeedBlock) + output / kFeedBlock] = square;
  }
}

// What an item is made of, and what was loaded early for it, if anything.
struct Results {
  const float* part;
  const float* scales;
  const Pair* early;
};
template <class P>
__device__ __forceinline__ void finish_item(const ProjectArgs& a, const Rows& rows, const Item<P>& item,
                                            uint32_t unit, const Results& from) {
  const uint32_t lane = threadIdx.x & 31;
  const float2* const of = reinterpret_cast<const float2*>(from.part + item.unit * P::kUnitFloats) +
                           (item.group * 2 + item.odd) * 32 + lane;
  float2 value = make_float2(0, 0);
#pragma unroll
  for (uint32_t s = 0; s < P::kSplits; ++s) {
    const float2 p = of[s * P::kGroups * 64];
    value.x += p.x;
    value.y += p.y;
  }
  const uint32_t row = item.row();
  const bool active = row < rows.count;
  if (a.scaling == Scaling::row) {
    value.x *= from.scales[row];
    value.y *= from.scales[row];
  }
  const uint32_t output = unit * kTileRows + (lane >> 2);
  if (a.y == nullptr) {
    const Pair pair = from.early != nullptr ? *from.early : load_pair(a.to, rows.at(row), output);
    add_pair(a.to, rows.first + row, output, value, active, pair);
  } else if (active) {
    float* const to = a.y + size_t{rows.first + row} * a.ld_y + output;
    if (output < a.ld_y) {
      to[0] = value.x;
    }
    if (output + 8 < a.ld_y) {
      to[8] = value.y;
    }
  }
}

template <class P>
__global__ void __launch_bounds__(kWarps * 32, P::kGroups == 1 ? 2 : 1) project_many_kernel(Launch launch) {
  extern __shared__ __align__(128) uint8_t shared[];
  const ProjectArgs& a = launch.args;
  const Layout& at = launch.at;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = __shfl_sync(kAll, threadIdx.x / 32, 0);  // known to be the same for all lanes
  const uint32_t split = warp % P::kSplits;
  const uint32_t team = warp / P::kSplits;
  const Rows rows{blockIdx.y * P::kRows, min(a.rows - blockIdx.y * P::kRows, P::kRows)};
  start_successors();  // what they fetch early is not written by the kernels around this one
  Ring<P::kStage> ring{shared + warp * a.stages * P::kStage,
                       reinterpret_cast<uint64_t*>(shared + at.barriers) + warp * kMostStages, a.stages};
  ring.prepare(lane);
  constexpr uint32_t kUnitBytes = P::kInputTiles * P::F::kTileBytes;
  const size_t step = size_t{P::kTeams * gridDim.x} * kUnitBytes;  // to the team's next unit
  uint32_t fetched = blockIdx.x + team * gridDim.x;                // unit of the matrix
  const uint8_t* next = a.w.tiles + size_t{fetched} * kUnitBytes + split * P::kStage;
  const auto fetch = [&] {
    if (fetched < a.w.row_blocks) {
      ring.fetch(next, lane);
      fetched += P::kTeams * gridDim.x;
      next += step;
    }
  };
  // One stage at a time: what waits for the kernels before this one must not wait for weights as well.
#pragma unroll 1
  for (uint32_t i = 0; i < a.stages && fetched < a.w.row_blocks; ++i) {
    ring.pace(kPace);
    fetch();
  }
  float* const scales = reinterpret_cast<float*>(shared + at.scales);
  float* const factors = reinterpret_cast<float*>(shared + at.factors);
  float* const part = reinterpret_cast<float*>(shared + at.part);
  Inputs<P> in;
  in.starts = reinterpret_cast<float4*>(shared + at.starts) + warp * P::kTiles * P::kGroups * 4;
  in.factors = factors + split * (P::kTiles / P::kNormed) * P::kRows;
  wait_for_predecessors();
  in.load(a, rows, split);
  Pair early{};
  if (a.y == nullptr && warp < P::kItems) {
    const Item<P> item(warp);
    const uint32_t unit = blockIdx.x + item.unit * gridDim.x;
    early = load_pair(a.to, rows.at(item.row()), min(unit * kTileRows + (lane >> 2), a.to.hidden - 9));
  }
  scale_inputs<P>(scales, factors, a, rows);
  in.add_up();
  sync_inputs<P>();
  uint32_t turn = 0;    // warp that has the epoch's first item
  uint32_t buffer = 0;  // of two, where a block has more than one epoch
#pragma unroll 1
  for (uint32_t unit0 = blockIdx.x; unit0 < a.w.row_blocks; unit0 += P::kEpoch * gridDim.x) {
#pragma unroll 1
    for (uint32_t i = team; i < P::kEpoch && unit0 + i * gridDim.x < a.w.row_blocks; i += P::kTeams) {
      float f[P::kGroups][4] = {};
      in.multiply(f, ring.wait());
      ring.release();
      fetch();
      float2* const to =
          reinterpret_cast<float2*>(part + buffer + i * P::kUnitFloats) + split * P::kGroups * 64 + lane;
#pragma unroll
      for (uint32_t group = 0; group < P::kGroups; ++group) {
        to[group * 64] = make_float2(f[group][0], f[group][2]);
        to[group * 64 + 32] = make_float2(f[group][1], f[group][3]);
      }
    }
    __syncthreads();  // two buffers: this one is not written again before all have passed the next barrier
#pragma unroll 1
    for (uint32_t i = (warp - turn) % kWarps; i < P::kItems; i += kWarps) {
      const Item<P> item(i);
      const uint32_t unit = unit0 + item.unit * gridDim.x;
      if (unit < a.w.row_blocks) {
        finish_item<P>(a, rows, item, unit,
                       {part + buffer, scales, unit0 == blockIdx.x && i == warp ? &early : nullptr});
      }
    }
    turn = (turn + P::kItems) % kWarps;
    buffer = P::kEpoch * P::kUnitFloats - buffer;
  }
}

// Calls f.template operator()<Product>() for this product, or returns an error where there is none.
template <class Call>
int with_product(const PackedMatrix& w, bool heads, uint32_t rows, Call&& call) {
  const uint32_t groups = project_rows_of_block(w, rows) / kGroupRows;
  const auto with = [&]<class F>() -> int {
    const auto of = [&]<uint32_t kInputTiles, bool kHeads>() -> int {
      if (groups == 1) {
        return call.template operator()<Product<F, kInputTiles, 1, kHeads>>();
      }
      if constexpr (kInputTiles <= 32) {
        if (groups == 4) {
          return call.template operator()<Product<F, kInputTiles, 4, kHeads>>();
        }
      }
      return call.template operator()<Product<F, kInputTiles, 2, kHeads>>();
    };
    return with_inputs(w.k_tiles, heads, of);
  };
  return w.planes == 1 ? with.template operator()<Format<1, false>>()
                       : with.template operator()<Format<2, false>>();
}

}  // namespace

uint32_t project_many_shared_bytes(const PackedMatrix& w, uint32_t stages, uint32_t rows, uint32_t blocks) {
  uint32_t bytes = 0;
  // Norms of heads take the most.
  for (const bool heads : {false, true}) {
    with_product(w, heads, rows, [&]<class P>() -> int {
      const uint32_t total = layout_of<P>(w.row_blocks, stages, blocks).total;
      bytes = bytes < total ? total : bytes;
      return 0;
    });
  }
  return bytes;
}

int prepare_project_many(uint32_t bytes) {
  PackedMatrix w{};
  for (w.planes = 1; w.planes <= 2; ++w.planes) {
    for (const InputForm form : kInputForms) {
      for (w.row_blocks = kFewBlocks; w.row_blocks <= kFewBlocks + 1; ++w.row_blocks) {
        for (const uint32_t rows : {kGroupRows, 2 * kGroupRows, kSmallRows}) {
          w.k_tiles = form.k_tiles;
          const int e = with_product(w, form.heads, rows, [&]<class P>() -> int {
            return prepare_kernel(project_many_kernel<P>, bytes);
          });
          if (e != cudaSuccess) {
            return e;
          }
        }
      }
    }
  }
  return 0;
}

int launch_project_many(const ProjectArgs& args, Stream queue) {
  if (args.y == nullptr && args.to.from != args.to.stream) {
    return cudaErrorInvalidValue;
  }
  return with_product(args.w, args.scaling == Scaling::head, args.rows, [&]<class P>() -> int {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(args.blocks, (args.rows + P::kRows - 1) / P::kRows);
    config.blockDim = dim3(kWarps * 32);
    config.dynamicSmemBytes = args.shared;
    config.stream = queue;
    return launch_dependent(project_many_kernel<P>, config,
                            Launch{args, layout_of<P>(args.w.row_blocks, args.stages, args.blocks)});
  });
}

}  // namespace lily::cuda
