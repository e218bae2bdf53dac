// Dense projections of few rows (project_many.cu has more than kFewRows): y = w x, with the norm of the
// input as a factor, or added to the stream.
//
// A block has 16 warps. They share the inputs: warp s reads the same kTiles tiles of each of the block's
// units of 16 outputs, so that it holds its inputs in registers, and the partial sums are added in the order
// of the warps. Where the inputs are too few for 16 warps, groups of warps take turns over the units. The
// weights of the first units are fetched before the kernel waits for the one before it.
#include "backends/cuda/kernels/project_many.cuh"

namespace lily::cuda {
namespace {

constexpr uint32_t kWarps = 16;
constexpr uint32_t kPace = 1;  // stages of a warp that are on their way before the kernel may wait
constexpr uint32_t kPartBytes = 32 * 1024;  // of the partial results of one epoch, unless one unit has more

// Bytes of a staged row of inputs: no bank conflicts between neighbours.
__host__ __device__ constexpr uint32_t column_stride(uint32_t inputs) { return inputs * 2 + 16; }

template <class F_, uint32_t kInputTiles_, uint32_t kGroups_, bool kHeads_, bool kRelayed_ = false>
struct Product {
  using F = F_;
  static constexpr uint32_t kInputTiles = kInputTiles_;
  static constexpr uint32_t kInputs = kInputTiles * kTileCols;
  static constexpr uint32_t kSplits = kInputTiles < kWarps ? kInputTiles : kWarps;  // warps that share them
  static constexpr uint32_t kTeams = kWarps / kSplits;                              // of such warps
  static constexpr uint32_t kTiles = kInputTiles / kSplits;
  static constexpr uint32_t kGroups = kGroups_;  // of kGroupRows rows
  static constexpr bool kRelayed = kRelayed_;    // see Relay; one group
  static constexpr bool kHeads = kHeads_;        // inputs are normed by heads, else by rows or not at all
  static constexpr uint32_t kNormed = kHeads && kTiles > 1 ? 2 : 1;  // tiles with one factor
  // Where the inputs of a block are held: in shared memory (a few rows of many inputs, which are used once),
  // in registers, or not at all.
  static constexpr bool kStaged = kGroups == 1 && kTiles == 4;
  static constexpr bool kKeep = !kStaged && kGroups * kTiles <= 8;
  static constexpr bool kKeepSums = kKeep && (kGroups > 1 || kTiles <= 2);  // and their sums
  static constexpr uint32_t kStage = kTiles * F::kTileBytes;
};

// What the host works out for a launch: units of 16 outputs between two reductions, and where shared memory
// goes behind the rings.
struct Layout {
  uint32_t units, buffers;
  uint32_t barriers, scales, columns, part, total;
};
Layout layout_of(const PackedMatrix& w, uint32_t stages, uint32_t rows, uint32_t blocks) {
  const uint32_t splits = w.k_tiles < kWarps ? w.k_tiles : kWarps;
  const uint32_t teams = kWarps / splits;
  const uint32_t unit_bytes = splits * rows * kTileRows * 4;
  const uint32_t most = (w.row_blocks + blocks - 1) / blocks;  // units of a block
  Layout l;
  l.units = kPartBytes / unit_bytes / teams * teams;
  l.units = l.units < teams ? teams : l.units;
  l.buffers = l.units < most ? 2 : 1;
  l.units = l.units < most ? l.units : (most + teams - 1) / teams * teams;
  l.barriers = align128(stages * w.k_tiles * teams * w.tile_bytes);
  l.scales = l.barriers + ring_barrier_bytes(kWarps);
  l.columns = l.scales + align128(kSmallRows * 4);
  const bool staged = splits == kWarps && w.k_tiles == 4 * kWarps && rows <= kGroupRows;
  l.part = l.columns + (staged ? align128(rows * column_stride(w.k_tiles * kTileCols)) : 0);
  l.total = l.part + l.buffers * l.units * unit_bytes;
  return l;
}
struct Launch {
  ProjectArgs args;
  Layout at;
  uint32_t pace;
};

// Partial results of one unit: [split][rows][16]. `to` is the lane's place in the first group.
__device__ __forceinline__ void store_partial(float* to, uint32_t rows, uint32_t first, const float (&f)[4]) {
  const uint32_t row = first + (threadIdx.x & 3) * 2;
  to += first * kTileRows;
  if (row < rows) {
    to[0] = f[0];
    to[8] = f[2];
  }
  if (row + 1 < rows) {
    to[kTileRows] = f[1];
    to[kTileRows + 8] = f[3];
  }
}

// Sixteen threads for each unit and row, so that half a warp has 16 outputs of one row; rows are counted up
// to a power of two.
struct Place {
  uint32_t unit, row, output;
};
struct Places {
  uint32_t shift;
  __device__ __forceinline__ Place of(uint32_t i) const {
    return {i / kTileRows >> shift, (i / kTileRows) & ((1u << shift) - 1), i % kTileRows};
  }
  __device__ __forceinline__ uint32_t count(uint32_t units) const { return units * kTileRows << shift; }
};
__device__ __forceinline__ Places places_of(uint32_t rows) { return {32u - __clz(rows - 1)}; }

// Units [first, first + count) of a block, whose partial results are complete.
struct Epoch {
  const float* part;
  uint32_t first, count;
};

template <class P>
__device__ __forceinline__ void finish_units(const ProjectArgs& a, const Epoch& epoch, const float* scales,
                                             const Element& early) {
  const Places places = places_of(a.rows);
  const uint32_t work = places.count(epoch.count);
  for (uint32_t i = threadIdx.x; i < (work + 31) / 32 * 32; i += kWarps * 32) {
    const Place at = places.of(i);
    const bool active = i < work && at.row < a.rows;
    const uint32_t r = (blockIdx.x + (epoch.first + at.unit) * gridDim.x) * kTileRows + at.output;
    float value = 0;
    Element element = early;
    if (active) {
      if (a.y == nullptr && (epoch.first != 0 || i != threadIdx.x)) {
        do {
          element = load_element<P::kRelayed>(a.to, at.row, r);
        } while (P::kRelayed && unwritten(element.value));
      }
      const uint32_t stride = a.rows * kTileRows;
      const float* const part = epoch.part + at.unit * P::kSplits * stride + at.row * kTileRows + at.output;
#pragma unroll
      for (uint32_t s = 0; s < P::kSplits; ++s) {
        value += part[s * stride];
      }
      if (a.scaling == Scaling::row) {
        value *= scales[at.row];
      }
    }
    if (a.y == nullptr) {
      add_to_stream<P::kRelayed>(a.to, at.row, r, value, active, element);
    } else if (active && r < a.ld_y) {
      write<P::kRelayed>(a.y + size_t{at.row} * a.ld_y + r, value);
    }
  }
}

// A warp's inputs: of each group of rows its tiles, their sums, and factors of the heads.
template <class P>
struct Inputs {
  using F = typename P::F;
  Column x[P::kGroups][P::kKeep ? P::kTiles : 1];
  ColumnSums<F> sums[P::kGroups][P::kKeepSums ? P::kTiles : 1];
  float2 factor[P::kGroups][P::kHeads ? P::kTiles / P::kNormed : 1];
};

template <class P>
__device__ __forceinline__ Column input_column(const ProjectArgs& a, uint32_t group, uint32_t tile) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t row = min(group * kGroupRows + (lane >> 2), a.rows - 1);
  return fetch_column<P::kRelayed>(a.feed.x + size_t{row} * P::kInputs, tile, lane);
}
template <class P>
__device__ __forceinline__ Column staged_column(const uint8_t* columns, uint32_t rows, uint32_t tile) {
  const uint32_t lane = threadIdx.x & 31;
  const uint4* const from =
      reinterpret_cast<const uint4*>(columns + min(lane >> 2, rows - 1) * column_stride(P::kInputs) +
                                     tile * (kTileCols * 2) + (lane & 3) * 32);
  return column_of(from[0], from[1]);
}
template <class P>
__device__ __forceinline__ void stage_columns(uint8_t* columns, const ProjectArgs& a) {
  constexpr uint32_t kChunks = P::kInputs / 8;  // of 16 bytes
  for (uint32_t i = threadIdx.x; i < a.rows * kChunks; i += kWarps * 32) {
    copy_async(columns + i / kChunks * column_stride(P::kInputs) + i % kChunks * 16,
               a.feed.x + size_t{i} * 8);
  }
  commit_copies();
}

// 1 / rms of a head of a row. A lane works out one of a group's and gets the others by shuffles; a row that
// is not there stands for its neighbour, so that there is no branch and all loads are on their way together.
struct HeadSquares {
  float4 low, high;
  template <bool kRelayed>
  __device__ __forceinline__ void load(const ProjectArgs& a, uint32_t inputs, uint32_t row, uint32_t head) {
    static_assert(kDeltaDim / kFeedBlock == 8);
    const float4* const from = reinterpret_cast<const float4*>(
        a.feed.squares + size_t{min(row, a.rows - 1)} * (inputs / kFeedBlock) + head * 8);
    low = read<kRelayed>(from);
    high = read<kRelayed>(from + 1);
  }
  __device__ __forceinline__ bool missing() const { return unwritten(low) || unwritten(high); }
  __device__ __forceinline__ float scale() const {
    const float sum = ((low.x + low.y) + (low.z + low.w)) + ((high.x + high.y) + (high.z + high.w));
    return rsqrtf(sum / static_cast<float>(kDeltaDim) + kEps);
  }
};

// Heads of a warp's inputs: a lane has the squares of one of them and one row of a group.
template <class P>
__device__ __forceinline__ void load_squares(HeadSquares& squares, const ProjectArgs& a, uint32_t split,
                                             uint32_t group) {
  constexpr uint32_t kCount = P::kTiles / P::kNormed;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t own = lane / kGroupRows % kCount;
  const uint32_t head = (split * P::kTiles + own * P::kNormed) / (kDeltaDim / kTileCols);
  squares.load<P::kRelayed>(a, P::kInputs, group * kGroupRows + lane % kGroupRows, head);
}
template <class P>
__device__ __forceinline__ void set_factors(Inputs<P>& in, const HeadSquares& squares, uint32_t group) {
  const float scale = squares.scale();
#pragma unroll
  for (uint32_t i = 0; i < P::kTiles / P::kNormed; ++i) {
    const uint32_t from = i * kGroupRows + (threadIdx.x & 3) * 2;
    in.factor[group][i] = make_float2(__shfl_sync(kAll, scale, from), __shfl_sync(kAll, scale, from + 1));
  }
}

template <class P>
__device__ __forceinline__ void load_inputs(Inputs<P>& in, const ProjectArgs& a, uint32_t split) {
  if constexpr (P::kKeep) {
#pragma unroll
    for (uint32_t group = 0; group < P::kGroups; ++group) {
#pragma unroll
      for (uint32_t i = 0; i < P::kTiles; ++i) {
        in.x[group][i] = input_column<P>(a, group, split * P::kTiles + i);
      }
    }
  }
  if constexpr (P::kHeads) {
#pragma unroll
    for (uint32_t group = 0; group < P::kGroups; ++group) {
      HeadSquares squares;
      load_squares<P>(squares, a, split, group);
      set_factors(in, squares, group);
    }
  }
}
template <class P>
__device__ __forceinline__ void sum_inputs(Inputs<P>& in) {
  if constexpr (P::kKeepSums) {
#pragma unroll
    for (uint32_t group = 0; group < P::kGroups; ++group) {
#pragma unroll
      for (uint32_t i = 0; i < P::kTiles; ++i) {
        in.sums[group][i] = sums_of<typename P::F>(in.x[group][i]);
      }
    }
  }
}

// The warp's tiles of one unit, times its inputs.
template <class P>
__device__ __forceinline__ void multiply_unit(float (&f)[P::kGroups][4], const uint8_t* stage,
                                              const Inputs<P>& in, const ProjectArgs& a,
                                              const uint8_t* columns, uint32_t split) {
  using F = typename P::F;
  const uint32_t lane = threadIdx.x & 31;
#pragma unroll
  for (uint32_t i = 0; i < P::kTiles; i += P::kNormed) {
    float h[P::kGroups][4] = {};
#pragma unroll
    for (uint32_t j = 0; j < P::kNormed; ++j) {
      const TileWords<F> w = load_tile<F>(stage + (i + j) * F::kTileBytes, lane);
#pragma unroll
      for (uint32_t group = 0; group < P::kGroups; ++group) {
        float(&to)[4] = P::kHeads ? h[group] : f[group];
        if constexpr (P::kKeepSums) {
          add_tile<F>(to, w, in.x[group][i + j], in.sums[group][i + j]);
        } else if constexpr (P::kKeep) {
          add_tile<F>(to, w, in.x[group][i + j], sums_of<F>(in.x[group][i + j]));
        } else {
          const uint32_t tile = split * P::kTiles + i + j;
          const Column x =
              P::kStaged ? staged_column<P>(columns, a.rows, tile) : input_column<P>(a, group, tile);
          add_tile<F>(to, w, x, sums_of<F>(x));
        }
      }
    }
    if constexpr (P::kHeads) {
#pragma unroll
      for (uint32_t group = 0; group < P::kGroups; ++group) {
        const float2 factor = in.factor[group][i / P::kNormed];
        f[group][0] = fmaf(factor.x, h[group][0], f[group][0]);
        f[group][1] = fmaf(factor.y, h[group][1], f[group][1]);
        f[group][2] = fmaf(factor.x, h[group][2], f[group][2]);
        f[group][3] = fmaf(factor.y, h[group][3], f[group][3]);
      }
    }
  }
}

// The element of the stream that a thread finishes first.
struct FirstElement {
  uint32_t row, output;
  bool none;  // nothing is added to the stream
  __device__ __forceinline__ explicit FirstElement(const ProjectArgs& a) : none(a.y != nullptr) {
    const Place place = places_of(a.rows).of(threadIdx.x);
    row = min(place.row, a.rows - 1);
    output = min((blockIdx.x + place.unit * gridDim.x) * kTileRows + place.output, a.to.hidden - 1);
  }
  __device__ __forceinline__ float norm(const ProjectArgs& a) const {
    return none ? 0 : a.to.next_norm[output];
  }
  template <bool kRelayed>
  __device__ __forceinline__ float value(const ProjectArgs& a) const {
    return none ? 0 : read<kRelayed>(a.to.from + size_t{row} * a.to.hidden + output);
  }
};

// 1 / rms of all rows, a warp for each; `squares` are of the warp's first.
template <class P>
__device__ __forceinline__ void scale_rows(float* scales, RowSquares<P::kInputs>& squares,
                                           const ProjectArgs& a) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
#pragma unroll 1
  for (uint32_t row = warp; row < a.rows; row += kWarps) {
    if (row != warp) {
      squares.load(a.feed.squares, row, lane);
    }
    const float scale = squares.scale();
    if (lane == 0) {
      scales[row] = scale;
    }
  }
}

