// The vectors of AVX-512 F, BW, DQ and VL, without the products of bytes.
#pragma once

#include <immintrin.h>

#include "backends/cpu/isa/vectors.h"

namespace lily::cpu {
namespace {

struct Avx512Base {
  static constexpr uint32_t N = 16;
  static constexpr uint32_t kRows = 8;  // of a panel: a few sequences that decode together are one
  // Blocks of outputs that a panel of so many rows is multiplied with at a time.
  static constexpr uint32_t blocks_of_rows(uint32_t rows) { return rows < 4 ? 1 : rows == 4 ? 3 : 2; }
  static constexpr uint32_t kScoreTokens = 2;  // that share a load of a query
  static constexpr uint32_t kValueHeads = 8;   // heads and vectors of one step of attention's weighted sum
  static constexpr uint32_t kValueVectors = 2;
  static constexpr uint32_t kPeakChains =
      12;  // of independent multiply-adds, and their codes, that fit the registers
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
  // out[i][j]: what reduce_add(x[j][i]) is, to the bit; all sixteen in 15 additions.
  LILY_INLINE void reduce_pairs(const F (&x)[2][8], float (&out)[8][2]) {
    F sum[16];
    LILY_UNROLL
    for (uint32_t i = 0; i < 16; ++i) {  // in the order that the steps below undo
      sum[i] = x[i / 2 % 2][i % 2 + i / 8 * 2 + i / 4 % 2 * 4];
    }
    LILY_UNROLL
    for (uint32_t i = 0; i < 8; ++i) {
      sum[i] =
          add(_mm512_shuffle_f32x4(sum[i], sum[i + 8], 0x44), _mm512_shuffle_f32x4(sum[i], sum[i + 8], 0xee));
    }
    LILY_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      sum[i] =
          add(_mm512_shuffle_f32x4(sum[i], sum[i + 4], 0x88), _mm512_shuffle_f32x4(sum[i], sum[i + 4], 0xdd));
    }
    LILY_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      sum[i] = add(_mm512_shuffle_ps(sum[i], sum[i + 2], 0x44), _mm512_shuffle_ps(sum[i], sum[i + 2], 0xee));
    }
    store(out[0], add(_mm512_shuffle_ps(sum[0], sum[1], 0x88), _mm512_shuffle_ps(sum[0], sum[1], 0xdd)));
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
  LILY_INLINE void store_bf16(std::byte* p, F x) {
    const I bits = _mm512_castps_si512(x);
    const I odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const I rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const I final_bits = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(final_bits, 16)));
  }

  // Two rounded floats as neighbours, the even one first: to nearest, ties away from zero.
  LILY_INLINE I join_bf16(F even, F odd) {
    const I half = _mm512_set1_epi32(0x8000);
    const I low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even), half), 16);
    const I high = _mm512_add_epi32(_mm512_castps_si512(odd), half);
    return _mm512_ternarylogic_epi32(high, _mm512_set1_epi32(static_cast<int>(0xffff0000U)), low, 0xea);
  }
  LILY_INLINE I join_cut_bf16(F even, F odd) {  // the rest of both cut off
    return _mm512_ternarylogic_epi32(_mm512_castps_si512(odd),
                                     _mm512_set1_epi32(static_cast<int>(0xffff0000U)),
                                     _mm512_srli_epi32(_mm512_castps_si512(even), 16), 0xea);
  }
  LILY_INLINE F set_lane(F x, uint32_t lane, float value) {
    return _mm512_mask_mov_ps(x, static_cast<__mmask16>(1U << lane), set1(value));
  }
  // 16 rows of 16 words to columns.
  static void turn_words(const std::byte* from, std::byte* to) {
    I x[16];
    I y[16];
    LILY_UNROLL
    for (uint32_t i = 0; i < 16; i += 2) {
      const I even = load_words(from + size_t{i} * 64);
      const I odd = load_words(from + size_t{i} * 64 + 64);
      x[i] = _mm512_unpacklo_epi32(even, odd);
      x[i + 1] = _mm512_unpackhi_epi32(even, odd);
    }
    LILY_UNROLL
    for (uint32_t i = 0; i < 16; i += 4) {  // then y[i + j] has columns j, j + 4, ... of four rows
      y[i] = _mm512_unpacklo_epi64(x[i], x[i + 2]);
      y[i + 1] = _mm512_unpackhi_epi64(x[i], x[i + 2]);
      y[i + 2] = _mm512_unpacklo_epi64(x[i + 1], x[i + 3]);
      y[i + 3] = _mm512_unpackhi_epi64(x[i + 1], x[i + 3]);
    }
    LILY_UNROLL
    for (uint32_t j = 0; j < 4; ++j) {
      const I upper = _mm512_shuffle_i32x4(y[j], y[j + 4], 0x88);  // columns j and j + 8 of eight rows
      const I next_upper = _mm512_shuffle_i32x4(y[j], y[j + 4], 0xdd);
      const I lower = _mm512_shuffle_i32x4(y[j + 8], y[j + 12], 0x88);
      const I next_lower = _mm512_shuffle_i32x4(y[j + 8], y[j + 12], 0xdd);
      store_words(to + size_t{j} * 64, _mm512_shuffle_i32x4(upper, lower, 0x88));
      store_words(to + size_t{j + 4} * 64, _mm512_shuffle_i32x4(next_upper, next_lower, 0x88));
      store_words(to + size_t{j + 8} * 64, _mm512_shuffle_i32x4(upper, lower, 0xdd));
      store_words(to + size_t{j + 12} * 64, _mm512_shuffle_i32x4(next_upper, next_lower, 0xdd));
    }
  }
  LILY_INLINE void store_words(std::byte* p, I x) { _mm512_storeu_si512(p, x); }

  LILY_INLINE I load_words(const std::byte* p) { return _mm512_loadu_si512(p); }
  LILY_INLINE F to_float(I x) { return _mm512_cvtepi32_ps(x); }

  LILY_INLINE I zero_int() { return _mm512_setzero_si512(); }
  LILY_INLINE I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
  LILY_INLINE I to_int(F x) { return _mm512_cvtps_epi32(x); }
  LILY_INLINE I splat_word(const std::byte* p) {
    int word = 0;
    __builtin_memcpy(&word, p, sizeof(word));
    return _mm512_set1_epi32(word);
  }
  LILY_INLINE F splat(const std::byte* p) { return _mm512_castsi512_ps(splat_word(p)); }
  LILY_INLINE void store_digits(std::byte* p, I x) {
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_shuffle_epi8(_mm512_cvtepi32_epi8(x), order));
  }
  LILY_INLINE I first_digit(I x) { return _mm512_srai_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(128)), 8); }
  LILY_INLINE I next_digit(I sum) { return _mm512_slli_epi32(sum, 8); }
  LILY_INLINE I low_halves(I codes) { return _mm512_and_si512(codes, _mm512_set1_epi8(15)); }
  LILY_INLINE I pairs(I codes, I x) { return _mm512_maddubs_epi16(codes, x); }
  LILY_INLINE I join_pairs(I x, short weight) { return _mm512_madd_epi16(x, _mm512_set1_epi16(weight)); }
  LILY_INLINE I add_shorts(I a, I b) { return _mm512_add_epi16(a, b); }
  LILY_INLINE I high_halves(I codes) { return low_halves(_mm512_srli_epi32(codes, 4)); }
};

}  // namespace
}  // namespace lily::cpu
