// AVX-512 with VNNI, multiply-adds of bytes (Cascade Lake, Ice Lake, Zen 4 and later).
#if defined(__AVX512VNNI__)
#include "backends/cpu/isa/avx512vnni.h"
#include "backends/cpu/isa/generic.h"
#else
#include "backends/cpu/kernels.h"
#endif

namespace lily::cpu {

#if defined(__AVX512VNNI__)
namespace {

constexpr Kernels kTable = Generic<Avx512Vnni>::table("avx512vnni", "vpdpbusd zmm");

}  // namespace

const Kernels* avx512vnni_kernels() { return &kTable; }

#else

const Kernels* avx512vnni_kernels() { return nullptr; }

#endif

}  // namespace lily::cpu
