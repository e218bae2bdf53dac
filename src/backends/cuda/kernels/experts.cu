// The mixture of experts for few rows: routing is worked out by every block from the router's logits, then
//   gate_up: h = silu(gate x) * (up x) of the experts that the rows of a group chose, and of the shared one;
//   down:    stream += the sum over a row's experts, in ascending order, of weight * (down h), then the
//   shared one.
// An expert's weights are read once for the rows of a group. What a row adds up does not depend on the
// others: an expert that it did not choose contributes exact zeros.
#include "backends/cuda/kernels/tiles.cuh"

namespace lily::cuda {
namespace {

constexpr uint32_t kMostExperts = 256;
constexpr uint32_t kMostList = kGroupRows * kTopK + 1;
constexpr uint32_t kAbsent = 0xff;

// The experts of a group of rows, in shared memory.
struct Routing {
  uint32_t mask[kMostExperts];           // rows that chose the expert
  int32_t ids[kGroupRows][kTopK];        // ascending
  float weights[kGroupRows][kUses];      // of the sum; the last is the shared expert's
  uint32_t count;                        // of the list
  uint32_t list[kMostList];              // experts that any row chose, ascending; then the shared one
  float factors[kMostList][kGroupRows];  // weight of the expert in the row's sum, 0 if not chosen
  uint8_t slots[kMostList][kGroupRows];  // its place among the row's experts, or kAbsent
};

// Order of floats as unsigned integers.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));  // -0 is 0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The kTopK largest logits of one row, equal ones by lower index; one warp. Leaves ids ascending.
__device__ void choose(Routing& r, const float* logits, uint32_t experts, uint32_t row) {
  constexpr uint32_t kEach = kMostExperts / 32;
  const uint32_t lane = threadIdx.x & 31;
  float value[kEach];
  uint32_t key[kEach];
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) {
    const uint32_t expert = i * 32 + lane;
    value[i] = expert < experts ? load_l2(logits + expert) : 0;
    key[i] = expert < experts ? max(ordered(value[i]), 1u) : 0;
  }
  const float shared_gate = load_l2(logits + experts);
  float mine = 0;  // lane i: the i-th largest
  uint32_t id = 0;
  for (uint32_t rank = 0; rank < kTopK; ++rank) {
    uint32_t best = 0;
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      best = max(best, key[i]);
    }
    best = __reduce_max_sync(kAll, best);
    uint32_t index = ~0u;
    float at = 0;
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      if (key[i] == best && index == ~0u) {
        index = i * 32 + lane;
        at = value[i];
      }
    }
    const uint32_t lowest = __reduce_min_sync(kAll, index);
    at = __shfl_sync(kAll, at, lowest % 32);
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      if (i * 32 + lane == lowest) {
        key[i] = 0;
      }
    }
    if (lane == rank) {
      mine = at;
      id = lowest;
    }
  }
  const float largest = __shfl_sync(kAll, mine, 0);
  const float mass = __expf(mine - largest);
  float total = 0;
  uint32_t slot = 0;
  for (uint32_t i = 0; i < kTopK; ++i) {
    total += __shfl_sync(kAll, mass, i);
    slot += __shfl_sync(kAll, id, i) < id ? 1 : 0;
  }
  if (lane < kTopK) {
    r.ids[row][slot] = static_cast<int32_t>(id);
    r.weights[row][slot] = mass / total;
    atomicOr(&r.mask[id], 1u << row);
  } else if (lane == kTopK) {
    r.weights[row][kTopK] = sigmoid(shared_gate);
  }
}

