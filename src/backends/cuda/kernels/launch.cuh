// How the host launches kernels that follow one another.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lily::cuda {

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

}  // namespace lily::cuda
