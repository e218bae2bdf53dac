// The mixture of experts for more rows than a unit's columns are worth splitting for:
//   gate_up: h = silu(gate x) * (up x) of the experts that the rows chose, and of the shared one;
//   down:    y = down h of every use of an expert;
//   combine: stream += the sum over a row's experts, in ascending order, of weight * y, then the shared one.
// A block works on consecutive units of 16 outputs, so that it sees few experts and holds the inputs of the
// rows that chose one in registers. Blocks have the same number of units, but for one, of the shared expert,
// whose units all have eight columns, and of the others. The sums are those of experts.cu, in the same order.
#include "backends/cuda/kernels/experts_many.cuh"

namespace lily::cuda {
namespace {

using namespace experts;  // NOLINT(google-build-using-namespace)

constexpr uint32_t kWarps = 16;

// The number of the calling warp, in a form that tells the compiler that it is the same for all its lanes.
__device__ __forceinline__ uint32_t warp_number() { return __shfl_sync(kAll, threadIdx.x / 32, 0); }

// A block's units, counted from 0: those of the shared expert first.
struct Share {
  uint32_t shared_first, shared;  // the first of the shared expert, and how many
  uint32_t chosen;                // the first of the others, less `shared`
  uint32_t count;                 // of both

  __device__ __forceinline__ uint32_t unit(uint32_t i) const {
    return (i < shared ? shared_first : chosen) + i;
  }
};
// Of the shared expert only, which is known before the routing is; take_chosen() adds the others.
__device__ __forceinline__ Share share_of_shared(const Routing& r, const PackedMatrix& w) {
  const uint32_t units = r.shared * w.row_blocks;
  const uint32_t first = units * blockIdx.x / gridDim.x;
  const uint32_t count = units * (blockIdx.x + 1) / gridDim.x - first;
  return {first, count, 0, count};
}
__device__ __forceinline__ void take_chosen(Share& share, const Routing& r, const PackedMatrix& w) {
  const uint32_t units = (r.count - r.shared) * w.row_blocks;
  const uint32_t first = units * blockIdx.x / gridDim.x;
  share.chosen = r.shared * w.row_blocks + first - share.shared;
  share.count = share.shared + units * (blockIdx.x + 1) / gridDim.x - first;
}
// One after the last of the units from the i-th on that are of the same entry.
__device__ __forceinline__ uint32_t end_of_entry(const Share& share, const PackedMatrix& w, uint32_t i) {
  const uint32_t left = w.row_blocks - (share.unit(i) & (w.row_blocks - 1));
  return min(i + left, i < share.shared ? share.shared : share.count);
}

// Rows of an entry: they are its first columns.
__device__ __forceinline__ uint32_t columns_of(const Entry& entry) {
  uint32_t count = 0;
#pragma unroll
  for (uint32_t i = 0; i < kGroupRows; ++i) {
    count += entry.rows[i] != kAbsent ? 1 : 0;
  }
  return count;
}

// The entries that a block works on, one after the other.
struct Cursor {
  uint32_t begin, end;  // among the block's units
  uint32_t index = 0;   // of the entry
  uint32_t column = 0;  // columns of those before it

  __device__ __forceinline__ Cursor(const Share& share, const PackedMatrix& w, uint32_t first)
      : begin(first), end(end_of_entry(share, w, first)) {}
  __device__ __forceinline__ const Entry& entry(const Share& share, const Routing& r,
                                                const PackedMatrix& w) const {
    return *unit_of(r, w, share.unit(begin)).entry;
  }
  __device__ __forceinline__ void advance(const Share& share, const Routing& r, const PackedMatrix& w) {
    column += columns_of(entry(share, r, w));
    ++index;
    begin = end;
    end = end_of_entry(share, w, begin);
  }
};

// The inputs of a block's entries, in shared memory for as many as there is room: asked for before the
// weights are, behind which they would wait for microseconds.
constexpr uint32_t kStagedEntries = 8;
__host__ __device__ constexpr uint32_t staged_stride(uint32_t k_tiles) {
  return k_tiles * kTileCols * 2 + 16;  // bytes of a column: no bank conflicts between neighbours
}
template <uint32_t kInputTiles>
struct Staged {
  static constexpr uint32_t kStride = staged_stride(kInputTiles);
  uint8_t* base;
  uint64_t* barriers;
  uint32_t room;  // columns