// All threads of the block call; at least eight warps.
__device__ void route(Routing& r, const float* router, uint32_t ld, uint32_t experts, uint32_t rows) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  for (uint32_t i = threadIdx.x; i < kMostExperts; i += blockDim.x) {
    r.mask[i] = 0;
  }
  __syncthreads();
  if (warp < rows) {
    choose(r, router + size_t{warp} * ld, experts, warp);
  }
  __syncthreads();
  if (warp == 0) {
    uint32_t count = 0;
    for (uint32_t base = 0; base < experts; base += 32) {
      const bool chosen = r.mask[base + lane] != 0;
      const uint32_t ballot = __ballot_sync(kAll, chosen);
      if (chosen) {
        r.list[count + __popc(ballot & ((1u << lane) - 1))] = base + lane;
      }
      count += __popc(ballot);
    }
    if (lane == 0) {
      r.list[count] = experts;
      r.count = count + 1;
    }
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < r.count * kGroupRows; i += blockDim.x) {
    const uint32_t at = i / kGroupRows;
    const uint32_t row = i % kGroupRows;
    uint32_t slot = kAbsent;
    if (row < rows) {
      if (at + 1 == r.count) {
        slot = kTopK;
      } else {
        for (uint32_t k = 0; k < kTopK; ++k) {
          slot = r.ids[row][k] == static_cast<int32_t>(r.list[at]) ? k : slot;
        }
      }
    }
    r.slots[at][row] = static_cast<uint8_t>(slot);
    r.factors[at][row] = slot == kAbsent ? 0 : r.weights[row][slot];
  }
  __syncthreads();
}

__host__ __device__ inline uint32_t align128(uint32_t bytes) { return (bytes + 127) / 128 * 128; }
constexpr uint32_t kRoutingBytes = (sizeof(Routing) + 127) / 128 * 128;

// ---- gate_up --------------------------------------------------------------------------------------------
constexpr uint32_t kEnterWarps = 16;
constexpr uint32_t kPartBytes = 32 * 1024;
constexpr uint32_t kMostUnits = 8;

struct EnterLayout {
  uint32_t splits, groups, units;
  uint32_t routing, columns, sums, scales, part, total;
};
__host__ __device__ inline EnterLayout enter_layout(uint32_t ring, uint32_t k_tiles, uint32_t rows) {
  EnterLayout l;
  const uint32_t inputs = k_tiles * kTileCols;
  l.splits = k_tiles < kEnterWarps ? k_tiles : kEnterWarps;
  l.groups = kEnterWarps / l.splits;
  uint32_t units = kPartBytes / (l.splits * rows * kTileRows * 4);
  units = units > kMostUnits ? kMostUnits : units;
  l.units = units < l.groups ? l.groups : units / l.groups * l.groups;
  l.routing = ring;
  l.columns = l.routing + kRoutingBytes;
  l.sums = align128(l.columns + rows * column_stride(inputs));
  l.scales = l.sums + inputs / 32 * kGroupRows * 4;
  l.part = align128(l.scales + kGroupRows * 4);
  l.total = l.part + l.units * l.splits * rows * kTileRows * 4;
  return l;
}

// Units of a group of rows: the blocks of the shared expert, whose weights are known to be needed before the
// routing is, then those of the list.
struct Unit {
  uint32_t at;     // in the list
  uint32_t block;  // of 16 outputs: eight of gate, eight of up
};
__device__ __forceinline__ Unit unit_of(uint32_t index, uint32_t blocks, uint32_t count) {
  const uint32_t which = index / blocks;
  return {which == 0 ? count - 1 : which - 1, index % blocks};
}

// Units [first, first + count) of a block, whose partial results are complete.
struct Epoch {
  const float* part;
  const float* scales;
  uint32_t first, count;
};
__device__ __forceinline__ void finish_gate_up(const ExpertArgs& a, const Routing& r, const EnterLayout& l,
                                               uint32_t rows, const Epoch& epoch) {
  const float* const part = epoch.part;
  const float* const scales = epoch.scales;
  const uint32_t unit0 = epoch.first;
  const uint32_t count = epoch.count;
  const uint32_t first_row = blockIdx.y * kGroupRows;
  const uint32_t work = count * rows * 8;
  const uint32_t ffn = a.dims.ffn;
  for (uint32_t i = threadIdx.x; i < (work + 31) / 32 * 32; i += blockDim.x) {
    const uint32_t j = i % 8;
    const uint32_t row = i / 8 % rows;
    const uint32_t u = i / 8 / rows;
    float h = 0;
    size_t use = 0;
    uint32_t block = 0;
    bool active = false;
    if (i < work) {
      const Unit unit = unit_of(blockIdx.x + (unit0 + u) * gridDim.x, a.w.row_blocks, r.count);
      const uint32_t slot = r.slots[unit.at][row];
      block = unit.block;
      if (slot != kAbsent) {
        active = true;
        use = size_t{first_row + row} * kUses + slot;
        const float* of_unit = part + size_t{u} * l.splits * rows * kTileRows;
        const float gate = scales[row] * sum_partials(of_unit, l.splits, rows, row, j);
        const float up = scales[row] * sum_partials(of_unit, l.splits, rows, row, j + 8);
        const uint16_t bits = to_bf16(silu(gate) * up);
        h = from_bf16(bits);
        a.h[use * ffn + fragment_position(block * 8 + j)] = bits;
      }
    }
    const float sum = sum_lanes<8>(h);
    if (active && j == 0) {
      a.h_sums[use * (ffn / 8) + block] = sum;
    }
  }
}