struct Reading {
  const FirstElement& first;
  uint8_t* columns;  // inputs in shared memory
  uint32_t split;
};
// All that a relayed kernel reads, again and again until it is there: the warp's inputs or, where they are
// held in shared memory, this thread's share of the block's, the sums of squares, the element of the stream.
template <class P>
__device__ __forceinline__ void await_inputs(Inputs<P>& in, RowSquares<P::kInputs>& squares, Element& early,
                                             const Reading& reading, const ProjectArgs& a) {
  const uint32_t split = reading.split;
  constexpr uint32_t kChunks = P::kInputs / 8;  // of 16 bytes
  constexpr uint32_t kShares = P::kStaged ? kRelayedRows * kChunks / (kWarps * 32) : 1;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t all = a.rows * kChunks;
  HeadSquares heads;
  uint4 share[kShares];
  bool missing;
  do {
    missing = false;
    if constexpr (P::kStaged) {
#pragma unroll
      for (uint32_t i = 0; i < kShares; ++i) {
        const uint32_t at = threadIdx.x + i * kWarps * 32;
        share[i] = at < all ? peek(reinterpret_cast<const uint4*>(a.feed.x) + at) : make_uint4(0, 0, 0, 0);
      }
    } else {
#pragma unroll
      for (uint32_t i = 0; i < P::kTiles; ++i) {
        in.x[0][i] = input_column<P>(a, 0, split * P::kTiles + i);
      }
    }
    if constexpr (P::kHeads) {
      load_squares<P>(heads, a, split, 0);
    }
    if (a.scaling == Scaling::row && warp < a.rows) {
      squares.template load<true>(a.feed.squares, warp, threadIdx.x & 31);
      missing = squares.missing();
    }
    early.value = reading.first.value<true>(a);
    missing = missing || unwritten(early.value);
    if constexpr (P::kStaged) {
#pragma unroll
      for (uint32_t i = 0; i < kShares; ++i) {
        missing = missing || unwritten(share[i]);
      }
    } else {
#pragma unroll
      for (uint32_t i = 0; i < P::kTiles; ++i) {
        missing = missing || unwritten(in.x[0][i]);
      }
    }
    if constexpr (P::kHeads) {
      missing = missing || heads.missing();
    }
  } while (any_lane(missing));
  if constexpr (P::kStaged) {
#pragma unroll
    for (uint32_t i = 0; i < kShares; ++i) {
      const uint32_t at = threadIdx.x + i * kWarps * 32;
      if (at < all) {
        *reinterpret_cast<uint4*>(reading.columns + at / kChunks * column_stride(P::kInputs) +
                                  at % kChunks * 16) = share[i];
      }
    }
  }
  if constexpr (P::kHeads) {
    set_factors(in, heads, 0);
  }
}