  __device__ __forceinline__ void prepare() const {
    if (threadIdx.x < kStagedEntries) {
      init_copy_barrier(barriers + threadIdx.x);
    }
  }
  __device__ __forceinline__ bool has(const Cursor& at, uint32_t columns) const {
    return at.index < kStagedEntries && at.column + columns <= room;
  }
  // Warp i brings the i-th entry from the block's unit `first` on. row_of(entry, column): where one lies.
  template <class RowOf>
  __device__ __forceinline__ void bring(const ExpertArgs& a, const Routing& r, const Share& share,
                                        uint32_t first, uint32_t warp, const RowOf& row_of) const {
    if (first >= share.count) {
      return;
    }
    Cursor at(share, a.w, first);
#pragma unroll 1
    while (at.index < warp && at.end < share.count) {
      at.advance(share, r, a.w);
    }
    const Entry& entry = at.entry(share, r, a.w);
    const uint32_t columns = columns_of(entry);
    if (at.index == warp && has(at, columns)) {
      const uint32_t lane = threadIdx.x & 31;
      copy_rows(base + at.column * kStride, kStride,
                reinterpret_cast<const uint8_t*>(row_of(entry, lane % kGroupRows)), columns,
                kInputTiles * kTileCols * 2, barriers + warp, lane);
    }
  }
  // Of lane / 4's column of an entry.
  __device__ __forceinline__ Column column(const Cursor& at, uint32_t tile) const {
    const uint32_t lane = threadIdx.x & 31;
    const uint4* const from = reinterpret_cast<const uint4*>(base + (at.column + (lane >> 2)) * kStride +
                                                             tile * (kTileCols * 2) + (lane & 3) * 32);
    return column_of(from[0], from[1]);
  }
};

// The units that a warp fetches: every kStep-th of the block's from its first on, its part of each.
template <uint32_t kStep>
struct Ahead {
  uint32_t next;     // of the block's units
  uint32_t end = 0;  // of the entry that `from` is in
  const uint8_t* from = nullptr;

  // Whether there was one.
  template <class AnyRing>
  __device__ __forceinline__ bool fetch(AnyRing& ring, const ExpertArgs& a, const Routing& r,
                                        const Share& share, uint32_t offset, uint32_t unit_bytes) {
    if (next >= share.count) {
      return false;
    }
    if (next >= end) {
      const Unit unit = unit_of(r, a.w, share.unit(next));
      from = a.w.tiles + unit.entry->expert * a.w.matrix_bytes + unit.block * unit_bytes + offset;
      end = end_of_entry(share, a.w, next);
    }
    ring.fetch(from, threadIdx.x & 31);
    from += kStep * unit_bytes;
    next += kStep;
    return true;
  }
};

// ---- gate_up --------------------------------------------------------------------------------------------
// A unit is 16 outputs of one entry: eight of gate and the same eight of up. A team of warps works on a unit,
// each on kPartTiles tiles of the inputs; the parts are added in order, by a thread for each output.
constexpr uint32_t kUnitsAtOnce =
    8;  // of a team, between two barriers: they have kPartColumns columns at most
constexpr uint32_t kPartColumns = 16;

template <uint32_t kInputTiles>
struct Teams {
  static constexpr uint32_t kParts = kInputTiles / kPartTiles;
  static constexpr uint32_t kTeams = kWarps / kParts;
  static constexpr uint32_t kThreads = kParts * 32;
  static constexpr uint32_t kColumn = kParts * kTileRows + 8;  // floats: columns lie in different banks
  static constexpr uint32_t kBuffer = kPartColumns * kColumn;
};

struct EnterLayout {
  uint32_t barriers, staged_barriers, routing, scales, part, staged;  // the last takes what is left
};
constexpr uint32_t kEnterColumns = 16;  // staged: of fewer than three entries, as a rule
__host__ __device__ inline EnterLayout enter_layout(const PackedMatrix& w, uint32_t stages) {
  const uint32_t parts = w.k_tiles / kPartTiles;
  EnterLayout l;
  l.barriers = kWarps * stages * kPartTiles * w.tile_bytes;
  l.staged_barriers = l.barriers + ring_barrier_bytes(kWarps);
  l.routing = l.staged_barriers + align128(kStagedEntries * 8);
  l.scales = l.routing + kRoutingBytes;
  l.part = l.scales + align128(kSmallRows * 4);
  l.staged = l.part + kWarps / parts * 2 * kPartColumns * (parts * kTileRows + 8) * 4;
  return l;
}

// The warp's inputs of an entry, and their sums as Rows::put() adds them.
template <class F>
struct PartInputs {
  Column x[kPartTiles];
  ColumnSums<F> sums[kPartTiles];