template <class F, int kTiles>
__global__ void __launch_bounds__(kEnterWarps * 32) gate_up_kernel(ExpertArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr uint32_t kStage = kTiles * F::kTileBytes;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t first_row = blockIdx.y * kGroupRows;
  const uint32_t rows = min(a.rows - first_row, static_cast<uint32_t>(kGroupRows));
  const uint32_t inputs = a.w.k_tiles * kTileCols;
  const EnterLayout l = enter_layout(kEnterWarps * a.stages * kStage, a.w.k_tiles, rows);
  const uint32_t s = warp % l.splits;
  const uint32_t group = warp / l.splits;
  Routing& r = *reinterpret_cast<Routing*>(shared + l.routing);

  Ring<kStage> ring{shared + warp * a.stages * kStage, a.stages, lane};
  const uint8_t* const own = a.w.tiles + size_t{s} * kTiles * F::kTileBytes;
  const size_t block_bytes = size_t{a.w.k_tiles} * F::kTileBytes;
  // The first unit of a block of threads may be the shared expert's.
  const bool early = blockIdx.x + group * gridDim.x < a.w.row_blocks;
  if (early) {
    ring.fetch(own + a.dims.experts * a.w.matrix_bytes + (blockIdx.x + group * gridDim.x) * block_bytes);
  }

  float* const sums = reinterpret_cast<float*>(shared + l.sums);
  clear_sums(sums, inputs);
  wait_for_predecessors();
  start_successors();  // down may read the logits before its own wait: they are complete now
  float* const scales = reinterpret_cast<float*>(shared + l.scales);
  float* const part = reinterpret_cast<float*>(shared + l.part);
  route(r, a.router + size_t{first_row} * a.ld_router, a.ld_router, a.dims.experts, rows);
  const uint32_t all = r.count * a.w.row_blocks;
  const uint32_t units = blockIdx.x < all ? (all - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
  const auto address = [&](uint32_t i) -> const uint8_t* {
    if (i >= units) {
      return nullptr;
    }
    const Unit unit = unit_of(blockIdx.x + i * gridDim.x, a.w.row_blocks, r.count);
    return own + r.list[unit.at] * a.w.matrix_bytes + unit.block * block_bytes;
  };
  uint32_t fetched = group + (early ? l.groups : 0);
  for (uint32_t i = early ? 1 : 0; i < a.stages; ++i, fetched += l.groups) {
    ring.fetch(address(fetched));
  }
  const size_t parts = size_t{first_row} * (inputs / kFeedBlock);
  load_columns(team_of(0, 9), shared + l.columns, a.feed.x + size_t{first_row} * inputs, inputs, rows);
  load_sums(team_of(9, 4), sums, a.feed.sums + parts, inputs, rows);
  load_row_scales(team_of(13, 3), scales, a.feed.squares + parts, inputs, rows);
  if (blockIdx.x == 0) {
    for (uint32_t e = threadIdx.x; e < a.dims.experts; e += blockDim.x) {
      if (r.mask[e] != 0) {
        atomicOr(a.experts_used + e / 32, 1u << (e % 32));
      }
    }
  }
  __syncthreads();

  const uint8_t* const column = shared + l.columns + (lane >> 2) * column_stride(inputs);
  const bool present = (lane >> 2) < rows;
  for (uint32_t unit0 = 0; unit0 < units; unit0 += l.units) {
    const uint32_t count = min(l.units, units - unit0);
    for (uint32_t u = group; u < count; u += l.groups) {
      const uint8_t* stage = ring.wait();
      float f[4] = {};
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const uint32_t tile = s * kTiles + i;
        add_tile<F, false>(f, stage + i * F::kTileBytes, load_column(column, tile, lane, present),
                           load_half_sums(sums, tile, lane), make_float2(1, 1), lane);
      }
      ring.release();
      ring.fetch(address(fetched));
      fetched += l.groups;
      store_partial(part + size_t{u} * l.splits * rows * kTileRows, s, rows, f, lane);
    }
    __syncthreads();
    finish_gate_up(a, r, l, rows, {part, scales, unit0, count});
    __syncthreads();
  }
  wait_copies<0>();
}

