// Armv8.2 with dot products of bytes (Cortex-A76, Neoverse N1, Apple M1 and later).
#if defined(__ARM_FEATURE_DOTPROD)
#include "backends/cpu/isa/neon.h"
#include "backends/cpu/isa/generic.h"
#else
#include "backends/cpu/kernels.h"
#endif

namespace lily::cpu {

#if defined(__ARM_FEATURE_DOTPROD)
namespace {

constexpr Kernels kTable = Generic<Neon>::table("neon", "sdot");

}  // namespace

const Kernels* neon_kernels() { return &kTable; }

#else

const Kernels* neon_kernels() { return nullptr; }

#endif

}  // namespace lily::cpu
