// AVX-512 with VNNI, multiply-adds of bytes (Cascade Lake, Ice Lake, Zen 4 and later).
#if defined(__AVX512VNNI__)
#include "backends/cpu/isa/avx512.h"
#include "backends/cpu/isa/generic.h"
#else
#include "backends/cpu/kernels.h"
#endif

namespace lily::cpu {

#if defined(__AVX512VNNI__)
namespace {

struct Avx512Vnni : Avx512Base {
  LILY_INLINE I dot_halves(I sum, I codes, I x_low, I x_high) {
    sum = _mm512_dpbusd_epi32(sum, low_halves(codes), x_low);
    return _mm512_dpbusd_epi32(sum, high_halves(codes), x_high);
  }
  LILY_INLINE I dot_bytes(I sum, I codes, I x) { return _mm512_dpbusd_epi32(sum, codes, x); }
  LILY_INLINE I dot_small(I sum, I codes, I x) { return dot_bytes(sum, codes, x); }
};

constexpr Kernels kTable = Generic<Avx512Vnni>::table("avx512vnni", "vpdpbusd zmm");

}  // namespace

const Kernels* avx512vnni_kernels() { return &kTable; }

#else

const Kernels* avx512vnni_kernels() { return nullptr; }

#endif

}  // namespace lily::cpu