// What a block reads of the kernels before it. Ends with a barrier if inputs are held in shared memory.
template <class P>
__device__ __forceinline__ void read_inputs(Inputs<P>& in, RowSquares<P::kInputs>& squares, Element& early,
                                            const Reading& reading, const ProjectArgs& a) {
  if constexpr (P::kRelayed) {
    await_inputs<P>(in, squares, early, reading, a);
  } else {
    if constexpr (P::kStaged) {
      stage_columns<P>(reading.columns, a);
    }
    load_inputs<P>(in, a, reading.split);
    squares.load(a.feed.squares, min(threadIdx.x / 32, a.rows - 1), threadIdx.x & 31);
    early.value = reading.first.value<false>(a);
  }
  sum_inputs(in);
  if constexpr (P::kStaged) {
    wait_copies<0>();
    __syncthreads();
  }
}

template <class P>
__global__ void __launch_bounds__(kWarps * 32, P::kGroups == 1 ? 2 : 1) project_kernel(Launch launch) {
  extern __shared__ __align__(128) uint8_t shared[];
  const ProjectArgs& a = launch.args;
  const Layout& at = launch.at;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t split = warp % P::kSplits;
  const uint32_t team = warp / P::kSplits;

  start_successors();  // what they fetch early is not written by the kernels around this one
  Ring<P::kStage> ring{shared + warp * a.stages * P::kStage,
                       reinterpret_cast<uint64_t*>(shared + at.barriers) + warp * kMostStages, a.stages};
  ring.prepare(lane);
  constexpr uint32_t kUnitBytes = P::kInputTiles * P::F::kTileBytes;
  const uint8_t* next = a.w.tiles + split * P::kStage + size_t{blockIdx.x + team * gridDim.x} * kUnitBytes;
  const size_t step = size_t{P::kTeams * gridDim.x} * kUnitBytes;  // to the team's next unit
  uint32_t fetched = blockIdx.x + team * gridDim.x;                // unit of the matrix
  const auto fetch = [&] {
    if (fetched < a.w.row_blocks) {
      ring.fetch(next, lane);
      fetched += P::kTeams * gridDim.x;
      next += step;
    }
  };
  // One stage at a time: what waits for the kernels before this one must not wait for weights as well.
#pragma unroll 1
  for (uint32_t i = 0; i < a.stages; ++i) {
    if (fetched < a.w.row_blocks) {
      ring.pace(launch.pace);
      fetch();
    }
  }
  float* const scales = reinterpret_cast<float*>(shared + at.scales);
  float* const part = reinterpret_cast<float*>(shared + at.part);
  const uint32_t unit_floats = P::kSplits * a.rows * kTileRows;
  float* const own = part + (split * a.rows + (lane & 3) * 2) * kTileRows + (lane >> 2);

  const FirstElement first(a);
  Element early{0, first.norm(a)};
  wait_for_results<P::kRelayed>(a.relay);
  uint8_t* const columns = shared + at.columns;
  Inputs<P> in;
  RowSquares<P::kInputs> squares;
  read_inputs<P>(in, squares, early, {first, columns, split}, a);
  scale_rows<P>(scales, squares, a);
  uint32_t buffer = 0;
  uint32_t unit = blockIdx.x + team * gridDim.x;  // of the matrix, of this team
#pragma unroll 1
  for (uint32_t unit0 = 0; blockIdx.x + unit0 * gridDim.x < a.w.row_blocks; unit0 += at.units) {
    const uint32_t end = min(blockIdx.x + (unit0 + at.units) * gridDim.x, a.w.row_blocks);
    float* to = own + (buffer + team) * unit_floats;
#pragma unroll 1
    for (; unit < end; unit += P::kTeams * gridDim.x) {
      float f[P::kGroups][4] = {};
      multiply_unit<P>(f, ring.wait(), in, a, columns, split);
      ring.release();
      fetch();
#pragma unroll
      for (uint32_t group = 0; group < P::kGroups; ++group) {
        store_partial(to, a.rows, group * kGroupRows, f[group]);
      }
      to += P::kTeams * unit_floats;
    }
    __syncthreads();  // two buffers: this one is not written again before all have passed the next barrier
    if (end >= a.w.row_blocks) {
      announce_results<P::kRelayed>(a.relay);
    }
    const uint32_t count = min(at.units, (a.w.row_blocks - blockIdx.x + gridDim.x - 1) / gridDim.x - unit0);
    finish_units<P>(a, {part + buffer * unit_floats, unit0, count}, scales, early);
    buffer = at.units - buffer;
  }
  end_relay<P::kRelayed>();
}

