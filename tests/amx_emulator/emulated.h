// The AMX kernels of the CPU backend with tiles that are computed in C++: "amx-emulated" and
// "amxbf16-emulated", for tests on processors with AVX-512 VNNI and without AMX.
#pragma once

#include "backends/cpu/kernels.h"

namespace lily::cpu::test {

inline constexpr std::string_view kEmulatedAmx = "amx-emulated";
inline constexpr std::string_view kEmulatedAmxBf16 = "amxbf16-emulated";

// Null where the compiler's target is not x86-64.
const TileKernels* emulated_amx_tiles();
const TileKernels* emulated_amx_bf16_tiles();

// Whether this processor can run them.
bool can_emulate_amx();
// Null where it cannot.
const Kernels* emulated_amx_kernels();
const Kernels* emulated_amx_bf16_kernels();

}  // namespace lily::cpu::test