  template <uint32_t kInputTiles>
  __device__ __forceinline__ void take(const Staged<kInputTiles>& staged, const Cursor& at, uint32_t columns,
                                       uint32_t part) {
    wait_barrier(staged.barriers + at.index, 0);
#pragma unroll
    for (uint32_t i = 0; i < kPartTiles; ++i) {
      x[i] = {};
      if ((threadIdx.x & 31) >> 2 < columns) {
        x[i] = staged.column(at, part * kPartTiles + i);
      }
    }
  }
  __device__ __forceinline__ void load(const uint16_t* feed, uint32_t inputs, const Entry& entry,
                                       uint32_t part) {
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t row = entry.rows[lane >> 2];
#pragma unroll
    for (uint32_t i = 0; i < kPartTiles; ++i) {
      x[i] = {};
      if (row != kAbsent) {
        x[i] = fetch_column(feed + size_t{row} * inputs, part * kPartTiles + i, lane);
      }
    }
  }
  __device__ __forceinline__ void add_up() {
#pragma unroll
    for (uint32_t i = 0; i < kPartTiles; ++i) {
      const float low = of_tile(x[i].b);
      const float high = of_tile(x[i].b + 4);
      if constexpr (F::kWide) {
        sums[i].part[0] = to_columns(low);
        sums[i].part[1] = to_columns(high);
      } else {
        sums[i].part[0] = to_columns(low + high);
      }
    }
  }

