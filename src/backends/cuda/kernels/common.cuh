// What the kernels share: PTX wrappers, the order of activations, reductions in a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backends/cuda/kernel_args.h"

namespace lily::cuda {

inline constexpr float kEps = 1e-6f;
inline constexpr unsigned kAll = 0xffffffffu;

// ---- Programmatic dependent launch ----------------------------------------------------------------------
// A kernel lets the next one start at once, fetches what does not depend on the kernels before it (weights,
// states of earlier passes), and then waits for them, and so for all kernels before those. What a kernel of
// the same pass writes cannot be relied on before that wait. The one exception is the routing, which gate_up
// publishes while it is at work (routing.cuh).
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

// Launches `kernel(args)` so; on devices without dependent launch it is an ordinary one.
template <class Args>
int launch_dependent(void (*kernel)(Args), const cudaLaunchConfig_t& config, const Args& args) {
  int device = 0;
  int major = 0;
  cudaError_t e = cudaGetDevice(&device);
  e = e != cudaSuccess ? e : cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (e != cudaSuccess) {
    return e;
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t with = config;
  with.attrs = &attribute;
  with.numAttrs = major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&with, kernel, args);
}

// Lets a kernel have `bytes` of dynamic shared memory, and asks for as much as there is on its
// multiprocessor: a kernel can only begin beside the one before it where both want the same division of
// shared memory and L1.
template <class Args>
int prepare_kernel(void (*kernel)(Args), uint32_t bytes) {
  const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                             cudaSharedmemCarveoutMaxShared);
  return e != cudaSuccess || bytes == 0
             ? e
             : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes));
}

// ---- Asynchronous copies to shared memory ---------------------------------------------------------------
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void copy_async(void* to, const void* from) {  // 16 bytes, past L1
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
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

// ---- bf16 -----------------------------------------------------------------------------------------------
__device__ __forceinline__ uint16_t to_bf16(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
__device__ __forceinline__ float from_bf16(uint16_t x) {
  return __uint_as_float(static_cast<uint32_t>(x) << 16);
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  return static_cast<uint32_t>(to_bf16(low)) | static_cast<uint32_t>(to_bf16(high)) << 16;
}
__device__ __forceinline__ float low_bf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// ---- Activations that feed a product --------------------------------------------------------------------
// bf16, in the order in which a lane of mma reads the B operand: of 64 inputs, lane t (of four) holds 16 in a
// row, for step j of 16 inputs the inputs 16j + 2t, +1, +8, +9. Position of input k:
__host__ __device__ __forceinline__ uint32_t fragment_position(uint32_t k) {
  const uint32_t r = k & 15;
  return (k & ~63u) + ((r & 7) >> 1) * 16 + ((k >> 4) & 3) * 4 + (r >> 3) * 2 + (r & 1);
}

// ---- Functions of the equations -------------------------------------------------------------------------
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x / (1.0f + __expf(-x)); }

// ---- Sums in a fixed order ------------------------------------------------------------------------------
// Over each aligned group of `kLanes` lanes; every lane gets the sum.
template <int kLanes>
__device__ __forceinline__ float sum_lanes(float x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(kAll, x, offset);
  }
  return x;
}

}  // namespace lily::cuda
