// The portable variant: vectors of eight floats that the compiler maps on what its target has.
#include "backends/cpu/isa/generic.h"

namespace lily::cpu {
namespace {

struct Scalar {
  static constexpr uint32_t N = 8;
  static constexpr uint32_t kRows = 2;  // of a panel
  static constexpr uint32_t blocks_of_rows(uint32_t) { return 1; }
  static constexpr uint32_t kScoreTokens = 1;  // that share a load of a query
  static constexpr uint32_t kValueHeads = 2;   // heads and vectors of one step of attention's weighted sum
  static constexpr uint32_t kValueVectors = 1;
  static constexpr uint32_t kPeakChains =
      6;  // of independent multiply-adds, and their codes, that fit the registers
  struct F {
    float v[N];
  };
  struct I {
    uint32_t v[N];
  };

  template <class Op>
  LILY_INLINE F each(Op op) {
    F out;
    LILY_UNROLL
    for (uint32_t i = 0; i < N; ++i) {
      out.v[i] = op(i);
    }
    return out;
  }
  LILY_INLINE float bits_to_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
  LILY_INLINE uint16_t half_at(const std::byte* p, uint32_t i) {
    uint16_t bits = 0;
    __builtin_memcpy(&bits, p + size_t{i} * 2, 2);
    return bits;
  }

  LILY_INLINE F zero() { return set1(0.0F); }
  LILY_INLINE F set1(float x) {
    return each([&](uint32_t) { return x; });
  }
  LILY_INLINE F load(const float* p) {
    return each([&](uint32_t i) { return p[i]; });
  }
  LILY_INLINE F load_bytes(const std::byte* p) {
    F out;
    __builtin_memcpy(&out, p, sizeof(out));
    return out;
  }
  LILY_INLINE void store(float* p, F x) { __builtin_memcpy(p, x.v, sizeof(x.v)); }
  LILY_INLINE F add(F a, F b) {
    return each([&](uint32_t i) { return a.v[i] + b.v[i]; });
  }
  LILY_INLINE F sub(F a, F b) {
    return each([&](uint32_t i) { return a.v[i] - b.v[i]; });
  }
  LILY_INLINE F mul(F a, F b) {
    return each([&](uint32_t i) { return a.v[i] * b.v[i]; });
  }
  LILY_INLINE F div(F a, F b) {
    return each([&](uint32_t i) { return a.v[i] / b.v[i]; });
  }
  LILY_INLINE F fma(F a, F b, F c) {  // rounded twice: a fused one would be a library call on old processors
    return each([&](uint32_t i) { return a.v[i] * b.v[i] + c.v[i]; });
  }
  LILY_INLINE F max(F a, F b) {
    return each([&](uint32_t i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  LILY_INLINE F min(F a, F b) {
    return each([&](uint32_t i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  LILY_INLINE F round(F x) {  // |x| < 2^22, to even
    return each([&](uint32_t i) { return (x.v[i] + 12582912.0F) - 12582912.0F; });
  }
  LILY_INLINE F times_power_of_two(F x, F n) {
    return each([&](uint32_t i) {
      const int32_t power = n.v[i] >= -126.0F && n.v[i] <= 127.0F ? static_cast<int32_t>(n.v[i]) : 0;
      return x.v[i] * bits_to_float(static_cast<uint32_t>(power + 127) << 23);
    });
  }
  LILY_INLINE float reduce_add(F x) {
    return ((x.v[0] + x.v[4]) + (x.v[2] + x.v[6])) + ((x.v[1] + x.v[5]) + (x.v[3] + x.v[7]));
  }
  LILY_INLINE float reduce_max(F x) {
    float largest = x.v[0];
    for (uint32_t i = 1; i < N; ++i) {
      largest = largest > x.v[i] ? largest : x.v[i];
    }
    return largest;
  }
  LILY_INLINE F load_bf16(const std::byte* p) {
    return each([&](uint32_t i) { return bits_to_float(uint32_t{half_at(p, i)} << 16); });
  }
  LILY_INLINE void store_bf16(std::byte* p, F x) {
    for (uint32_t i = 0; i < N; ++i) {
      const uint32_t bits = __builtin_bit_cast(uint32_t, x.v[i]);
      const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
      const uint32_t rounded = nan ? (bits >> 16) | 0x40U : (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
      const auto half = static_cast<uint16_t>(rounded);
      __builtin_memcpy(p + size_t{i} * 2, &half, 2);
    }
  }

  LILY_INLINE I load_words(const std::byte* p) {
    I out;
    __builtin_memcpy(&out, p, sizeof(out));
    return out;
  }
  LILY_INLINE F to_float(I x) {
    return each([&](uint32_t i) { return static_cast<float>(static_cast<int32_t>(x.v[i])); });
  }

  template <class Op>
  LILY_INLINE I each_int(Op op) {
    I out;
    LILY_UNROLL
    for (uint32_t i = 0; i < N; ++i) {
      out.v[i] = op(i);
    }
    return out;
  }
  LILY_INLINE I zero_int() { return I{}; }
  LILY_INLINE I add_int(I a, I b) {
    return each_int([&](uint32_t i) { return a.v[i] + b.v[i]; });
  }
  LILY_INLINE I to_int(F x) {  // whole numbers; 0 for what is none
    return each_int([&](uint32_t i) {
      const bool fits = x.v[i] > -4e4F && x.v[i] < 4e4F;
      return static_cast<uint32_t>(fits ? static_cast<int32_t>(x.v[i]) : 0);
    });
  }
  LILY_INLINE I splat_word(const std::byte* p) {
    uint32_t word = 0;
    __builtin_memcpy(&word, p, sizeof(word));
    return each_int([&](uint32_t) { return word; });
  }
  LILY_INLINE F splat(const std::byte* p) {
    float x = 0;
    __builtin_memcpy(&x, p, sizeof(x));
    return set1(x);
  }
  LILY_INLINE void store_digits(std::byte* p, I x) {
    for (uint32_t i = 0; i < N; ++i) {
      p[i % 2 * 4 + i / 2] = static_cast<std::byte>(x.v[i]);
    }
  }
  LILY_INLINE I first_digit(I x) {
    return each_int(
        [&](uint32_t i) { return static_cast<uint32_t>(static_cast<int32_t>(x.v[i] + 128) >> 8); });
  }
  LILY_INLINE I next_digit(I sum) {
    return each_int([&](uint32_t i) { return sum.v[i] << 8; });
  }
  LILY_INLINE I low_halves(I codes) {
    return each_int([&](uint32_t i) { return codes.v[i] & 0x0f0f0f0fU; });
  }
  LILY_INLINE I high_halves(I codes) {
    return each_int([&](uint32_t i) { return (codes.v[i] >> 4) & 0x0f0f0f0fU; });
  }
  LILY_INLINE I dot_bytes(I sum, I codes, I x) {
    LILY_UNROLL
    for (uint32_t shift = 0; shift < 32; shift += 8) {
      LILY_UNROLL
      for (uint32_t i = 0; i < N; ++i) {
        const int32_t digit = static_cast<int32_t>(x.v[i] << (24 - shift)) >> 24;
        sum.v[i] += static_cast<uint32_t>(digit) * ((codes.v[i] >> shift) & 0xffU);
      }
    }
    return sum;
  }
  LILY_INLINE I dot_halves(I sum, I low, I high, I x_low, I x_high) {
    return dot_bytes(dot_bytes(sum, low, x_low), high, x_high);
  }
};

}  // namespace

const Kernels kScalarKernels = Generic<Scalar>::table("scalar", "multiply-add of bytes in C++");

}  // namespace lily::cpu