 private:
  static __device__ __forceinline__ float of_tile(const uint32_t* v) {
    float sum = ((low_bf16(v[0]) + high_bf16(v[0])) + (low_bf16(v[1]) + high_bf16(v[1]))) +
                ((low_bf16(v[2]) + high_bf16(v[2])) + (low_bf16(v[3]) + high_bf16(v[3])));
    sum += __shfl_xor_sync(kAll, sum, 1);
    sum += __shfl_xor_sync(kAll, sum, 2);
    return sum;
  }
  // From the lanes of a column to those that have its outputs.
  static __device__ __forceinline__ float2 to_columns(float sum) {
    const uint32_t from = (threadIdx.x & 3) * 8;
    return make_float2(__shfl_sync(kAll, sum, from), __shfl_sync(kAll, sum, from + 4));
  }
};

// A team's units between two barriers: every kTeams-th from block `first_block` of an entry on.
struct Epoch {
  float* part;
  uint32_t column;  // the first that the lane has outputs of
  uint32_t columns, first_block, count;
};
// silu(gate) * up of the units, whose parts are complete; by the threads of the team.
template <class T>
__device__ __forceinline__ void finish_units(const ExpertArgs& a, const Entry& entry, const Epoch& epoch,
                                             const float* scales, uint32_t thread) {
  constexpr uint32_t kOutputs = kTileRows / 2;
#pragma unroll 1
  for (uint32_t i = thread; i < epoch.count * epoch.columns * kOutputs; i += T::kThreads) {
    const uint32_t output = i % kOutputs;
    const uint32_t unit = i / kOutputs / epoch.columns;
    const uint32_t column = i / kOutputs - unit * epoch.columns;
    const float* const of = epoch.part + i / kOutputs * T::kColumn + output;
    float gate = of[0];
    float up = of[kOutputs];
#pragma unroll
    for (uint32_t p = 1; p < T::kParts; ++p) {
      gate += of[p * kTileRows];
      up += of[p * kTileRows + kOutputs];
    }
    const uint32_t row = entry.rows[column];
    const float h = silu(scales[row] * gate) * (scales[row] * up);
    const uint32_t block = epoch.first_block + unit * T::kTeams;
    a.h[(row * kUses + entry.slots[column]) * size_t{a.dims.ffn} +
        fragment_position(block * kOutputs + output)] = to_bf16(h);
  }
}

// Where the rows go, and the factors of their norms: a warp for every kWarps-th row. Ends with a barrier.
template <uint32_t kInputTiles>
__device__ __forceinline__ void route_and_scale(const ExpertArgs& a, Routing& r, float* scales) {
  const uint32_t lane = threadIdx.x & 31;
  uint32_t row = threadIdx.x / 32;
  Logits logits;
  RowSquares<kInputTiles * kTileCols> squares;
  const auto load = [&](uint32_t of) {
    logits.load<false>(a.router + size_t{of} * a.ld_router, a.dims.experts);
    squares.load(a.feed.squares, of, lane);
  };
  load(min(row, a.rows - 1));
#pragma unroll 1
  while (row < a.rows) {
    const Logits now = logits;
    const float scale = squares.scale();
    if (lane == 0) {
      scales[row] = scale;
    }
    const uint32_t next = row + kWarps;
    load(min(next, a.rows - 1));
    route_row(r, now, a.dims.experts, row, a.rows);
    row = next;
  }
  __syncthreads();
  list_entries(r, a.rows);
  __syncthreads();
}

// One part of a unit, and where it goes: `to` is the place of the lane's first column.
template <class F>
__device__ __forceinline__ void multiply_part(float (&f)[4], const uint8_t* stage, const PartInputs<F>& in) {
  const uint32_t lane = threadIdx.x & 31;
#pragma unroll
  for (uint32_t i = 0; i < kPartTiles; ++i) {
    add_tile<F>(f, load_tile<F>(stage + i * F::kTileBytes, lane), in.x[i], in.sums[i]);
  }
}
template <class T>
__device__ __forceinline__ void put_part(float* to, uint32_t column, uint32_t columns, const float (&f)[4]) {
  if (column < columns) {
    to[0] = f[0];
    to[8] = f[2];
  }
  if (column + 1 < columns) {
    to[T::kColumn] = f[1];
    to[T::kColumn + 8] = f[3];
  }
}

// Units of an entry that a team has before it, and how many of them it takes between two barriers.
struct Units {
  uint32_t next, end, most;
};
// As many of them: their parts, from `to` on.
template <class F, class T, class AnyRing, class Fetch>
__device__ __forceinline__ void multiply_units(AnyRing& ring, const Fetch& fetch, const PartInputs<F>& in,
                                               float* to, Epoch& epoch, Units& units) {
#pragma unroll 1
  for (; epoch.count < units.most && units.next < units.end; ++epoch.count) {
    float f[4] = {};
    multiply_part(f, ring.wait(), in);
    ring.release();
    fetch();
    put_part<T>(to, epoch.column, epoch.columns, f);
    to += epoch.columns * T::kColumn;
    units.next += T::kTeams;
  }
}

// Tells who needs it where the rows go. Not before the first weights are on their way: down then fetches its
// own.
__device__ __forceinline__ void announce_routing(const ExpertArgs& a, const Routing& r) {
  if (blockIdx.x == 0) {
    publish_routing(r, a.routing, a.rows);
  }
  start_successors();
  if (blockIdx.x == gridDim.x - 1) {
    note_experts(a, r);
  }
}

template <class F, uint32_t kInputTiles>
__global__ void __launch_bounds__(kWarps * 32, 1) gate_up_many_kernel(ExpertArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  using T = Teams<kInputTiles>;
  constexpr uint32_t kStage = kPartTiles * F::kTileBytes;
  constexpr uint32_t kUnitBytes = kInputTiles * F::kTileBytes;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = warp_number();
  const uint32_t team = warp / T::kParts;
  const uint32_t part = warp % T::kParts;
  const EnterLayout l = enter_layout(a.w, a.stages);
  Routing& r = *reinterpret_cast<Routing*>(shared + l.routing);
  float* const scales = reinterpret_cast<float*>(shared + l.scales);
  float* const buffers = reinterpret_cast<float*>(shared + l.part) + team * 2 * T::kBuffer;
  Ring<kStage> ring{shared + warp * a.stages * kStage,
                    reinterpret_cast<uint64_t*>(shared + l.barriers) + warp * kMostStages, a.stages};
  const Staged<kInputTiles> staged{shared + l.staged, reinterpret_cast<uint64_t*>(shared + l.staged_barriers),
                                   (a.shared - l.staged) / Staged<kInputTiles>::kStride};
  ring.prepare(lane);
  staged.prepare();
  prepare_routing(r, a.dims.experts, a.rows);
  __syncthreads();
  // The weights of the shared expert are needed whatever the routing says.
  Share share = share_of_shared(r, a.w);
  Ahead<T::kTeams> ahead{team};
  const auto fetch = [&] { return ahead.fetch(ring, a, r, share, part * kStage, kUnitBytes); };
  uint32_t fetched = 0;
#pragma unroll 1
  while (fetched < a.stages && fetch()) {
    ++fetched;
  }
  wait_for_predecessors();
  PartInputs<F> in;
  if (team < share.shared) {
    in.load(a.feed.x, kInputTiles * kTileCols, *unit_of(r, a.w, share.unit(team)).entry, part);
  }
  route_and_scale<kInputTiles>(a, r, scales);
  take_chosen(share, r, a.w);
  staged.bring(a, r, share, share.shared, warp, [&](const Entry& entry, uint32_t column) {
    return a.feed.x + size_t{entry.rows[column]} * (kInputTiles * kTileCols);
  });
#pragma unroll 1
  while (fetched < a.stages && fetch()) {
    ++fetched;
  }
  announce_routing(a, r);

  Cursor at(share, a.w, min(share.shared, share.count - 1));  // of the chosen experts
  uint32_t next = team;
  uint32_t turn = 0;  // 0 or 1, by epochs: the buffer, and the half of the team that finishes the units
#pragma unroll 1
  while (next < share.count) {
    const Entry& entry = *unit_of(r, a.w, share.unit(next)).entry;
    Units units{next, end_of_entry(share, a.w, next), 0};
    const uint32_t columns = columns_of(entry);
    units.most = min(kUnitsAtOnce, kPartColumns / columns);
    while (next >= at.end) {
      at.advance(share, r, a.w);
    }
    if (next >= share.shared && staged.has(at, columns)) {
      in.take(staged, at, columns, part);
    } else if (next != team || next >= share.shared) {  // else they are there
      in.load(a.feed.x, kInputTiles * kTileCols, entry, part);
    }
    in.add_up();
#pragma unroll 1
    while (units.next < units.end) {
      const uint32_t column = (lane & 3) * 2;
      Epoch epoch{buffers + turn * T::kBuffer, column, columns, share.unit(units.next) & (a.w.row_blocks - 1),
                  0};
      float* const to = epoch.part + column * T::kColumn + part * kTileRows + (lane >> 2);
      multiply_units<F, T>(ring, fetch, in, to, epoch, units);
      // Two buffers: this one is not written again before all have passed the next barrier.
      sync_team<T::kThreads>(team);
      finish_units<T>(a, entry, epoch, scales, (threadIdx.x + turn * (T::kThreads / 2)) % T::kThreads);
      turn ^= 1;
    }
    next = units.next;
  }
}

// ---- down -----------------------------------------------------------------------------------------------
// A unit is 16 outputs of one entry; a warp works on it with its inputs in registers.
struct LeaveLayout {
  uint32_t barriers, staged_barriers, routing, staged;  // the last takes what is left
};
constexpr uint32_t kLeaveColumns = 32;  // staged: those of the shared expert as well
__host__ __device__ inline LeaveLayout leave_layout(const PackedMatrix& w, uint32_t stages) {
  LeaveLayout l;
  l.barriers = kWarps * stages * align128(w.k_tiles * w.tile_bytes);
  l.staged_barriers = l.barriers + ring_barrier_bytes(kWarps);
  l.routing = l.staged_barriers + align128(kStagedEntries * 8);
  l.staged = l.routing + kReadRoutingBytes;
  return l;
}

// The columns of an entry: inputs and their sums.
template <class F, uint32_t kInputTiles>
struct UseInputs {
  Column x[kInputTiles];
  ColumnSums<F> sums[kInputTiles];

