// What kernels ask of the machine beyond CUDA C++: dependent launch, copies to shared memory and their
// barriers, loads past L1, tensor instructions. Nothing else holds instructions of the machine, so that this
// file alone must be written anew for kernels to run anywhere else.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backends/cuda/kernel_args.h"

namespace lily::cuda {

inline constexpr unsigned kAll = 0xffffffffu;

// ---- Programmatic dependent launch ----------------------------------------------------------------------
// A kernel lets the next one start at once, fetches what does not depend on the kernels before it (weights,
// states of earlier passes), and then waits for them, and so for all kernels before those. What a kernel of
// the same pass writes cannot be relied on before that wait. There are two exceptions: the routing, which
// gate_up publishes while it is at work (routing.cuh), and relayed kernels (below).
__device__ __forceinline__ void wait_for_predecessors() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void start_successors() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// ---- Asynchronous copies to shared memory ---------------------------------------------------------------
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void copy_async(void* to, const void* from) {  // 16 bytes, past L1
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// The same, or zeros where the bytes are not there.
__device__ __forceinline__ void copy_or_clear(void* to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(present ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// ---- Barriers in shared memory, and the copies that complete them ----------------------------------------
// A warp copies to shared memory and waits for it by a barrier: where the device can, one thread starts one
// copy of the whole block.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
inline constexpr uint32_t kCopyArrivals = 1;
#else
inline constexpr uint32_t kCopyArrivals = 32;
#endif
// To be used by copy_block(); the warp must pass a __syncwarp() before it does.
__device__ __forceinline__ void init_copy_barrier(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(kCopyArrivals)
               : "memory");
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// One warp; kBytes is a multiple of 16.
template <uint32_t kBytes>
__device__ __forceinline__ void copy_block(uint8_t* to, const uint8_t* from, uint64_t* barrier,
                                           uint32_t lane) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(kBytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)),
        "l"(from), "r"(kBytes), "r"(shared_address(barrier))
        : "memory");
  }
#else
#pragma unroll
  for (uint32_t at = 0; at < kBytes; at += 512) {
    if (at + 512 <= kBytes || at + lane * 16 < kBytes) {
      copy_async(to + at + lane * 16, from + at + lane * 16);
    }
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
#endif
}
// One warp: `pieces` blocks of `bytes` bytes, `stride` bytes apart, one after the other in shared memory.
__device__ __forceinline__ void copy_pieces(uint8_t* to, const uint8_t* from, uint32_t pieces, uint32_t bytes,
                                            uint64_t stride, uint64_t* barrier, uint32_t lane) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(pieces * bytes)
                 : "memory");
  }
  __syncwarp();
  if (lane < pieces) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to + lane * bytes)),
        "l"(from + lane * stride), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
  }
#else
  for (uint32_t piece = 0; piece < pieces; ++piece) {
    for (uint32_t at = lane * 16; at < bytes; at += 512) {
      copy_async(to + piece * bytes + at, from + piece * stride + at);
    }
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
#endif
}
// One warp: `rows` blocks of `bytes` bytes to places `stride` bytes apart; lane i < rows says where the i-th
// comes from.
__device__ __forceinline__ void copy_rows(uint8_t* to, uint32_t stride, const uint8_t* from, uint32_t rows,
                                          uint32_t bytes, uint64_t* barrier, uint32_t lane) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(rows * bytes)
                 : "memory");
  }
  __syncwarp();
  if (lane < rows) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to + lane * stride)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
  }
#else
  for (uint32_t row = 0; row < rows; ++row) {
    const uint64_t of = __shfl_sync(kAll, reinterpret_cast<uint64_t>(from), row);
    for (uint32_t at = lane * 16; at < bytes; at += 512) {
      copy_async(to + row * stride + at, reinterpret_cast<const uint8_t*>(of) + at);
    }
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
#endif
}
// One warp: kBytes that its lanes have written to shared memory, to where a kernel after this one reads them.
// They must stay as they are until wait_stores().
template <uint32_t kBytes>
__device__ __forceinline__ void store_block(uint8_t* to, const uint8_t* from, uint32_t lane) {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
  if (lane == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(from)), "r"(kBytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
#else
  __syncwarp();
#pragma unroll
  for (uint32_t at = lane * 16; at < kBytes; at += 512) {
    *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(from + at);
  }
#endif
}
// The warp may write again where the blocks that it has stored came from.
__device__ __forceinline__ void wait_stores() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // nothing to wait for but in lane 0
#endif
  __syncwarp();
}
// Before a warp that has stored blocks ends: they have arrived.
__device__ __forceinline__ void finish_stores() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_barrier(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
#if __CUDA_ARCH__ >= 900
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#else
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#endif
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// ---- Loads of what another kernel has written: past L1, which may hold older bytes -----------------------
__device__ __forceinline__ uint4 load_l2(const uint4* p) { return __ldcg(p); }
__device__ __forceinline__ float4 load_l2(const float4* p) { return __ldcg(p); }
__device__ __forceinline__ float2 load_l2(const float2* p) { return __ldcg(p); }
__device__ __forceinline__ float load_l2(const float* p) { return __ldcg(p); }
__device__ __forceinline__ int32_t load_l2(const int32_t* p) { return __ldcg(p); }
__device__ __forceinline__ uint32_t load_l2(const uint32_t* p) { return __ldcg(p); }

// What the host wrote before the launch, in its own memory.
__device__ __forceinline__ uint4 load_host(const uint4* p) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

// ---- A mark: what was written before it is there --------------------------------------------------------
__device__ __forceinline__ void release_mark(uint32_t* mark, uint32_t tag) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(mark), "r"(tag) : "memory");
}
__device__ __forceinline__ uint32_t acquire_mark(const uint32_t* mark) {
  uint32_t tag;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(tag) : "l"(mark) : "memory");
  return tag;
}

