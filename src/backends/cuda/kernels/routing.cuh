// Which experts a few rows go to, in shared memory: worked out by every block of gate_up from the router's
// logits, which costs less than a kernel, or a last block, that everyone would have to wait for. One block
// publishes it for down.
#pragma once

#include <stddef.h>

#include "backends/cuda/kernels/common.cuh"
#include "backends/cuda/kernels/decode.h"

namespace lily::cuda {

inline constexpr uint32_t kMostExperts = 256;
inline constexpr uint32_t kAbsent = 0xff;
inline constexpr uint32_t kSharedEntries = kSmallRows / kGroupRows;
inline constexpr uint32_t kMostEntries = kSharedEntries + kSmallRows * kTopK;

// An expert and up to kGroupRows of the rows that chose it: the columns of its products.
struct Entry {
  uint32_t expert;
  uint8_t rows[kGroupRows];   // ascending, or kAbsent
  uint8_t slots[kGroupRows];  // the expert's place among those of the row, or kAbsent
};

struct Routing {
  uint32_t count;   // of entries
  uint32_t shared;  // the first of them are of the shared expert, the rest in ascending order
  float weights[kSmallRows][kUses];  // in a row's sum, by slot: ascending experts, then the shared one
  Entry entries[kMostEntries];
  // What only those need who work it out.
  uint8_t ids[kSmallRows][kTopK];  // ascending
  uint32_t mask[kMostExperts];     // rows that chose the expert
  uint16_t first[kMostExperts];    // its first entry
  uint32_t warp_entries[kMostExperts / 32];
};
constexpr uint32_t kRoutingBytes = (sizeof(Routing) + 127) / 128 * 128;
constexpr uint32_t kReadRoutingBytes = (offsetof(Routing, ids) + 127) / 128 * 128;  // what a reader needs
static_assert(kReadRoutingBytes <= kPublishedBytes);

// Order of floats as unsigned integers, and back.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));  // -0 is 0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// Logits of a row: eight experts in a row to a lane, and the gate of the shared expert.
struct Logits {
  static constexpr uint32_t kEach = kMostExperts / 32;
  float4 low, high;
  float gate;
  template <bool kRelayed>
  __device__ __forceinline__ void load(const float* logits, uint32_t experts) {
    const uint32_t first = min((threadIdx.x & 31) * kEach, experts - kEach);
    low = read<kRelayed>(reinterpret_cast<const float4*>(logits + first));
    high = read<kRelayed>(reinterpret_cast<const float4*>(logits + first) + 1);
    gate = read<kRelayed>(logits + experts);
  }
  __device__ __forceinline__ bool missing() const {
    return unwritten(low) || unwritten(high) || unwritten(gate);
  }
};

// The kTopK largest logits of a row, equal ones by lower index. Lane i < kTopK gets the i-th largest.
struct Chosen {
  float logit;
  uint32_t expert;
};
__device__ __forceinline__ Chosen choose(const Logits& logits, uint32_t experts) {
  constexpr uint32_t kEach = Logits::kEach;
  const uint32_t lane = threadIdx.x & 31;
  const float values[kEach] = {logits.low.x,  logits.low.y,  logits.low.z,  logits.low.w,
                               logits.high.x, logits.high.y, logits.high.z, logits.high.w};
  // Descending in each lane: an odd-even sort, which never swaps equal ones.
  uint32_t key[kEach];
  uint32_t id[kEach];
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) {
    key[i] = lane * kEach < experts ? max(ordered(values[i]), 1u) : 0;
    id[i] = lane * kEach + i;
  }
#pragma unroll
  for (uint32_t round = 0; round < kEach; ++round) {
#pragma unroll
    for (uint32_t i = round % 2; i + 1 < kEach; i += 2) {
      const bool swap = key[i] < key[i + 1];
      const uint32_t k = key[i];
      const uint32_t d = id[i];
      key[i] = swap ? key[i + 1] : k;
      id[i] = swap ? id[i + 1] : d;
      key[i + 1] = swap ? k : key[i + 1];
      id[i + 1] = swap ? d : id[i + 1];
    }
  }
  Chosen mine = {0, 0};
#pragma unroll
  for (uint32_t rank = 0; rank < kTopK; ++rank) {
    const uint32_t best = __reduce_max_sync(kAll, key[0]);
    const uint32_t winner = __ffs(static_cast<int>(__ballot_sync(kAll, key[0] == best))) - 1;
    const uint32_t expert = __shfl_sync(kAll, id[0], winner);
    if (lane == rank) {
      mine = {from_ordered(best), expert};
    }
    const bool pop = lane == winner;
#pragma unroll
    for (uint32_t i = 0; i + 1 < kEach; ++i) {
      key[i] = pop ? key[i + 1] : key[i];
      id[i] = pop ? id[i + 1] : id[i];
    }
    key[kEach - 1] = pop ? 0 : key[kEach - 1];
  }
  return mine;
}

// One warp: the experts of `row` and their weights; with one row the entries, too.
__device__ __forceinline__ void route_row(Routing& r, const Logits& logits, uint32_t experts, uint32_t row,
                                          uint32_t rows) {
  const uint32_t lane = threadIdx.x & 31;
  const Chosen mine = choose(logits, experts);
  const float mass = __expf(mine.logit - __shfl_sync(kAll, mine.logit, 0));
  float total = 0;
  uint32_t slot = 0;
#pragma unroll
  for (uint32_t i = 0; i < kTopK; ++i) {
    total += __shfl_sync(kAll, mass, i);
    slot += __shfl_sync(kAll, mine.expert, i) < mine.expert ? 1 : 0;
  }
  if (lane < kTopK) {
    r.weights[row][slot] = mass / total;
    r.ids[row][slot] = static_cast<uint8_t>(mine.expert);
    if (rows > 1) {
      atomicOr(&r.mask[mine.expert], 1u << row);
    } else {
      r.entries[slot + 1].expert = mine.expert;
      r.entries[slot + 1].rows[0] = 0;
      r.entries[slot + 1].slots[0] = static_cast<uint8_t>(slot);
    }
  } else if (lane == kTopK) {
    r.weights[row][kTopK] = sigmoid(logits.gate);
  }
}

