// The mixture of experts for few rows:
//   gate_up: h = silu(gate x) * (up x) of the experts that the rows chose, and of the shared one;
//   down:    stream += the sum over a row's experts, in ascending order, of weight * (down h), then the
//            shared one.
// The columns of a product are the rows that chose the expert, so that its weights are read once for eight of
// them. What a row adds up depends neither on its column nor on who else is there. More than kFewRows rows
// have kernels of their own, experts_many.cu.
#include "backends/cuda/kernels/experts_many.cuh"

namespace lily::cuda {
namespace {

using namespace experts;  // NOLINT(google-build-using-namespace)

// ---- gate_up --------------------------------------------------------------------------------------------
// A unit is 16 outputs of one entry: eight of gate and the same eight of up. Its inputs are cut into parts of
// kPartTiles tiles, a warp for each, whose sums are added in order.
constexpr uint32_t kEnterWarps = 16;
constexpr uint32_t kRouteWarps = 8;  // find out where the rows go while the others bring the inputs

struct EnterLayout {
  uint32_t barriers, routing, columns, sums, scales, part, total;
};
__host__ __device__ inline EnterLayout enter_layout(const PackedMatrix& w, uint32_t stages, uint32_t rows,
                                                    uint32_t blocks) {
  const uint32_t inputs = w.k_tiles * kTileCols;
  const uint32_t parts = w.k_tiles / kPartTiles;
  const uint32_t units = ((rows * kTopK + 1) * w.row_blocks + blocks - 1) / blocks;  // most of a block
  EnterLayout l;
  l.barriers = kEnterWarps * stages * kPartTiles * w.tile_bytes;
  l.routing = l.barriers + ring_barrier_bytes(kEnterWarps);
  l.columns = l.routing + kRoutingBytes;
  l.sums = l.columns + align128(rows * (inputs * 2 + 16));
  l.scales = l.sums + align128(rows * (w.k_tiles * (w.wide != 0 ? 2 : 1) * 4 + 16));
  l.part = l.scales + align128(kSmallRows * 4);
  l.total = l.part + units * parts * 512;
  return l;
}

// The parts of units in the order in which a warp works on them: warps take turns over the parts of the
// block's units.
template <uint32_t kParts>
struct Turn {
  static_assert(kEnterWarps % kParts == 0);
  uint32_t unit, part;
  __device__ __forceinline__ explicit Turn(uint32_t warp)
      : unit(blockIdx.x + warp / kParts * gridDim.x), part(warp % kParts) {}
  __device__ __forceinline__ void next() { unit += kEnterWarps / kParts * gridDim.x; }
};

// silu(gate) * up of the lane's columns, to memory.
template <bool kRelayed>
__device__ __forceinline__ void finish_unit(const ExpertArgs& a, const float* scales, const Unit& unit,
                                            const float (&f)[4]) {
  const uint32_t lane = threadIdx.x & 31;
#pragma unroll
  for (uint32_t c = 0; c < 2; ++c) {
    const uint32_t column = (lane & 3) * 2 + c;
    const uint32_t row = unit.entry->rows[column];
    const bool present = row != kAbsent;
    if (kRelayed ? any_lane(present) : present) {
      const size_t use = present ? row * kUses + unit.entry->slots[column] : 0;
      const float scale = scales[present ? row : 0];
      const float h = silu(scale * f[c]) * (scale * f[c + 2]);
      put_input<kRelayed, 4>(a.h + use * a.dims.ffn, unit.block * 8 + (lane >> 2), h, present);
    }
  }
}

// By the warps that do not route: the inputs of all rows, and the factors of their norms.
template <bool kRelayed, class F, uint32_t kInputTiles>
__device__ __forceinline__ void bring_inputs(const ExpertArgs& a, const Rows<F, kInputTiles>& inputs,
                                             float* scales) {
  constexpr uint32_t kWarps = kEnterWarps - kRouteWarps;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t own = threadIdx.x / 32 - kRouteWarps;
  RowSquares<kInputTiles * kTileCols> squares;
  squares.template load<kRelayed>(a.feed.squares, min(own, a.rows - 1), lane);
  inputs.template load<kRelayed>(a.feed.x, threadIdx.x - kRouteWarps * 32, kWarps * 32);
#pragma unroll 1
  for (uint32_t row = own; row < a.rows; row += kWarps) {
    if (row != own) {
      squares.template load<kRelayed>(a.feed.squares, row, lane);
    }
    while (kRelayed && any_lane(squares.missing())) {
      squares.template load<kRelayed>(a.feed.squares, row, lane);
    }
    const float scale = squares.scale();
    if (lane == 0) {
      scales[row] = scale;
    }
  }
}

// A warp adds the parts of a unit.
template <uint32_t kParts, bool kRelayed>
__device__ __forceinline__ void finish_units(const ExpertArgs& a, const Routing& r, const float* part,
                                             const float* scales, uint32_t all) {
#pragma unroll 1
  for (uint32_t u = threadIdx.x / 32; blockIdx.x + u * gridDim.x < all; u += kEnterWarps) {
    const float4* const of = reinterpret_cast<const float4*>(part) + u * kParts * 32 + (threadIdx.x & 31);
    float total[4];
#pragma unroll
    for (uint32_t i = 0; i < kParts; ++i) {
      const float4 p = of[i * 32];
      total[0] = i == 0 ? p.x : total[0] + p.x;
      total[1] = i == 0 ? p.y : total[1] + p.y;
      total[2] = i == 0 ? p.z : total[2] + p.z;
      total[3] = i == 0 ? p.w : total[3] + p.w;
    }
    finish_unit<kRelayed>(a, scales, unit_of(r, a.w, blockIdx.x + u * gridDim.x), total);
  }
  announce_results<kRelayed>(a.relay);
}

// Where the rows go, and their inputs. Ends with a barrier.
template <bool kRelayed, class F, uint32_t kInputTiles>
__device__ __forceinline__ void route_and_bring(const ExpertArgs& a, Routing& r,
                                                const Rows<F, kInputTiles>& inputs, float* scales) {
  if (threadIdx.x / 32 < kRouteWarps) {
    route_rows<kRelayed>(r, a.router, a.ld_router, a.dims.experts, a.rows, kRouteWarps);
  } else {
    bring_inputs<kRelayed>(a, inputs, scales);
  }
  __syncthreads();
  if (a.rows > 1) {
    list_entries(r, a.rows);
    __syncthreads();
  }
}

template <class F, uint32_t kInputTiles, bool kRelayed>
__global__ void __launch_bounds__(kEnterWarps * 32, 2) gate_up_kernel(ExpertArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr uint32_t kParts = kInputTiles / kPartTiles;
  constexpr uint32_t kStage = kPartTiles * F::kTileBytes;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  const EnterLayout l = enter_layout(a.w, a.stages, a.rows, gridDim.x);
  Routing& r = *reinterpret_cast<Routing*>(shared + l.routing);
  const Rows<F, kInputTiles> inputs{shared + l.columns, reinterpret_cast<float*>(shared + l.sums), a.rows};
  float* const scales = reinterpret_cast<float*>(shared + l.scales);
  float* const part = reinterpret_cast<float*>(shared + l.part);
  Ring<kStage> ring{shared + warp * a.stages * kStage,
                    reinterpret_cast<uint64_t*>(shared + l.barriers) + warp * kMostStages, a.stages};
  ring.prepare(lane);
  prepare_routing(r, a.dims.experts, a.rows);
  __syncthreads();

  Turn<kParts> ahead(warp);
  const auto fetch = [&](uint32_t end) {  // of units
    if (ahead.unit >= end) {
      return false;
    }
    const Unit unit = unit_of(r, a.w, ahead.unit);
    const uint32_t tile = unit.block * kInputTiles + ahead.part * kPartTiles;
    ring.fetch(a.w.tiles + unit.entry->expert * a.w.matrix_bytes + tile * F::kTileBytes, lane);
    ahead.next();
    return true;
  };
  // The weights of the shared expert are needed whatever the routing says.
  uint32_t fetched = 0;
#pragma unroll 1
  while (fetched < a.stages && fetch(r.shared * a.w.row_blocks)) {
    ++fetched;
  }

  wait_for_results<kRelayed>(a.relay);
  route_and_bring<kRelayed>(a, r, inputs, scales);
  const uint32_t all = r.count * a.w.row_blocks;
#pragma unroll 1
  while (fetched < a.stages && fetch(all)) {
    ++fetched;
  }
  // Not before these weights are on their way: down then fetches its own.
  if (blockIdx.x == 0) {
    publish_routing(r, a.routing, a.rows);
  }
  start_successors();

  float4* to = reinterpret_cast<float4*>(part) + threadIdx.x;
#pragma unroll 1
  for (Turn<kParts> at(warp); at.unit < all; at.next()) {
    const Unit unit = unit_of(r, a.w, at.unit);
    float f[4] = {};
    add_part<F>(f, ring.wait(), inputs, *unit.entry, at.part);
    ring.release();
    fetch(all);
    *to = make_float4(f[0], f[1], f[2], f[3]);
    to += kEnterWarps * 32;
  }
  __syncthreads();
  finish_units<kParts, kRelayed>(a, r, part, scales, all);
  end_relay<kRelayed>();
  if (blockIdx.x == gridDim.x - 1) {
    note_experts(a, r);
  }
}

// ---- down -----------------------------------------------------------------------------------------------
// A block has 16 outputs of all experts. A warp takes an entry of a chosen expert at a time; the shared
// expert, which every row has, is cut along its inputs, a tile to a warp. So with one row the eight warps
// have the same work, and no more registers than leave room for gate_up on the same multiprocessor: the
// weights are on their way while it is at work.
constexpr uint32_t kLeaveWarps = kTopK;
constexpr uint32_t kMostLeaveStages = kMostStages - 1;  // the last barrier of a warp is for its shared tile

// Bytes of a row of inputs of an expert, where a relayed kernel has them in shared memory.
__host__ __device__ constexpr uint32_t use_stride(uint32_t k_tiles) { return k_tiles * kTileCols * 2 + 16; }

struct LeaveLayout {
  uint32_t shared_tiles, barriers, routing, y, shared_y, columns, total;
};
__host__ __device__ inline LeaveLayout leave_layout(const PackedMatrix& w, uint32_t stages, uint32_t rows) {
  LeaveLayout l;
  const uint32_t stage = align128(w.k_tiles * w.tile_bytes);
  l.shared_tiles = kLeaveWarps * stages * stage;
  l.barriers = l.shared_tiles + stage;
  l.routing = l.barriers + ring_barrier_bytes(kLeaveWarps);
  l.y = l.routing + kReadRoutingBytes;
  l.shared_y = l.y + rows * kTopK * kTileRows * 4;
  l.columns = align128(l.shared_y + rows * w.k_tiles * kTileRows * 4);
  l.total =
      l.columns + (rows <= kRelayedRows && w.wide == 0 ? kLeaveWarps * rows * use_stride(w.k_tiles) : 0);
  return l;
}

// Where the inputs of the lane's column of an entry lie; anywhere in them if the column is absent.
__device__ __forceinline__ const uint16_t* use_of(const ExpertArgs& a, const Entry& entry) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t row = min(uint32_t{entry.rows[lane >> 2]}, a.rows - 1);
  const uint32_t slot = min(uint32_t{entry.slots[lane >> 2]}, kTopK);
  return a.h + (row * kUses + slot) * size_t{a.dims.ffn};
}

// The inputs of an entry, of all rows, to the warp's part of shared memory, once they are there, and what
// `also` reads, which says whether something was missing.
template <uint32_t kInputTiles, class Also>
__device__ __forceinline__ void await_uses(const ExpertArgs& a, const Entry& entry, uint8_t* columns,
                                           const Also& also) {
  constexpr uint32_t kChunks = kInputTiles * 8;  // of 16 bytes
  constexpr uint32_t kEach = (kChunks + 31) / 32;
  const uint32_t lane = threadIdx.x & 31;
  uint4 v[kRelayedRows][kEach];
  bool missing;
  do {
    missing = also();
#pragma unroll
    for (uint32_t i = 0; i < kRelayedRows * kEach; ++i) {
      const uint32_t column = i / kEach;
      const uint32_t chunk = i % kEach * 32 + lane;
      v[column][i % kEach] = make_uint4(0, 0, 0, 0);
      if (column < a.rows && chunk < kChunks) {
        const uint32_t row = min(uint32_t{entry.rows[column]}, a.rows - 1);
        const uint32_t slot = min(uint32_t{entry.slots[column]}, kTopK);
        v[column][i % kEach] =
            peek(reinterpret_cast<const uint4*>(a.h + (row * kUses + slot) * size_t{a.dims.ffn}) + chunk);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kRelayedRows * kEach; ++i) {
      missing = missing || unwritten(v[i / kEach][i % kEach]);
    }
  } while (any_lane(missing));
#pragma unroll
  for (uint32_t i = 0; i < kRelayedRows * kEach; ++i) {
    const uint32_t chunk = i % kEach * 32 + lane;
    if (i / kEach < a.rows && chunk < kChunks) {
      *reinterpret_cast<uint4*>(columns + i / kEach * use_stride(kInputTiles) + chunk * 16) =
          v[i / kEach][i % kEach];
    }
  }
  __syncwarp();
}

// The inputs of an entry to registers, or to shared memory where the kernel is relayed, and what `also`
// reads.
template <uint32_t kInputTiles, bool kRelayed, class Also>
__device__ __forceinline__ void load_uses(Column (&x)[kRelayed ? 1 : kInputTiles], const ExpertArgs& a,
                                          const Routing& r, uint32_t at, uint8_t* columns, const Also& also) {
  if constexpr (kRelayed) {
    await_uses<kInputTiles>(a, r.entries[at], columns, also);
  } else {
    also();
#pragma unroll
    for (uint32_t i = 0; i < kInputTiles; ++i) {
      x[i] = fetch_column(use_of(a, r.entries[min(at, r.count - 1)]), i, threadIdx.x & 31);
    }
  }
}

// The warp's tile of the shared expert: its weights, and the tile times all rows, where `x` is of the first
// entry.
template <class F>
__device__ __forceinline__ void fetch_shared(const ExpertArgs& a, const uint8_t* own, uint8_t* to,
                                             uint64_t* barriers, uint32_t warp, uint32_t lane) {
  if (lane == 0) {
    init_copy_barrier(barriers + kMostLeaveStages);
  }
  __syncwarp();
  copy_block<F::kTileBytes>(to, own + a.dims.experts * a.w.matrix_bytes + warp * F::kTileBytes,
                            barriers + kMostLeaveStages, lane);
}
template <class F, uint32_t kInputTiles, bool kRelayed>
__device__ __forceinline__ void add_shared(const ExpertArgs& a, const Routing& r, const TileWords<F>& w,
                                           Column x, float* shared_y) {
  const uint32_t warp = threadIdx.x / 32;
#pragma unroll 1
  for (uint32_t i = 0; i < r.shared; ++i) {
    if (i > 0) {
      do {
        x = fetch_column<kRelayed>(use_of(a, r.entries[i]), warp, threadIdx.x & 31);
      } while (kRelayed && any_lane(unwritten(x)));
    }
    float f[4] = {};
    add_tile<F>(f, w, x, sums_of<F>(x));
    put_outputs(shared_y, r.entries[i], kInputTiles, false, warp, f);
  }
}

// The block's 16 outputs of all rows to the stream; `early` is of the thread's first.
template <uint32_t kInputTiles, bool kRelayed>
__device__ __forceinline__ void finish_rows(const ExpertArgs& a, const Routing& r, const float* y,
                                            const float* shared_y, const Element& early) {
  const uint32_t work = a.rows * kTileRows;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < (work + 31) / 32 * 32; i += blockDim.x) {
    const bool active = i < work;
    const uint32_t row = i / kTileRows;
    const uint32_t output = blockIdx.x * kTileRows + i % kTileRows;
    Element element = early;
    if (active && i != threadIdx.x) {
      do {
        element = load_element<kRelayed>(a.to, row, output);
      } while (kRelayed && unwritten(element.value));
    }
    const float value = active ? sum_of_row<kInputTiles>(r, y, shared_y, row, i % kTileRows) : 0;
    add_to_stream<kRelayed>(a.to, row, output, value, active, element);
  }
}

template <class F, uint32_t kInputTiles, bool kRelayed>
__global__ void __launch_bounds__(kLeaveWarps * 32, 2) down_kernel(ExpertArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr uint32_t kBytes = kInputTiles * F::kTileBytes;
  constexpr uint32_t kStage = (kBytes + 127) / 128 * 128;
  static_assert(kInputTiles <= kLeaveWarps);
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  const LeaveLayout l = leave_layout(a.w, a.stages, a.rows);
  Routing& r = *reinterpret_cast<Routing*>(shared + l.routing);
  float* const y = reinterpret_cast<float*>(shared + l.y);
  float* const shared_y = reinterpret_cast<float*>(shared + l.shared_y);
  uint64_t* const barriers = reinterpret_cast<uint64_t*>(shared + l.barriers) + warp * kMostStages;
  uint8_t* const shared_tile = shared + l.shared_tiles + warp * F::kTileBytes;
  const uint8_t* const own = a.w.tiles + size_t{blockIdx.x} * kBytes;

  start_successors();
  Ring<kStage, kBytes> ring{shared + warp * a.stages * kStage, barriers, a.stages};
  ring.prepare(lane);
  if (warp < kInputTiles) {
    fetch_shared<F>(a, own, shared_tile, barriers, warp, lane);
  }
  read_routing(r, a.routing, a.rows);
  uint32_t ahead = r.shared + warp;
  const auto fetch = [&] {
    if (ahead < r.count) {
      ring.fetch(own + r.entries[ahead].expert * a.w.matrix_bytes, lane);
      ahead += kLeaveWarps;
    }
  };
#pragma unroll 1
  for (uint32_t i = 0; i < a.stages; ++i) {
    fetch();
  }

  const uint32_t first_row = min(threadIdx.x / kTileRows, a.rows - 1);
  const uint32_t first_output = blockIdx.x * kTileRows + threadIdx.x % kTileRows;
  Element early{0, a.to.next_norm[first_output]};
  wait_for_results<kRelayed>(a.relay);
  uint32_t at = r.shared + warp;
  uint8_t* const columns = shared + l.columns + warp * a.rows * use_stride(kInputTiles);
  Column x[kRelayed ? 1 : kInputTiles];
  Column of_shared;
  const auto load_early = [&] {
    early.value = read<kRelayed>(a.to.from + size_t{first_row} * a.to.hidden + first_output);
    of_shared = fetch_column<kRelayed>(use_of(a, r.entries[0]), min(warp, kInputTiles - 1), lane);
    return unwritten(early.value) || unwritten(of_shared);
  };
  load_uses<kInputTiles, kRelayed>(x, a, r, kRelayed ? min(at, r.count - 1) : at, columns, load_early);
  if (warp < kInputTiles) {
    wait_barrier(barriers + kMostLeaveStages, 0);
    add_shared<F, kInputTiles, kRelayed>(a, r, load_tile<F>(shared_tile, lane), of_shared, shared_y);
  }
#pragma unroll 1
  while (at < r.count) {
    const uint8_t* const stage = ring.wait();
    float f[4] = {};
#pragma unroll
    for (uint32_t i = 0; i < kInputTiles; ++i) {
      if constexpr (kRelayed) {
        const uint4* const from = reinterpret_cast<const uint4*>(
            columns + min(lane >> 2, a.rows - 1) * use_stride(kInputTiles) + i * 128 + (lane & 3) * 32);
        x[0] = column_of(from[0], from[1]);
      }
      const Column& of = x[kRelayed ? 0 : i];
      add_tile<F>(f, load_tile<F>(stage + i * F::kTileBytes, lane), of, sums_of<F>(of));
    }
    ring.release();
    fetch();
    put_outputs(y, r.entries[at], kTopK, true, 0, f);
    at += kLeaveWarps;
    if (at < r.count) {
      load_uses<kInputTiles, kRelayed>(x, a, r, at, columns, [] { return false; });
    }
  }
  __syncthreads();
  announce_results<kRelayed>(a.relay);
  finish_rows<kInputTiles, kRelayed>(a, r, y, shared_y, early);
  end_relay<kRelayed>();
}

using Kernel = void (*)(ExpertArgs);

int launch(Kernel kernel, uint32_t threads, const ExpertArgs& args, Stream queue) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(args.blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = args.shared;
  config.stream = queue;
  return launch_dependent(kernel, config, args);
}

template <class F>
Kernel gate_up_of(uint32_t k_tiles, bool relayed) {
  if (k_tiles == 4) {
    return relayed ? gate_up_kernel<F, 4, true> : gate_up_kernel<F, 4, false>;
  }
  return relayed ? gate_up_kernel<F, 32, true> : gate_up_kernel<F, 32, false>;
}
template <class F>
Kernel down_of(uint32_t k_tiles, bool relayed) {
  if (k_tiles == 1) {
    return relayed ? down_kernel<F, 1, true> : down_kernel<F, 1, false>;
  }
  return relayed ? down_kernel<F, 8, true> : down_kernel<F, 8, false>;
}

template <class F>
int prepare(uint32_t bytes) {
  for (const bool relayed : {false, true}) {
    for (const Kernel kernel : {gate_up_of<F>(4, relayed), gate_up_of<F>(32, relayed), down_of<F>(1, relayed),
                                down_of<F>(8, relayed)}) {
      if (const int e = prepare_kernel(kernel, bytes); e != 0) {
        return e;
      }
    }
  }
  return 0;
}

bool takes(const ExpertArgs& args) {
  const bool relayed = args.relay.on != 0;
  return args.rows > 0 && args.rows <= (relayed ? kRelayedRows : kSmallRows) &&
         (!relayed || args.w.wide == 0) && args.dims.experts <= kMostExperts &&
         (args.w.row_blocks & (args.w.row_blocks - 1)) == 0;
}

}  // namespace

