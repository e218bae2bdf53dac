// AVX2 with AVX-VNNI, multiply-adds of bytes without AVX-512 (Alder Lake, Zen 5 and later).
#if defined(__AVXVNNI__)
#include "backends/cpu/isa/avx2.h"
#include "backends/cpu/isa/generic.h"
#else
#include "backends/cpu/kernels.h"
#endif

namespace lily::cpu {

#if defined(__AVXVNNI__)
namespace {

struct AvxVnni : Avx2Base {
  LILY_INLINE I dot_halves(I sum, I low, I high, I x_low, I x_high) {
    sum = _mm256_dpbusd_avx_epi32(sum, low, x_low);
    return _mm256_dpbusd_avx_epi32(sum, high, x_high);
  }
  LILY_INLINE I dot_bytes(I sum, I codes, I x) { return _mm256_dpbusd_avx_epi32(sum, codes, x); }
};

constexpr Kernels kTable = Generic<AvxVnni>::table("avxvnni", "vpdpbusd ymm");

}  // namespace

const Kernels* avxvnni_kernels() { return &kTable; }

#else

const Kernels* avxvnni_kernels() { return nullptr; }

#endif

}  // namespace lily::cpu