// ---- down -----------------------------------------------------------------------------------------------
constexpr uint32_t kLeaveWarps = 8;

struct LeaveLayout {
  uint32_t routing, columns, sums, part, total;
};
__host__ __device__ inline LeaveLayout leave_layout(uint32_t ring, uint32_t k_tiles, uint32_t rows) {
  LeaveLayout l;
  const uint32_t inputs = k_tiles * kTileCols;
  l.routing = ring;
  l.columns = l.routing + kRoutingBytes;
  l.sums = align128(l.columns + rows * kUses * column_stride(inputs));
  l.part = align128(l.sums + rows * kUses * (inputs / 32) * 4);
  l.total = l.part + kLeaveWarps * rows * kTileRows * 4;
  return l;
}

// Inputs of all uses of the group, and their sums over half tiles: [use][inputs / 32].
__device__ __forceinline__ void load_uses(uint8_t* columns, float* sums, const ExpertArgs& a,
                                          uint32_t first_row, uint32_t rows) {
  const uint32_t ffn = a.dims.ffn;
  load_columns(team_of(0, 6), columns, a.h + size_t{first_row} * kUses * ffn, ffn, rows * kUses);
  const uint32_t halves = ffn / 32;
  const Team team = team_of(6, 2);
  if (team.thread >= team.threads) {
    return;
  }
  const float4* from = reinterpret_cast<const float4*>(a.h_sums + size_t{first_row} * kUses * (ffn / 8));
#pragma unroll 4
  for (uint32_t i = team.thread; i < rows * kUses * halves; i += team.threads) {
    const float4 four = load_l2(from + i);
    sums[i] = (four.x + four.y) + (four.z + four.w);
  }
}

template <class F>
__global__ void __launch_bounds__(kLeaveWarps * 32) down_kernel(ExpertArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t first_row = blockIdx.y * kGroupRows;
  const uint32_t rows = min(a.rows - first_row, static_cast<uint32_t>(kGroupRows));
  const uint32_t splits = min(a.w.k_tiles, kLeaveWarps);  // one tile a warp
  const uint32_t inputs = a.w.k_tiles * kTileCols;
  const LeaveLayout l = leave_layout(kLeaveWarps * a.stages * F::kTileBytes, a.w.k_tiles, rows);
  Routing& r = *reinterpret_cast<Routing*>(shared + l.routing);
  const bool works = warp < splits;

  start_successors();
  // gate_up waited for the router before it let this kernel start: the logits are complete.
  route(r, a.router + size_t{first_row} * a.ld_router, a.ld_router, a.dims.experts, rows);
  Ring<F::kTileBytes> ring{shared + warp * a.stages * F::kTileBytes, a.stages, lane};
  const uint8_t* const own = a.w.tiles + (size_t{blockIdx.x} * a.w.k_tiles + warp) * F::kTileBytes;
  const auto address = [&](uint32_t i) -> const uint8_t* {
    return works && i < r.count ? own + r.list[i] * a.w.matrix_bytes : nullptr;
  };
  for (uint32_t i = 0; i < a.stages; ++i) {
    ring.fetch(address(i));
  }

  wait_for_predecessors();
  uint8_t* const columns = shared + l.columns;
  float* const sums = reinterpret_cast<float*>(shared + l.sums);
  float* const part = reinterpret_cast<float*>(shared + l.part);
  load_uses(columns, sums, a, first_row, rows);
  Element early = {0, 0};
  if (threadIdx.x < rows * kTileRows) {
    early = load_element(a.to, first_row + threadIdx.x / kTileRows,
                         blockIdx.x * kTileRows + threadIdx.x % kTileRows);
  }
  __syncthreads();

  float f[4] = {};
  const uint32_t n = lane >> 2;
  const uint32_t c0 = (lane & 3) * 2;
  if (works) {
    for (uint32_t i = 0; i < r.count; ++i) {
      const uint8_t* stage = ring.wait();
      const uint32_t slot = r.slots[i][n];
      const Column column =
          load_column(columns + (n * kUses + slot) * column_stride(inputs), warp, lane, slot != kAbsent);
      HalfSums half = {};
      const uint32_t s0 = r.slots[i][c0];
      const uint32_t s1 = r.slots[i][c0 + 1];
      if (s0 != kAbsent) {
        const float* from = sums + (c0 * kUses + s0) * (inputs / 32) + warp * 2;
        half.half[0].x = from[0], half.half[1].x = from[1];
      }
      if (s1 != kAbsent) {
        const float* from = sums + ((c0 + 1) * kUses + s1) * (inputs / 32) + warp * 2;
        half.half[0].y = from[0], half.half[1].y = from[1];
      }
      add_tile<F, true>(f, stage, column, half, make_float2(r.factors[i][c0], r.factors[i][c0 + 1]), lane);
      ring.release();
      ring.fetch(address(i + a.stages));
    }
    store_partial(part, warp, rows, f, lane);
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < (rows * kTileRows + 31) / 32 * 32; i += blockDim.x) {
    const bool active = i < rows * kTileRows;
    const uint32_t output = i % kTileRows;
    const uint32_t row = i / kTileRows;
    const float value = active ? sum_partials(part, splits, rows, row, output) : 0;
    add_to_stream(a.to, first_row + row, blockIdx.x * kTileRows + output, value, active, early);
  }
  wait_copies<0>();
}

