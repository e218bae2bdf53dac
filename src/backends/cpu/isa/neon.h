// The vectors of Armv8.2 with dot products of bytes: eight floats in two registers.
#pragma once

#include <arm_neon.h>

#include "backends/cpu/isa/vectors.h"

namespace lily::cpu {
namespace {

struct Neon {
  static constexpr uint32_t N = 8;
  static constexpr uint32_t kRows = 4;  // of a panel
  // Blocks of outputs that a panel of so many rows is multiplied with at a time.
  static constexpr uint32_t blocks_of_rows(uint32_t) { return 1; }
  static constexpr uint32_t kScoreTokens = 1;  // that share a load of a query
  static constexpr uint32_t kValueHeads = 4;   // heads and vectors of one step of attention's weighted sum
  static constexpr uint32_t kValueVectors = 2;
  static constexpr uint32_t kPeakChains =
      4;  // of independent multiply-adds, and their codes, that fit the registers
  struct F {
    float32x4_t a, b;
  };
  struct I {
    int32x4_t a, b;
  };

  LILY_INLINE F zero() { return set1(0.0F); }
  LILY_INLINE F set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
  LILY_INLINE F load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
  LILY_INLINE F load_bytes(const std::byte* p) {
    const I words = load_words(p);
    return {vreinterpretq_f32_s32(words.a), vreinterpretq_f32_s32(words.b)};
  }
  LILY_INLINE void store(float* p, F x) {
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
  }
  LILY_INLINE F add(F a, F b) { return {vaddq_f32(a.a, b.a), vaddq_f32(a.b, b.b)}; }
  LILY_INLINE F sub(F a, F b) { return {vsubq_f32(a.a, b.a), vsubq_f32(a.b, b.b)}; }
  LILY_INLINE F mul(F a, F b) { return {vmulq_f32(a.a, b.a), vmulq_f32(a.b, b.b)}; }
  LILY_INLINE F div(F a, F b) { return {vdivq_f32(a.a, b.a), vdivq_f32(a.b, b.b)}; }
  LILY_INLINE F fma(F a, F b, F c) { return {vfmaq_f32(c.a, a.a, b.a), vfmaq_f32(c.b, a.b, b.b)}; }
  LILY_INLINE F max(F a, F b) { return {vmaxq_f32(a.a, b.a), vmaxq_f32(a.b, b.b)}; }
  LILY_INLINE F min(F a, F b) { return {vminq_f32(a.a, b.a), vminq_f32(a.b, b.b)}; }
  LILY_INLINE F round(F x) { return {vrndnq_f32(x.a), vrndnq_f32(x.b)}; }
  LILY_INLINE F times_power_of_two(F x, F n) {  // adds to the exponent; a NaN n adds nothing
    const I power = to_int(n);
    return {vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x.a), vshlq_n_s32(power.a, 23))),
            vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x.b), vshlq_n_s32(power.b, 23)))};
  }
  LILY_INLINE float reduce_add(F x) { return vaddvq_f32(vaddq_f32(x.a, x.b)); }
  LILY_INLINE float reduce_max(F x) { return vmaxvq_f32(vmaxq_f32(x.a, x.b)); }
  LILY_INLINE F load_bf16(const std::byte* p) {
    const uint16x8_t halves = vreinterpretq_u16_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(p)));
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(halves), 16)),
            vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(halves), 16))};
  }
  LILY_INLINE uint16x4_t to_half(float32x4_t x) {  // to nearest even, NaN stays one
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16);
  }
  LILY_INLINE void store_bf16(std::byte* p, F x) {
    const uint16x8_t halves = vcombine_u16(to_half(x.a), to_half(x.b));
    vst1q_u8(reinterpret_cast<uint8_t*>(p), vreinterpretq_u8_u16(halves));
  }

  LILY_INLINE I load_words(const std::byte* p) {
    const auto* bytes = reinterpret_cast<const int8_t*>(p);
    return {vreinterpretq_s32_s8(vld1q_s8(bytes)), vreinterpretq_s32_s8(vld1q_s8(bytes + 16))};
  }
  LILY_INLINE F to_float(I x) { return {vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b)}; }

  LILY_INLINE I zero_int() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
  LILY_INLINE I add_int(I a, I b) { return {vaddq_s32(a.a, b.a), vaddq_s32(a.b, b.b)}; }
  LILY_INLINE I to_int(F x) { return {vcvtnq_s32_f32(x.a), vcvtnq_s32_f32(x.b)}; }
  LILY_INLINE I splat_word(const std::byte* p) {
    int32_t word = 0;
    __builtin_memcpy(&word, p, sizeof(word));
    return {vdupq_n_s32(word), vdupq_n_s32(word)};
  }
  LILY_INLINE F splat(const std::byte* p) {
    float x = 0;
    __builtin_memcpy(&x, p, sizeof(x));
    return set1(x);
  }
  LILY_INLINE void store_digits(std::byte* p, I x) {
    const int8x8_t bytes = vmovn_s16(vcombine_s16(vmovn_s32(x.a), vmovn_s32(x.b)));
    const int8x8_t even = vuzp1_s8(bytes, bytes);
    const int8x8_t odd = vuzp2_s8(bytes, bytes);
    vst1_s8(reinterpret_cast<int8_t*>(p),
            vreinterpret_s8_s32(vzip1_s32(vreinterpret_s32_s8(even), vreinterpret_s32_s8(odd))));
  }
  LILY_INLINE I first_digit(I x) {
    return {vshrq_n_s32(vaddq_s32(x.a, vdupq_n_s32(128)), 8),
            vshrq_n_s32(vaddq_s32(x.b, vdupq_n_s32(128)), 8)};
  }
  LILY_INLINE I next_digit(I sum) { return {vshlq_n_s32(sum.a, 8), vshlq_n_s32(sum.b, 8)}; }
  LILY_INLINE int32x4_t low_of(int32x4_t codes) {
    return vreinterpretq_s32_u8(vandq_u8(vreinterpretq_u8_s32(codes), vdupq_n_u8(15)));
  }
  LILY_INLINE int32x4_t high_of(int32x4_t codes) {
    return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(codes), 4));
  }
  LILY_INLINE I low_halves(I codes) { return {low_of(codes.a), low_of(codes.b)}; }
  LILY_INLINE I high_halves(I codes) { return {high_of(codes.a), high_of(codes.b)}; }

  LILY_INLINE int32x4_t dot(int32x4_t sum, int32x4_t codes, int32x4_t x) {
    return vdotq_s32(sum, vreinterpretq_s8_s32(codes), vreinterpretq_s8_s32(x));
  }
  LILY_INLINE I dot_halves(I sum, I low, I high, I x_low, I x_high) {  // codes below 16 are signed bytes, too
    return {dot(dot(sum.a, low.a, x_low.a), high.a, x_high.a),
            dot(dot(sum.b, low.b, x_low.b), high.b, x_high.b)};
  }
  LILY_INLINE I dot_bytes(I sum, I codes, I x) {
    const I low = low_halves(codes);
    const I high = high_halves(codes);
    const int32x4_t none = vdupq_n_s32(0);
    return {vaddq_s32(dot(sum.a, low.a, x.a), vshlq_n_s32(dot(none, high.a, x.a), 4)),
            vaddq_s32(dot(sum.b, low.b, x.b), vshlq_n_s32(dot(none, high.b, x.b), 4))};
  }
};

}  // namespace
}  // namespace lily::cpu
