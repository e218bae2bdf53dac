// Where the time of a whole step goes: marks of the clock, compiled in with LILY_STEP_TRACE alone.
#pragma once

#include <cstdint>

namespace lily::cuda {
namespace step {

// The first of blocks 0, 60 and 125, and of the last warp of block 60.
inline constexpr uint32_t kTraceThreads = 4;
inline constexpr uint32_t kMarks = 11;
inline constexpr uint32_t kTraceLayers = 41;

#if defined(__CUDACC__)
#ifdef LILY_STEP_TRACE
__device__ long long trace_marks[kTraceThreads][kTraceLayers][kMarks];
__device__ __forceinline__ void mark(uint32_t layer, uint32_t at) {
  const uint32_t thread = threadIdx.x == 0                         ? (blockIdx.x == 0     ? 0
                                                                      : blockIdx.x == 60  ? 1
                                                                      : blockIdx.x == 125 ? 2
                                                                                          : ~0u)
                          : threadIdx.x == 480 && blockIdx.x == 60 ? 3
                                                                   : ~0u;
  if (thread != ~0u) {
    trace_marks[thread][layer][at] = clock64();
  }
}
#else
__device__ __forceinline__ void mark(uint32_t, uint32_t) {}
#endif
#else
inline void mark(uint32_t, uint32_t) {}
#endif

}  // namespace step
#ifdef LILY_STEP_TRACE
int read_step_trace(void* marks);
#endif
}  // namespace lily::cuda
