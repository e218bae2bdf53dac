// What src/backends/cuda/kernels/machine.cuh asks of the machine, done on the emulated grid.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <vector>

#include "backends/cuda/kernel_args.h"

namespace lily::cuda {

inline constexpr unsigned kAll = 0xffffffffu;

inline void wait_for_predecessors() {}
inline void start_successors() {}

// ---- Asynchronous copies: they arrive when they are waited for -------------------------------------------
inline void copy_or_clear(void* to, const void* from, bool present) {
  std::memset(to, 0xff, 16);
  emulator::self().open.push_back(
      {static_cast<uint8_t*>(to), present ? static_cast<const uint8_t*>(from) : nullptr, 16});
}
inline void copy_async(void* to, const void* from) { copy_or_clear(to, from, true); }
inline void commit_copies() {
  emulator::Thread& thread = emulator::self();
  thread.groups.push_back(std::move(thread.open));
  thread.open.clear();
}
template <int kPending>
void wait_copies() {
  auto& groups = emulator::self().groups;
  while (groups.size() > kPending) {
    for (const emulator::AsyncCopy& copy : groups.front()) {
      if (copy.from == nullptr) {
        std::memset(copy.to, 0, copy.bytes);
      } else {
        std::memcpy(copy.to, copy.from, copy.bytes);
      }
    }
    groups.erase(groups.begin());
  }
}

// ---- Barriers in shared memory --------------------------------------------------------------------------
inline void init_copy_barrier(uint64_t* barrier) { emulator::self().grid->barrier(barrier) = {}; }
inline void copy_pieces(uint8_t* to, const uint8_t* from, uint32_t pieces, uint32_t bytes, uint64_t stride,
                        uint64_t* barrier, uint32_t lane) {
  emulator::Grid& grid = *emulator::self().grid;
  emulator::Met(emulator::kPieces, nullptr, 0);  // nobody reads the place any more
  if (lane == 0) {
    grid.arrive(grid.barrier(barrier), int64_t{pieces} * bytes);
  }
  emulator::Met(emulator::kPieces, nullptr, 0);
  if (lane < pieces) {
    grid.copy_later({to + lane * bytes, from + lane * stride, bytes}, grid.barrier(barrier));
  }
}
inline void copy_rows(uint8_t* to, uint32_t stride, const uint8_t* from, uint32_t rows, uint32_t bytes,
                      uint64_t* barrier, uint32_t lane) {
  emulator::Grid& grid = *emulator::self().grid;
  emulator::Met(emulator::kPieces, nullptr, 0);
  if (lane == 0) {
    grid.arrive(grid.barrier(barrier), int64_t{rows} * bytes);
  }
  emulator::Met(emulator::kPieces, nullptr, 0);
  if (lane < rows) {
    grid.copy_later({to + lane * stride, from, bytes}, grid.barrier(barrier));
  }
}
template <uint32_t kBytes>
void copy_block(uint8_t* to, const uint8_t* from, uint64_t* barrier, uint32_t lane) {
  copy_pieces(to, from, 1, kBytes, 0, barrier, lane);
}
template <uint32_t kBytes>
void store_block(uint8_t* to, const uint8_t* from, uint32_t lane) {
  emulator::Met(emulator::kPieces, nullptr, 0);  // all lanes have written
  if (lane == 0) {
    emulator::self().grid->store_block_later({to, from, kBytes}, emulator::self());
  }
}
inline void wait_stores() {
  emulator::Thread& thread = emulator::self();
  thread.grid->wait_until([&] { return thread.stores == 0; });
  __syncwarp();
}
inline void finish_stores() { wait_stores(); }
inline void wait_barrier(uint64_t* barrier, uint32_t parity) {
  emulator::Grid& grid = *emulator::self().grid;
  emulator::CopyBarrier& of = grid.barrier(barrier);
  grid.wait_until([&] { return (of.phases & 1) != parity; });
}

// ---- Memory ---------------------------------------------------------------------------------------------
template <class T>
T load_l2(const T* p) {
  return *p;
}
inline void release_mark(uint32_t* mark, uint32_t tag) { *mark = tag; }
inline uint32_t acquire_mark(const uint32_t* mark) { return *mark; }

// ---- Values that a kernel at work hands to the next: here kernels run one after the other -----------------
inline constexpr uint32_t kUnwritten = 0xffffffffu;
template <class T>
void hand_on(T* to, T value) {
  *to = value;
}
template <class T>
T peek(const T* p) {
  return *p;
}
inline bool unwritten(uint32_t v) { return v == kUnwritten; }
inline bool unwritten(float v) { return __float_as_uint(v) == kUnwritten; }
inline bool unwritten(const uint4& v) {
  return unwritten(v.x) || unwritten(v.y) || unwritten(v.z) || unwritten(v.w);
}
inline bool unwritten(const float4& v) {
  return unwritten(v.x) || unwritten(v.y) || unwritten(v.z) || unwritten(v.w);
}
inline bool any_lane(bool missing) { return __any_sync(kAll, missing) != 0; }
inline void count_one(uint32_t* count) { ++*count; }
inline void unwrite(const UnwriteArgs& a, uint32_t block, uint32_t) {
  if (block == 0 && threadIdx.x == 0) {
    std::memset(a.memory, 0xff, a.bytes);
  }
}
inline void copy_host(const HostCopyArgs& a) {
  if (threadIdx.x == 0) {
    std::memcpy(a.to, a.from, a.bytes);
  }
}
template <bool kRelayed, class T>
T read(const T* p) {
  return *p;
}
template <bool kRelayed, class T>
void write(T* to, T value) {
  *to = value;
}

// ---- The block ------------------------------------------------------------------------------------------
inline uint8_t* dynamic_shared() {
  uint8_t* const bytes = emulator::self().block->shared.data();
  return bytes + (128 - reinterpret_cast<uintptr_t>(bytes) % 128) % 128;
}
template <uint32_t kId, uint32_t kThreads>
struct GroupSync {
  void operator()() const { emulator::sync_threads(kId, kThreads); }
};
template <uint32_t kThreads>
void sync_team(uint32_t team) {
  if constexpr (kThreads == 32) {
    __syncwarp();
  } else {
    emulator::sync_threads(team + 1, kThreads);
  }
}

// ---- Tensor instructions --------------------------------------------------------------------------------
inline float bf16_of(uint32_t pair, uint32_t which) {
  return __uint_as_float(which == 0 ? pair << 16 : pair & 0xffff0000u);
}
// Sums in double, rounded once: no device adds in this order, none is far from it.
inline void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  const uint32_t words[6] = {a0, a1, a2, a3, b0, b1};
  const emulator::Met met(emulator::kMultiply, words, 6);
  const uint32_t lane = threadIdx.x & 31;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t row = (lane >> 2) + i / 2 * 8;
    const uint32_t column = (lane & 3) * 2 + i % 2;
    double sum = c[i];
    for (uint32_t k = 0; k < 16; ++k) {
      const uint32_t a = met.get((row & 7) * 4 + (k & 7) / 2, (row >> 3) + (k >> 3) * 2);
      const uint32_t b = met.get(column * 4 + (k & 7) / 2, 4 + (k >> 3));
      sum += double{bf16_of(a, k & 1)} * bf16_of(b, k & 1);
    }
    c[i] = static_cast<float>(sum);
  }
}
inline uint32_t widen(uint32_t word) { return (word & 0x000f000fu) | 0x43004300u; }
inline uint16_t element(const emulator::Met& met, uint32_t matrix, uint32_t row, uint32_t column) {
  const uint32_t lane = matrix * 8 + row;
  const uint64_t address = met.get(lane, 0) | static_cast<uint64_t>(met.get(lane, 1)) << 32;
  return reinterpret_cast<const uint16_t*>(address)[column];
}
inline emulator::Met meet_rows(const void* row) {
  const auto address = reinterpret_cast<uint64_t>(row);
  const uint32_t words[2] = {static_cast<uint32_t>(address), static_cast<uint32_t>(address >> 32)};
  return {emulator::kMatrices, words, 2};
}
inline void load_matrices(uint32_t (&r)[4], const void* row) {
  const emulator::Met met = meet_rows(row);
  const uint32_t lane = threadIdx.x & 31;
  for (uint32_t i = 0; i < 4; ++i) {
    r[i] = element(met, i, lane >> 2, (lane & 3) * 2) | element(met, i, lane >> 2, (lane & 3) * 2 + 1) << 16;
  }
}
inline void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  const emulator::Met met = meet_rows(row);
  const uint32_t lane = threadIdx.x & 31;
  for (uint32_t i = 0; i < 4; ++i) {
    r[i] = element(met, i, (lane & 3) * 2, lane >> 2) | element(met, i, (lane & 3) * 2 + 1, lane >> 2) << 16;
  }
}
inline uint32_t transpose_matrix(uint32_t r) {
  const emulator::Met met(emulator::kTranspose, &r, 1);
  const uint32_t g = (threadIdx.x & 31) >> 2;
  const uint32_t t = threadIdx.x & 3;
  const auto at = [&](uint32_t row) { return met.get(row * 4 + g / 2) >> (g % 2 * 16) & 0xffffu; };
  return at(2 * t) | at(2 * t + 1) << 16;
}

}  // namespace lily::cuda
