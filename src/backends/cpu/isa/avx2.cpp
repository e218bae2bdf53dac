// AVX2, FMA and F16C.
#if defined(__AVX2__)
#include "backends/cpu/isa/avx2.h"
#include "backends/cpu/isa/generic.h"
#else
#include "backends/cpu/kernels.h"
#endif

namespace lily::cpu {

#if defined(__AVX2__)
namespace {

struct Avx2 : Avx2Base {
  // Of codes below 16: no saturation.
  LILY_INLINE I pairs(I codes, I x) { return _mm256_maddubs_epi16(codes, x); }
  LILY_INLINE I join_pairs(I x, short weight) { return _mm256_madd_epi16(x, _mm256_set1_epi16(weight)); }
  LILY_INLINE I dot_small(I sum, I codes, I x) { return add_int(sum, join_pairs(pairs(codes, x), 1)); }
  LILY_INLINE I dot_halves(I sum, I codes, I x_low, I x_high) {
    const I both = _mm256_add_epi16(pairs(low_halves(codes), x_low), pairs(high_halves(codes), x_high));
    return add_int(sum, join_pairs(both, 1));
  }
  LILY_INLINE I dot_bytes(I sum, I codes, I x) {
    sum = dot_small(sum, low_halves(codes), x);
    return add_int(sum, join_pairs(pairs(high_halves(codes), x), 16));
  }
};

constexpr Kernels kTable = Generic<Avx2>::table("avx2", "vpmaddubsw, vpmaddwd, vpaddd ymm");

}  // namespace

const Kernels* avx2_kernels() { return &kTable; }

#else

const Kernels* avx2_kernels() { return nullptr; }

#endif

}  // namespace lily::cpu