  __device__ __forceinline__ void load(const ExpertArgs& a, const Entry& entry,
                                       const Staged<kInputTiles>& staged, const Cursor& at) {
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t row = entry.rows[lane >> 2];
    const bool here = staged.has(at, columns_of(entry));
    if (here) {
      wait_barrier(staged.barriers + at.index, 0);
    }
    const uint16_t* const from = a.h + (row * kUses + entry.slots[lane >> 2]) * size_t{a.dims.ffn};
#pragma unroll
    for (uint32_t i = 0; i < kInputTiles; ++i) {
      x[i] = {};
      if (row != kAbsent) {
        x[i] = here ? staged.column(at, i) : fetch_column(from, i, lane);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kInputTiles; ++i) {
      sums[i] = sums_of<F>(x[i]);
    }
  }
};

// 16 outputs of a unit. `apart`: its tiles are sums of their own, as those of the shared expert are, for
// which experts.cu has a warp for each tile.
template <class F, uint32_t kInputTiles>
__device__ __forceinline__ void multiply_unit(float (&f)[4], const uint8_t* stage,
                                              const UseInputs<F, kInputTiles>& in, bool apart) {
  const uint32_t lane = threadIdx.x & 31;
  if (!apart) {
#pragma unroll
    for (uint32_t i = 0; i < kInputTiles; ++i) {
      add_tile<F>(f, load_tile<F>(stage + i * F::kTileBytes, lane), in.x[i], in.sums[i]);
    }
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < kInputTiles; ++i) {
    float of_tile[4] = {};
    add_tile<F>(of_tile, load_tile<F>(stage + i * F::kTileBytes, lane), in.x[i], in.sums[i]);
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      f[j] += of_tile[j];
    }
  }
}

template <class F, uint32_t kInputTiles>
__global__ void __launch_bounds__(kWarps * 32, 1) down_many_kernel(ExpertArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr uint32_t kBytes = kInputTiles * F::kTileBytes;
  constexpr uint32_t kStage = (kBytes + 127) / 128 * 128;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = warp_number();
  const LeaveLayout l = leave_layout(a.w, a.stages);
  Routing& r = *reinterpret_cast<Routing*>(shared + l.routing);
  Ring<kStage, kBytes> ring{shared + warp * a.stages * kStage,
                            reinterpret_cast<uint64_t*>(shared + l.barriers) + warp * kMostStages, a.stages};
  const Staged<kInputTiles> staged{shared + l.staged, reinterpret_cast<uint64_t*>(shared + l.staged_barriers),
                                   (a.shared - l.staged) / Staged<kInputTiles>::kStride};
  start_successors();
  ring.prepare(lane);
  staged.prepare();
  read_routing(r, a.routing, a.rows);  // has barriers
  Share share = share_of_shared(r, a.w);
  take_chosen(share, r, a.w);
  Ahead<kWarps> ahead{warp};
  const auto fetch = [&] { return ahead.fetch(ring, a, r, share, 0, kBytes); };
  fetch();  // no more: the inputs are not to wait for many weights
  wait_for_predecessors();
  staged.bring(a, r, share, 0, warp, [&](const Entry& entry, uint32_t column) {
    return a.h + (entry.rows[column] * kUses + entry.slots[column]) * size_t{a.dims.ffn};
  });
#pragma unroll 1
  for (uint32_t i = 1; i < a.stages; ++i) {
    fetch();
  }

  Cursor at(share, a.w, 0);
#pragma unroll 1
  for (uint32_t next = warp; next < share.count;) {
    while (next >= at.end) {
      at.advance(share, r, a.w);
    }
    const uint32_t end = at.end;
    const Unit first = unit_of(r, a.w, share.unit(next));
    const Entry& entry = *first.entry;
    const bool apart = next < share.shared;
    UseInputs<F, kInputTiles> in;
    in.load(a, entry, staged, at);
    const uint32_t column = (lane & 3) * 2;
    float* to[2];
#pragma unroll
    for (uint32_t c = 0; c < 2; ++c) {
      const uint32_t row = entry.rows[column + c];
      to[c] = row == kAbsent ? nullptr
                             : a.y + (row * kUses + entry.slots[column + c]) * size_t{a.to.hidden} +
                                   first.block * kTileRows + (lane >> 2);
    }
#pragma unroll 1
    for (; next < end; next += kWarps) {
      const uint8_t* const stage = ring.wait();
      float f[4] = {};
      multiply_unit(f, stage, in, apart);
      ring.release();
      fetch();
#pragma unroll
      for (uint32_t c = 0; c < 2; ++c) {
        if (to[c] != nullptr) {
          to[c][0] = f[c];
          to[c][8] = f[c + 2];
          to[c] += kWarps * kTileRows;
        }
      }
    }
  }
}

// ---- combine --------------------------------------------------------------------------------------------
constexpr uint32_t kCombineThreads = 256;

__global__ void __launch_bounds__(kCombineThreads) combine_kernel(ExpertArgs a) {
  const uint32_t output = blockIdx.x * kCombineThreads + threadIdx.x;
  const uint32_t row = blockIdx.y;
  const bool active = output < a.to.hidden;
  start_successors();
  wait_for_predecessors();
  Element element{};
  float value = 0;
  if (active) {
    element = {load_l2(a.to.stream + size_t{row} * a.to.hidden + output), a.to.next_norm[output]};
    float y[kUses];
    float weights[kUses];
#pragma unroll
    for (uint32_t slot = 0; slot < kUses; ++slot) {
      y[slot] = load_l2(a.y + (size_t{row} * kUses + slot) * a.to.hidden + output);
      weights[slot] = published_weight(a.routing, row, slot);
    }
#pragma unroll
    for (uint32_t slot = 0; slot < kUses; ++slot) {
      value = fmaf(weights[slot], y[slot], value);
    }
  }
  // add_to_stream() in the form that has run on a device.
  float now = 0;
  if (active) {
    now = element.value + value;
    a.to.stream[size_t{row} * a.to.hidden + output] = now;
    a.to.feed.x[size_t{row} * a.to.hidden + fragment_position(output)] = to_bf16(now * element.norm);
  }
  const float square = sum_lanes<kFeedBlock>(now * now);
  if (active && output % kFeedBlock == 0) {
    a.to.feed.squares[size_t{row} * (a.to.hidden / kFeedBlock) + output / kFeedBlock] = square;
  }
}

using Kernel = void (*)(ExpertArgs);

int launch(Kernel kernel, dim3 grid, uint32_t threads, uint32_t shared, const ExpertArgs& args,
           Stream queue) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = queue;
  return launch_dependent(kernel, config, args);
}

template <class F>
Kernel gate_up_of(uint32_t k_tiles) {
  return k_tiles == 4 ? gate_up_many_kernel<F, 4> : gate_up_many_kernel<F, 32>;
}
template <class F>
Kernel down_of(uint32_t k_tiles) {
  return k_tiles == 1 ? down_many_kernel<F, 1> : down_many_kernel<F, 8>;
}

template <class F>
int prepare(uint32_t bytes) {
  for (const Kernel kernel : {gate_up_of<F>(4), gate_up_of<F>(32), down_of<F>(1), down_of<F>(8)}) {
    if (const int e = prepare_kernel(kernel, bytes); e != 0) {
      return e;
    }
  }
  return 0;
}

}  // namespace