using Kernel = void (*)(ExpertArgs);

int launch(Kernel kernel, uint32_t threads, const ExpertArgs& args, Stream queue) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(args.blocks, (args.rows + kGroupRows - 1) / kGroupRows);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = args.shared;
  config.stream = queue;
  return launch_dependent(kernel, config, args);
}

template <class F>
Kernel gate_up_of(uint32_t k_tiles) {
  return k_tiles <= kEnterWarps ? gate_up_kernel<F, 1> : gate_up_kernel<F, 2>;
}

template <class F>
int allow(uint32_t bytes) {
  const Kernel kernels[] = {gate_up_of<F>(1), gate_up_of<F>(32), down_kernel<F>};
  for (const Kernel kernel : kernels) {
    if (const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(bytes));
        e != cudaSuccess) {
      return e;
    }
  }
  return 0;
}

}  // namespace

uint32_t gate_up_shared_bytes(const PackedMatrix& w, uint32_t stages, uint32_t rows) {
  const uint32_t tiles = w.k_tiles <= kEnterWarps ? 1 : 2;
  return enter_layout(kEnterWarps * stages * tiles * w.tile_bytes, w.k_tiles,
                      rows < kGroupRows ? rows : kGroupRows)
      .total;
}

uint32_t down_shared_bytes(const PackedMatrix& w, uint32_t stages, uint32_t rows) {
  return leave_layout(kLeaveWarps * stages * w.tile_bytes, w.k_tiles, rows < kGroupRows ? rows : kGroupRows)
      .total;
}

int allow_shared_memory_experts(uint32_t bytes) {
  int e = allow<Format<1, false>>(bytes);
  e = e != 0 ? e : allow<Format<1, true>>(bytes);
  e = e != 0 ? e : allow<Format<2, false>>(bytes);
  return e != 0 ? e : allow<Format<2, true>>(bytes);
}

int launch_gate_up(const ExpertArgs& args, Stream queue) {
  const uint32_t k = args.w.k_tiles;
  if ((k != 4 && k != 16 && k != 32) || args.dims.experts > kMostExperts) {
    return cudaErrorInvalidValue;
  }
  return with_format(args.w,
                     [&]<class F>() { return launch(gate_up_of<F>(k), kEnterWarps * 32, args, queue); });
}

int launch_down(const ExpertArgs& args, Stream queue) {
  if (args.w.k_tiles > kLeaveWarps || args.dims.experts > kMostExperts) {
    return cudaErrorInvalidValue;
  }
  return with_format(args.w,
                     [&]<class F>() { return launch(down_kernel<F>, kLeaveWarps * 32, args, queue); });
}

}  // namespace lily::cuda
