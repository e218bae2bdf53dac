// AVX-512 F, BW, DQ and VL (Skylake-X and later).
#if defined(__AVX512F__)
#include "backends/cpu/isa/avx512.h"
#include "backends/cpu/isa/generic.h"
#include "backends/cpu/isa/pairs.h"
#else
#include "backends/cpu/kernels.h"
#endif

namespace lily::cpu {

#if defined(__AVX512F__)
namespace {

constexpr Kernels kTable = Generic<PairsOf<Avx512Base>>::table("avx512", "vpmaddubsw, vpmaddwd, vpaddd zmm");

}  // namespace

const Kernels* avx512_kernels() { return &kTable; }

#else

const Kernels* avx512_kernels() { return nullptr; }

#endif

}  // namespace lily::cpu