// What does not depend on the logits. All threads of the block call.
__device__ __forceinline__ void prepare_routing(Routing& r, uint32_t experts, uint32_t rows) {
  const uint32_t shared = (rows + kGroupRows - 1) / kGroupRows;
  const uint32_t entries = shared + rows * kTopK;
  for (uint32_t i = threadIdx.x; i < kMostExperts; i += blockDim.x) {
    r.mask[i] = 0;
  }
  for (uint32_t i = threadIdx.x; i < entries * kGroupRows; i += blockDim.x) {
    const uint32_t row = i;  // of the shared expert
    const bool present = i < shared * kGroupRows && row < rows;
    Entry& entry = r.entries[i / kGroupRows];
    entry.rows[i % kGroupRows] = static_cast<uint8_t>(present ? row : kAbsent);
    entry.slots[i % kGroupRows] = static_cast<uint8_t>(present ? kTopK : kAbsent);
    if (i < shared * kGroupRows) {
      entry.expert = experts;
    }
  }
  if (threadIdx.x == 0) {
    r.shared = shared;
    r.count = entries;  // of one row; else counted below
  }
}

// Entries of several rows, from the masks. All threads of the block call, at least kMostExperts of them.
__device__ __forceinline__ void list_entries(Routing& r, uint32_t rows) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  uint32_t own = 0;
  uint32_t before = 0;
  if (threadIdx.x < kMostExperts) {
    own = (__popc(r.mask[threadIdx.x]) + kGroupRows - 1) / kGroupRows;
    before = own;
#pragma unroll
    for (uint32_t offset = 1; offset < 32; offset *= 2) {
      const uint32_t other = __shfl_up_sync(kAll, before, offset);
      before += lane >= offset ? other : 0;
    }
    if (lane == 31) {
      r.warp_entries[warp] = before;
    }
    before -= own;
  }
  __syncthreads();
  if (threadIdx.x < kMostExperts) {
    uint32_t first = r.shared + before;
    for (uint32_t w = 0; w < warp; ++w) {
      first += r.warp_entries[w];
    }
    r.first[threadIdx.x] = static_cast<uint16_t>(first);
    for (uint32_t i = 0; i < own; ++i) {
      r.entries[first + i].expert = threadIdx.x;
    }
    if (threadIdx.x == kMostExperts - 1) {
      r.count = first + own;
    }
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < rows * kTopK; i += blockDim.x) {
    const uint32_t row = i / kTopK;
    const uint32_t expert = r.ids[row][i % kTopK];
    const uint32_t rank = __popc(r.mask[expert] & ((1u << row) - 1));
    Entry& entry = r.entries[r.first[expert] + rank / kGroupRows];
    entry.rows[rank % kGroupRows] = static_cast<uint8_t>(row);
    entry.slots[rank % kGroupRows] = static_cast<uint8_t>(i % kTopK);
  }
}

// The first `warps` warps of the block call after prepare_routing() and a barrier.
template <bool kRelayed>
__device__ __forceinline__ void route_rows(Routing& r, const float* router, uint32_t ld, uint32_t experts,
                                           uint32_t rows, uint32_t warps) {
#pragma unroll 1
  for (uint32_t row = threadIdx.x / 32; row < rows; row += warps) {
    Logits logits;
    do {
      logits.load<kRelayed>(router + size_t{row} * ld, experts);
    } while (kRelayed && any_lane(logits.missing()));
    route_row(r, logits, experts, row, rows);
  }
}

// Word `index` of those that are published: before the entries, and the entries that there may be. ~0 behind
// the last.
__device__ __forceinline__ uint32_t published_word(uint32_t rows, uint32_t index) {
  constexpr uint32_t kHead = offsetof(Routing, entries) / 4;
  const uint32_t head = 2 + rows * kUses;
  const uint32_t entries = ((rows + kGroupRows - 1) / kGroupRows + rows * kTopK) * (sizeof(Entry) / 4);
  return index < head ? index : index - head < entries ? kHead + index - head : ~0u;
}

__device__ __forceinline__ float published_weight(const Published& from, uint32_t row, uint32_t slot) {
  static_assert(offsetof(Routing, weights) == 8);
  return __uint_as_float(load_l2(from.words + 2 + row * kUses + slot));
}

// All threads of one block of gate_up: the routing to memory, then the mark that it is there.
__device__ __forceinline__ void publish_routing(const Routing& r, const Published& to, uint32_t rows) {
  for (uint32_t i = threadIdx.x; published_word(rows, i) != ~0u; i += blockDim.x) {
    const uint32_t word = published_word(rows, i);
    to.words[word] = reinterpret_cast<const uint32_t*>(&r)[word];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    release_mark(to.mark, to.tag);
  }
}
// All threads of a block of down, which begins when all blocks of gate_up are at work: the mark will come.
__device__ __forceinline__ void read_routing(Routing& r, const Published& from, uint32_t rows) {
  if (threadIdx.x == 0) {
    uint32_t mark = 0;
    do {
      mark = acquire_mark(from.mark);
    } while (mark != from.tag);
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; published_word(rows, i) != ~0u; i += blockDim.x) {
    const uint32_t word = published_word(rows, i);
    reinterpret_cast<uint32_t*>(&r)[word] = load_l2(from.words + word);
  }
  __syncthreads();
}

}  // namespace lily::cuda
