// The AMX kernels of the CPU backend with tiles that are computed in C++: "amx-emulated", for tests on
// processors with AVX-512 VNNI and without AMX.
#pragma once

#include "backends/cpu/kernels.h"

namespace lily::cpu::test {

inline constexpr std::string_view kEmulatedAmx = "amx-emulated";

const TileKernels* emulated_amx_tiles();  // null where the compiler's target is not x86-64

// Whether this processor can run them.
bool can_emulate_amx();
const Kernels* emulated_amx_kernels();  // null where it cannot

}  // namespace lily::cpu::test
