// AVX2, FMA and F16C.
#if defined(__AVX2__)
#include "backends/cpu/isa/avx2.h"
#include "backends/cpu/isa/generic.h"
#include "backends/cpu/isa/pairs.h"
#else
#include "backends/cpu/kernels.h"
#endif

namespace lily::cpu {

#if defined(__AVX2__)
namespace {

constexpr Kernels kTable = Generic<PairsOf<Avx2Base>>::table("avx2", "vpmaddubsw, vpmaddwd, vpaddd ymm");

}  // namespace

const Kernels* avx2_kernels() { return &kTable; }

#else

const Kernels* avx2_kernels() { return nullptr; }

#endif

}  // namespace lily::cpu
