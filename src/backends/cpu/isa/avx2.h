// The vectors of AVX2, FMA and F16C, without the products of bytes.
#pragma once

#include <immintrin.h>

#include "backends/cpu/isa/vectors.h"

namespace lily::cpu {
namespace {

struct Avx2Base {
  static constexpr uint32_t N = 8;
  static constexpr uint32_t kRows = 4;  // of a panel
  // Blocks of outputs that a panel of so many rows is multiplied with at a time.
  static constexpr uint32_t blocks_of_rows(uint32_t) { return 1; }
  static constexpr uint32_t kScoreTokens = 1;  // that share a load of a query
  static constexpr uint32_t kValueHeads = 4;   // heads and vectors of one step of attention's weighted sum
  static constexpr uint32_t kValueVectors = 2;
  static constexpr uint32_t kPeakChains =
      6;  // of independent multiply-adds, and their codes, that fit the registers
  using F = __m256;
  using I = __m256i;

  LILY_INLINE F zero() { return _mm256_setzero_ps(); }
  LILY_INLINE F set1(float x) { return _mm256_set1_ps(x); }
  LILY_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
  LILY_INLINE F load_bytes(const std::byte* p) { return _mm256_castsi256_ps(load_words(p)); }
  LILY_INLINE void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  LILY_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
  LILY_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  LILY_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  LILY_INLINE F div(F a, F b) { return _mm256_div_ps(a, b); }
  LILY_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  LILY_INLINE F max(F a, F b) { return _mm256_max_ps(a, b); }
  LILY_INLINE F min(F a, F b) { return _mm256_min_ps(a, b); }
  LILY_INLINE F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  LILY_INLINE F times_power_of_two(F x, F n) {  // adds to the exponent; a NaN n adds nothing
    const I power = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), power));
  }
  LILY_INLINE float reduce_add(F x) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
  }
  LILY_INLINE float reduce_max(F x) {
    __m128 top = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    top = _mm_max_ps(top, _mm_movehl_ps(top, top));
    return _mm_cvtss_f32(_mm_max_ss(top, _mm_movehdup_ps(top)));
  }
  LILY_INLINE __m128i load_halves(const std::byte* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  LILY_INLINE F load_bf16(const std::byte* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_halves(p)), 16));
  }
  LILY_INLINE void store_bf16(std::byte* p, F x) {
    const I bits = _mm256_castps_si256(x);
    const I odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const I rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const I quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const I nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const I high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }

  LILY_INLINE I load_words(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  LILY_INLINE F to_float(I x) { return _mm256_cvtepi32_ps(x); }

  LILY_INLINE I zero_int() { return _mm256_setzero_si256(); }
  LILY_INLINE I add_int(I a, I b) { return _mm256_add_epi32(a, b); }
  LILY_INLINE I to_int(F x) { return _mm256_cvtps_epi32(x); }
  LILY_INLINE I splat_word(const std::byte* p) {
    int word = 0;
    __builtin_memcpy(&word, p, sizeof(word));
    return _mm256_set1_epi32(word);
  }
  LILY_INLINE F splat(const std::byte* p) { return _mm256_castsi256_ps(splat_word(p)); }
  LILY_INLINE void store_digits(std::byte* p, I x) {
    const I order = _mm256_setr_epi8(0, 8, 4, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                     0, 8, 4, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const I bytes = _mm256_shuffle_epi8(x, order);  // 0 2 1 3 and 4 6 5 7
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p),
                     _mm_unpacklo_epi16(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
  }
  LILY_INLINE I first_digit(I x) { return _mm256_srai_epi32(_mm256_add_epi32(x, _mm256_set1_epi32(128)), 8); }
  LILY_INLINE I next_digit(I sum) { return _mm256_slli_epi32(sum, 8); }
  LILY_INLINE I low_halves(I codes) { return _mm256_and_si256(codes, _mm256_set1_epi8(15)); }
  LILY_INLINE I pairs(I codes, I x) { return _mm256_maddubs_epi16(codes, x); }
  LILY_INLINE I join_pairs(I x, short weight) { return _mm256_madd_epi16(x, _mm256_set1_epi16(weight)); }
  LILY_INLINE I add_shorts(I a, I b) { return _mm256_add_epi16(a, b); }
  LILY_INLINE I high_halves(I codes) { return low_halves(_mm256_srli_epi32(codes, 4)); }
};

}  // namespace
}  // namespace lily::cpu