// ---- Values that a kernel at work hands to the next -----------------------------------------------------
// Words of 32 bits that are kUnwritten until their one writer of a step has written them: a kernel reads the
// very values that it is going to use until they are there, and need not wait for the kernel before it to
// end. Numbers never look like kUnwritten: arithmetic and conversions give other bits for what is not a
// number.
inline constexpr uint32_t kUnwritten = 0xffffffffu;
__device__ __forceinline__ void hand_on(uint32_t* to, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value));
}
__device__ __forceinline__ void hand_on(float* to, float value) {
  hand_on(reinterpret_cast<uint32_t*>(to), __float_as_uint(value));
}
__device__ __forceinline__ uint32_t peek(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ float peek(const float* p) {
  return __uint_as_float(peek(reinterpret_cast<const uint32_t*>(p)));
}
__device__ __forceinline__ uint4 peek(const uint4* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ float4 peek(const float4* p) {
  const uint4 v = peek(reinterpret_cast<const uint4*>(p));
  return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}
__device__ __forceinline__ bool unwritten(uint32_t v) { return v == kUnwritten; }
__device__ __forceinline__ bool unwritten(float v) { return __float_as_uint(v) == kUnwritten; }
__device__ __forceinline__ bool unwritten(const uint4& v) {
  return max(max(v.x, v.y), max(v.z, v.w)) == kUnwritten;
}
__device__ __forceinline__ bool unwritten(const float4& v) {
  return unwritten(
      make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)));
}
// All lanes of a warp call: whether one of them must look again.
__device__ __forceinline__ bool any_lane(bool missing) { return __any_sync(kAll, missing); }
__device__ __forceinline__ void count_one(uint32_t* count) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(count));
}

// By block `block` of `blocks`.
__device__ __forceinline__ void unwrite(const UnwriteArgs& a, uint32_t block, uint32_t blocks) {
  for (uint64_t i = uint64_t{block} * blockDim.x + threadIdx.x; i < a.bytes / 16;
       i += uint64_t{blocks} * blockDim.x) {
    reinterpret_cast<uint4*>(a.memory)[i] = make_uint4(kUnwritten, kUnwritten, kUnwritten, kUnwritten);
  }
}

// By all threads of a block.
__device__ __forceinline__ void copy_host(const HostCopyArgs& a) {
  for (uint32_t i = threadIdx.x; i < a.bytes / 16; i += blockDim.x) {
    static_cast<uint4*>(a.to)[i] = load_host(static_cast<const uint4*>(a.from) + i);
  }
}

// What a kernel reads of the one before it, and leaves for the next: `kRelayed` kernels as above.
template <bool kRelayed, class T>
__device__ __forceinline__ T read(const T* p) {
  if constexpr (kRelayed) {
    return peek(p);
  } else {
    return load_l2(p);
  }
}
template <bool kRelayed, class T>
__device__ __forceinline__ void write(T* to, T value) {
  if constexpr (kRelayed) {
    hand_on(to, value);
  } else {
    *to = value;
  }
}

// A barrier of one team of a block's warps, kThreads threads; the team's number is known only at run time.
template <uint32_t kThreads>
__device__ __forceinline__ void sync_team(uint32_t team) {
  if constexpr (kThreads == 32) {
    __syncwarp();
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(kThreads) : "memory");
  }
}

// ---- Tensor instructions --------------------------------------------------------------------------------
// c += a b
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                    uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Four codes of a word to two bf16, each 128 too large: (word & 0x000f000f) | 0x43004300.
__device__ __forceinline__ uint32_t widen(uint32_t word) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(word), "r"(0x000f000fu), "r"(0x43004300u));
  return out;
}
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t r) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(r));
  return out;
}

}  // namespace lily::cuda
