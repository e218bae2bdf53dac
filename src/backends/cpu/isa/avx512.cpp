// AVX-512 F, BW, DQ and VL (Skylake-X, Zen 4 and later).
#include "backends/cpu/isa/generic.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace lily::cpu {

#if defined(__AVX512F__)
namespace {

struct Avx512 {
  static constexpr uint32_t N = 16;
  static constexpr uint32_t kOutputs = 4;  // outputs and rows of a tile of a product of many rows
  static constexpr uint32_t kRows = 3;
  static constexpr uint32_t kValueHeads = 8;  // heads and vectors of one step of attention's weighted sum
  static constexpr uint32_t kValueVectors = 2;
  static constexpr uint32_t kPeakChains = 12;  // of independent multiply-adds that fit the registers
  using F = __m512;
  using I = __m512i;

  LILY_INLINE F zero() { return _mm512_setzero_ps(); }
  LILY_INLINE F set1(float x) { return _mm512_set1_ps(x); }
  LILY_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
  LILY_INLINE F load_bytes(const std::byte* p) { return _mm512_castsi512_ps(load_words(p)); }
  LILY_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  LILY_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
  LILY_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  LILY_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  LILY_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
  LILY_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  LILY_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
  LILY_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
  LILY_INLINE F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  LILY_INLINE F times_power_of_two(F x, F n) {  // adds to the exponent; a NaN n adds nothing
    const I power = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), power));
  }
  LILY_INLINE __m256 high_half(F x) { return _mm512_extractf32x8_ps(x, 1); }
  LILY_INLINE float reduce_add(F x) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), high_half(x));
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
  }
  LILY_INLINE float reduce_max(F x) {
    const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(x), high_half(x));
    __m128 top = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    top = _mm_max_ps(top, _mm_movehl_ps(top, top));
    return _mm_cvtss_f32(_mm_max_ss(top, _mm_movehdup_ps(top)));
  }
  LILY_INLINE __m256i load_halves(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  LILY_INLINE F load_bf16(const std::byte* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_halves(p)), 16));
  }
  LILY_INLINE F load_f16(const std::byte* p) { return _mm512_cvtph_ps(load_halves(p)); }
  LILY_INLINE void store_bf16(std::byte* p, F x) {
    const I bits = _mm512_castps_si512(x);
    const I odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const I rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const I final_bits = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(final_bits, 16)));
  }

  LILY_INLINE I load_words(const std::byte* p) { return _mm512_loadu_si512(p); }
  LILY_INLINE I load_some_words(const std::byte* p, uint32_t count) {
    return _mm512_maskz_loadu_epi32(static_cast<__mmask16>((1U << count) - 1U), p);
  }
  LILY_INLINE I and_bits(I x, uint32_t mask) {
    return _mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(mask)));
  }
  template <uint32_t Bits>
  LILY_INLINE I last_code(I x) {
    return _mm512_srli_epi32(x, 32 - Bits);
  }
  LILY_INLINE F to_float(I x) { return _mm512_cvtepi32_ps(x); }
  // The scale of each lane of vector `vector`, where `Lanes` lanes share one.
  template <uint32_t Lanes>
  LILY_INLINE F lanes(const float* scale, uint32_t vector) {
    static_assert(Lanes == 4 || Lanes == 8 || Lanes % N == 0);
    if constexpr (Lanes == 4) {
      const I index = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
      return _mm512_permutexvar_ps(index, _mm512_castps128_ps512(_mm_loadu_ps(scale + size_t{vector} * 4)));
    } else if constexpr (Lanes == 8) {
      const float* two = scale + size_t{vector} * 2;
      return _mm512_mask_broadcastss_ps(_mm512_set1_ps(two[0]), 0xff00, _mm_load_ss(two + 1));
    } else {
      return _mm512_set1_ps(scale[vector / (Lanes / N)]);
    }
  }
};

constexpr Kernels kTable = Generic<Avx512>::table("avx512", "vfmadd231ps zmm");

}  // namespace

const Kernels* avx512_kernels() { return &kTable; }

#else

const Kernels* avx512_kernels() { return nullptr; }

#endif

}  // namespace lily::cpu