template <class P>
int launch(const ProjectArgs& args, Stream queue) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(args.blocks);
  config.blockDim = dim3(kWarps * 32);
  config.dynamicSmemBytes = args.shared;
  config.stream = queue;
  return launch_dependent(project_kernel<P>, config,
                          Launch{args, layout_of(args.w, args.stages, args.rows, args.blocks), kPace});
}

// Calls f.template operator()<Product>() for this product, or returns an error where there is none.
template <class Call>
int with_product(const PackedMatrix& w, bool heads, bool relayed, Call&& call) {
  return with_format(w, [&]<class F>() -> int {
    const auto of = [&]<uint32_t kInputTiles, bool kHeads>() -> int {
      if constexpr (!F::kWide) {
        if (relayed) {
          return call.template operator()<Product<F, kInputTiles, 1, kHeads, true>>();
        }
      }
      // Wide tiles are rare: one kernel for any number of rows will do.
      return call.template operator()<Product<F, kInputTiles, F::kWide ? 4 : 1, kHeads>>();
    };
    return with_inputs(w.k_tiles, heads, of);
  });
}

}  // namespace

bool projects_in_turns(const PackedMatrix& w, uint32_t rows) { return projects_tall(w, rows); }

uint32_t project_rows_of_block(const PackedMatrix& w, uint32_t rows) {
  if (!projects_many(w, rows)) {
    return rows;
  }
  if (rows <= kGroupRows) {
    return kGroupRows;
  }
  if (projects_tall(w, rows)) {
    return rows <= 2 * kGroupRows ? 2 * kGroupRows : kSmallRows;
  }
  if (w.row_blocks <= kFewBlocks && w.k_tiles <= 32 && w.k_tiles != 16) {
    return kGroupRows;
  }
  // The inputs of a warp fit into registers.
  return rows <= 2 * kGroupRows || w.k_tiles > 32 ? 2 * kGroupRows : 4 * kGroupRows;
}

