// What the device can do at most: kernels that do nothing else.
#pragma once

#include "backends/cuda/kernel_args.h"

namespace lily::cuda {

// Reads `bytes` (a multiple of 16 KiB) once and writes a word that depends on them to `out`.
int launch_read(const uint8_t* from, uint64_t bytes, uint32_t* out, uint32_t blocks, Stream queue);

// Every warp of `blocks` blocks does `rounds` times kLimitMultiplies bf16 tensor instructions in registers.
inline constexpr uint32_t kLimitMultiplies = 64;  // of a warp and round
inline constexpr uint32_t kLimitWarps = 16;       // of a block
inline constexpr uint32_t kMultiplyAdds = 2048;   // of one mma.m16n8k16
int launch_multiply(uint32_t rounds, float* out, uint32_t blocks, Stream queue);

}  // namespace lily::cuda
