// AVX-512 F, BW, DQ and VL (Skylake-X and later).
#if defined(__AVX512F__)
#include "backends/cpu/isa/avx512.h"
#include "backends/cpu/isa/generic.h"
#else
#include "backends/cpu/kernels.h"
#endif

namespace lily::cpu {

#if defined(__AVX512F__)
namespace {

struct Avx512 : Avx512Base {
  // Of codes below 16: no saturation.
  LILY_INLINE I pairs(I codes, I x) { return _mm512_maddubs_epi16(codes, x); }
  LILY_INLINE I join_pairs(I x, short weight) { return _mm512_madd_epi16(x, _mm512_set1_epi16(weight)); }
  LILY_INLINE I dot_small(I sum, I codes, I x) { return add_int(sum, join_pairs(pairs(codes, x), 1)); }
  LILY_INLINE I dot_halves(I sum, I codes, I x_low, I x_high) {
    const I both = _mm512_add_epi16(pairs(low_halves(codes), x_low), pairs(high_halves(codes), x_high));
    return add_int(sum, join_pairs(both, 1));
  }
  LILY_INLINE I dot_bytes(I sum, I codes, I x) {
    sum = dot_small(sum, low_halves(codes), x);
    return add_int(sum, join_pairs(pairs(high_halves(codes), x), 16));
  }
};

constexpr Kernels kTable = Generic<Avx512>::table("avx512", "vpmaddubsw, vpmaddwd, vpaddd zmm");

}  // namespace

const Kernels* avx512_kernels() { return &kTable; }

#else

const Kernels* avx512_kernels() { return nullptr; }

#endif

}  // namespace lily::cpu