uint32_t project_shared_bytes(const PackedMatrix& w, uint32_t stages, uint32_t rows, uint32_t blocks) {
  if (projects_tall(w, rows)) {
    return project_tall_shared_bytes(w, stages, rows);
  }
  return projects_many(w, rows) ? project_many_shared_bytes(w, stages, rows, blocks)
                                : layout_of(w, stages, rows, blocks).total;
}

int prepare_project(uint32_t bytes) {
  PackedMatrix w{};
  for (w.planes = 1; w.planes <= 2; ++w.planes) {
    for (w.wide = 0; w.wide <= 1; ++w.wide) {
      for (const InputForm form : kInputForms) {
        w.k_tiles = form.k_tiles;
        for (const bool relayed : {false, true}) {
          const int e = with_product(w, form.heads, relayed, [&]<class P>() -> int {
            return prepare_kernel(project_kernel<P>, bytes);
          });
          if (e != cudaSuccess) {
            return e;
          }
        }
      }
    }
  }
  const int e = prepare_project_tall(bytes);
  return e != cudaSuccess ? e : prepare_project_many(bytes);
}

int launch_project(const ProjectArgs& args, Stream queue) {
  const bool relayed = args.relay.on != 0;
  if (args.rows == 0 || args.rows > (relayed ? kRelayedRows : kSmallRows) || (relayed && args.w.wide != 0)) {
    return cudaErrorInvalidValue;
  }
  if (projects_tall(args.w, args.rows)) {
    return launch_project_tall(args, queue);
  }
  if (projects_many(args.w, args.rows)) {
    return launch_project_many(args, queue);
  }
  return with_product(args.w, args.scaling == Scaling::head, relayed,
                      [&]<class P>() { return launch<P>(args, queue); });
}

}  // namespace lily::cuda
