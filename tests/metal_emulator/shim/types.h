// Scalars and vectors of Metal. In the pass that only checks types (LILY_METAL_TYPES_ONLY) half is the
// compiler's own and bfloat stands in as double: nothing is executed, and loads from address spaces need
// built-in types.
#pragma once

#include "runtime.h"

namespace lily_metal {

template <class A, class B>
struct Same {
  static constexpr bool value = false;
};
template <class A>
struct Same<A, A> {
  static constexpr bool value = true;
};
template <bool, class T = void>
struct When {};
template <class T>
struct When<true, T> {
  using type = T;
};
template <class T>
struct Number {  // a built-in scalar
  static constexpr bool value = false;
  static constexpr bool whole = false;
};
#define LILY_NUMBER(T, W)               \
  template <>                           \
  struct Number<T> {                    \
    static constexpr bool value = true; \
    static constexpr bool whole = W;    \
  };
LILY_NUMBER(bool, true)
LILY_NUMBER(char, true)
LILY_NUMBER(signed char, true)
LILY_NUMBER(unsigned char, true)
LILY_NUMBER(short, true)
LILY_NUMBER(unsigned short, true)
LILY_NUMBER(int, true)
LILY_NUMBER(unsigned, true)
LILY_NUMBER(long, true)
LILY_NUMBER(unsigned long, true)
LILY_NUMBER(float, false)
#undef LILY_NUMBER

template <class To, class From>
LILY_QUIET inline To same_bits(const From& from) {
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

// IEEE binary16, round to nearest even.
LILY_QUIET inline unsigned short half_from_float(float value) {
  unsigned bits = same_bits<unsigned>(value);
  const unsigned sign = (bits >> 16) & 0x8000;
  bits &= 0x7fffffff;
  if (bits >= 0x477ff000) {  // rounds to infinity, or is one, or not a number
    return static_cast<unsigned short>(sign | (bits > 0x7f800000 ? 0x7e00 : 0x7c00));
  }
  if (bits < 0x38800000) {  // subnormal: the sum puts the rounding where it belongs
    const float shifted = same_bits<float>(bits) + 0.5f;
    return static_cast<unsigned short>(sign | (same_bits<unsigned>(shifted) - 0x3f000000));
  }
  bits += 0xc8000fff + ((bits >> 13) & 1);
  return static_cast<unsigned short>(sign | (bits >> 13));
}
LILY_QUIET inline float float_from_half(unsigned short half) {
  const unsigned magnitude = half & 0x7fffu;
  unsigned bits = same_bits<unsigned>(same_bits<float>(magnitude << 13) * 0x1p112f);
  if (magnitude >= 0x7c00) {
    bits = (magnitude << 13) | 0x7f800000;
  }
  return same_bits<float>(bits | ((half & 0x8000u) << 16));
}
LILY_QUIET inline unsigned short bfloat_from_float(float value) {
  const unsigned bits = same_bits<unsigned>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) {
    return static_cast<unsigned short>((bits >> 16) | 0x40);
  }
  return static_cast<unsigned short>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace lily_metal

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef unsigned long size_t;

#ifdef LILY_METAL_TYPES_ONLY

typedef _Float16 half;
typedef double bfloat;
namespace lily_metal {
template <>
struct Number<half> {
  static constexpr bool value = true;
  static constexpr bool whole = false;
};
template <>
struct Number<bfloat> {
  static constexpr bool value = true;
  static constexpr bool whole = false;
};
}  // namespace lily_metal

#else

struct half {
  unsigned short bits;
  half() = default;
  template <class N, class = typename lily_metal::When<lily_metal::Number<N>::value>::type>
  half(N value) : bits(lily_metal::half_from_float(static_cast<float>(value))) {}
  operator float() const { return lily_metal::float_from_half(bits); }
};

struct bfloat {  // for storage
  unsigned short bits;
  bfloat() = default;
  explicit bfloat(float value) : bits(lily_metal::bfloat_from_float(value)) {}
  explicit operator float() const { return lily_metal::same_bits<float>(static_cast<unsigned>(bits) << 16); }
};

namespace lily_metal {
// The type of an operation with a half on at least one side.
template <class A, class B>
struct HalfResult {};
template <>
struct HalfResult<half, half> {
  using type = half;
};
template <class N>
struct HalfResult<half, N> {
  using type = typename When<Number<N>::value, half>::type;
};
template <class N>
struct HalfResult<N, half> {
  using type = typename When<Number<N>::value, half>::type;
};
template <>
struct HalfResult<half, float> {
  using type = float;
};
template <>
struct HalfResult<float, half> {
  using type = float;
};
}  // namespace lily_metal

#define LILY_ARITHMETIC(op)                                                   \
  template <class A, class B>                                                 \
  inline typename lily_metal::HalfResult<A, B>::type operator op(A a, B b) {  \
    return typename lily_metal::HalfResult<A, B>::type(float(a) op float(b)); \
  }                                                                           \
  template <class B>                                                          \
  inline half& operator op##=(half& a, B b) {                                 \
    return a = half(float(a) op float(b));                                    \
  }
LILY_ARITHMETIC(+)
LILY_ARITHMETIC(-)
LILY_ARITHMETIC(*)
LILY_ARITHMETIC(/)
#undef LILY_ARITHMETIC
#define LILY_COMPARISON(op)                                                        \
  template <class A, class B, class = typename lily_metal::HalfResult<A, B>::type> \
  inline bool operator op(A a, B b) {                                              \
    return float(a) op float(b);                                                   \
  }
LILY_COMPARISON(<)
LILY_COMPARISON(>)
LILY_COMPARISON(<=)
LILY_COMPARISON(>=)
LILY_COMPARISON(==)
LILY_COMPARISON(!=)
#undef LILY_COMPARISON
inline half operator-(half a) { return half(-float(a)); }

#endif