uint32_t gate_up_many_shared_bytes(const PackedMatrix& w, uint32_t stages) {
  return enter_layout(w, stages).staged;
}
uint32_t down_many_shared_bytes(const PackedMatrix& w, uint32_t stages) {
  return leave_layout(w, stages).staged;
}
uint32_t gate_up_staged_bytes(const PackedMatrix& w) { return kEnterColumns * staged_stride(w.k_tiles); }
uint32_t down_staged_bytes(const PackedMatrix& w) { return kLeaveColumns * staged_stride(w.k_tiles); }

int prepare_experts_many(uint32_t bytes) {
  int e = prepare<Format<1, false>>(bytes);
  e = e != 0 ? e : prepare<Format<1, true>>(bytes);
  e = e != 0 ? e : prepare<Format<2, false>>(bytes);
  e = e != 0 ? e : prepare<Format<2, true>>(bytes);
  return e != 0 ? e : prepare_kernel(combine_kernel, 0);
}

int launch_gate_up_many(const ExpertArgs& args, Stream queue) {
  return with_format(args.w, [&]<class F>() {
    return launch(gate_up_of<F>(args.w.k_tiles), dim3(args.blocks), kWarps * 32, args.shared, args, queue);
  });
}

int launch_down_many(const ExpertArgs& args, Stream queue) {
  if (args.to.from != args.to.stream) {
    return cudaErrorInvalidValue;
  }
  const int e = with_format(args.w, [&]<class F>() {
    return launch(down_of<F>(args.w.k_tiles), dim3(args.blocks), kWarps * 32, args.shared, args, queue);
  });
  const dim3 grid((args.to.hidden + kCombineThreads - 1) / kCombineThreads, args.rows);
  return e != 0 ? e : launch(combine_kernel, grid, kCombineThreads, 0, args, queue);
}

}  // namespace lily::cuda