uint32_t gate_up_shared_bytes(const PackedMatrix& w, uint32_t stages, uint32_t rows, uint32_t blocks) {
  return rows > kFewRows ? gate_up_many_shared_bytes(w, stages) : enter_layout(w, stages, rows, blocks).total;
}

uint32_t down_shared_bytes(const PackedMatrix& w, uint32_t stages, uint32_t rows) {
  return rows > kFewRows ? down_many_shared_bytes(w, stages) : leave_layout(w, stages, rows).total;
}

int prepare_experts(uint32_t bytes) {
  int e = prepare<Format<1, false>>(bytes);
  e = e != 0 ? e : prepare<Format<1, true>>(bytes);
  e = e != 0 ? e : prepare<Format<2, false>>(bytes);
  e = e != 0 ? e : prepare<Format<2, true>>(bytes);
  return e != 0 ? e : prepare_experts_many(bytes);
}

int launch_gate_up(const ExpertArgs& args, Stream queue) {
  static_assert(kRelayedRows <= kFewRows);
  const uint32_t k = args.w.k_tiles;
  if (!takes(args) || (k != 4 && k != 32)) {
    return cudaErrorInvalidValue;
  }
  if (args.rows > kFewRows) {
    return launch_gate_up_many(args, queue);
  }
  return with_format(args.w, [&]<class F>() {
    return launch(gate_up_of<F>(k, args.relay.on != 0), kEnterWarps * 32, args, queue);
  });
}

int launch_down(const ExpertArgs& args, Stream queue) {
  const uint32_t k = args.w.k_tiles;
  if (!takes(args) || (k != 1 && k != 8)) {
    return cudaErrorInvalidValue;
  }
  if (args.rows > kFewRows) {
    return launch_down_many(args, queue);
  }
  return with_format(args.w, [&]<class F>() {
    return launch(down_of<F>(k, args.relay.on != 0), kLeaveWarps * 32, args, queue);
  });
}

}  // namespace lily::cuda
