// Functions of <metal_stdlib> on scalars and vectors.
#pragma once

#include "vectors.h"

namespace metal {

using lily_metal::Parts;
using lily_metal::When;

template <class T, int N>
using vec = typename lily_metal::Vector<T, N>::type;

// The same bits as another type of the same size.
template <class To, class From>
inline To as_type(From from) {
#ifndef LILY_METAL_TYPES_ONLY
  static_assert(sizeof(To) == sizeof(From), "as_type between types of one size");
#endif
  To to;
  __builtin_memcpy(&to, &from, sizeof(To) < sizeof(From) ? sizeof(To) : sizeof(From));
  return to;
}

#define LILY_ELEMENTWISE(name)                                   \
  template <class V>                                             \
  inline typename When<Parts<V>::size != 0, V>::type name(V v) { \
    V result;                                                    \
    for (int i = 0; i < Parts<V>::size; ++i) {                   \
      result[i] = name(v[i]);                                    \
    }                                                            \
    return result;                                               \
  }
#define LILY_ELEMENTWISE_2(name)                                      \
  template <class V>                                                  \
  inline typename When<Parts<V>::size != 0, V>::type name(V a, V b) { \
    V result;                                                         \
    for (int i = 0; i < Parts<V>::size; ++i) {                        \
      result[i] = name(a[i], b[i]);                                   \
    }                                                                 \
    return result;                                                    \
  }
#define LILY_ELEMENTWISE_3(name)                                           \
  template <class V>                                                       \
  inline typename When<Parts<V>::size != 0, V>::type name(V a, V b, V c) { \
    V result;                                                              \
    for (int i = 0; i < Parts<V>::size; ++i) {                             \
      result[i] = name(a[i], b[i], c[i]);                                  \
    }                                                                      \
    return result;                                                         \
  }
#define LILY_UNARY(name, expression)                          \
  inline float name(float x) { return expression; }           \
  inline half name(half value) {                              \
    const float x = static_cast<float>(value);                \
    return static_cast<half>(static_cast<float>(expression)); \
  }                                                           \
  LILY_ELEMENTWISE(name)
LILY_UNARY(exp, __builtin_expf(x))
LILY_UNARY(exp2, __builtin_exp2f(x))
LILY_UNARY(log, __builtin_logf(x))
LILY_UNARY(log2, __builtin_log2f(x))
LILY_UNARY(sqrt, __builtin_sqrtf(x))
LILY_UNARY(rsqrt, 1.0f / __builtin_sqrtf(x))
LILY_UNARY(sin, __builtin_sinf(x))
LILY_UNARY(cos, __builtin_cosf(x))
LILY_UNARY(tanh, __builtin_tanhf(x))
LILY_UNARY(floor, __builtin_floorf(x))
LILY_UNARY(ceil, __builtin_ceilf(x))
LILY_UNARY(round, __builtin_roundf(x))
LILY_UNARY(rint, __builtin_rintf(x))
LILY_UNARY(trunc, __builtin_truncf(x))
LILY_UNARY(fabs, __builtin_fabsf(x))
LILY_UNARY(sign, (x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f))
#undef LILY_UNARY

inline bool isnan(float x) { return x != x; }
inline bool isinf(float x) { return __builtin_fabsf(x) == __builtin_inff(); }
inline bool isfinite(float x) { return __builtin_fabsf(x) < __builtin_inff(); }
inline bool isnan(half x) { return isnan(static_cast<float>(x)); }
inline bool isinf(half x) { return isinf(static_cast<float>(x)); }
inline bool isfinite(half x) { return isfinite(static_cast<float>(x)); }

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
LILY_ELEMENTWISE_3(fma)
inline float pow(float x, float y) { return __builtin_powf(x, y); }
LILY_ELEMENTWISE_2(pow)

// Of two numbers, of which one may be NaN: then the other.
inline float fmax(float a, float b) { return b != b ? a : (a > b ? a : b); }
inline float fmin(float a, float b) { return b != b ? a : (a < b ? a : b); }
inline float max(float a, float b) { return fmax(a, b); }
inline float min(float a, float b) { return fmin(a, b); }
inline half max(half a, half b) { return half(fmax(static_cast<float>(a), static_cast<float>(b))); }
inline half min(half a, half b) { return half(fmin(static_cast<float>(a), static_cast<float>(b))); }
LILY_ELEMENTWISE_2(fmax)
LILY_ELEMENTWISE_2(fmin)

// Both arguments of one type, as Metal's overloads want it.
#define LILY_INTEGER(T)                                                 \
  inline T max(T a, T b) { return a > b ? a : b; }                      \
  inline T min(T a, T b) { return a < b ? a : b; }                      \
  inline T clamp(T x, T low, T high) { return min(max(x, low), high); } \
  inline T popcount(T x) { return T(__builtin_popcountl((unsigned long)x & (~0ul >> (64 - 8 * sizeof(T))))); }
LILY_INTEGER(char)
LILY_INTEGER(uchar)
LILY_INTEGER(short)
LILY_INTEGER(ushort)
LILY_INTEGER(int)
LILY_INTEGER(uint)
LILY_INTEGER(long)
LILY_INTEGER(ulong)
#undef LILY_INTEGER
inline float clamp(float x, float low, float high) { return fmin(fmax(x, low), high); }
inline half clamp(half x, half low, half high) { return min(max(x, low), high); }
LILY_ELEMENTWISE_2(max)
LILY_ELEMENTWISE_2(min)
LILY_ELEMENTWISE_3(clamp)

inline int abs(int x) { return x < 0 ? -x : x; }
inline float abs(float x) { return __builtin_fabsf(x); }
LILY_ELEMENTWISE(abs)
inline uint clz(uint x) { return x == 0 ? 32u : uint(__builtin_clz(x)); }
inline uint ctz(uint x) { return x == 0 ? 32u : uint(__builtin_ctz(x)); }
inline uint extract_bits(uint x, uint offset, uint bits) {
  return bits == 0 ? 0u : (x >> offset) & (~0u >> (32 - bits));
}

// b where the condition holds.
template <class T>
inline typename When<Parts<T>::size == 0, T>::type select(T a, T b, bool condition) {
  return condition ? b : a;
}
template <class V, class C>
inline typename When<Parts<V>::size != 0, V>::type select(V a, V b, C condition) {
  V result;
  for (int i = 0; i < Parts<V>::size; ++i) {
    result[i] = condition[i] ? b[i] : a[i];
  }
  return result;
}
template <class V>
inline typename When<Parts<V>::size != 0, bool>::type any(V v) {
  bool found = false;
  for (int i = 0; i < Parts<V>::size; ++i) {
    found = found || v[i];
  }
  return found;
}
template <class V>
inline typename When<Parts<V>::size != 0, bool>::type all(V v) {
  bool found = true;
  for (int i = 0; i < Parts<V>::size; ++i) {
    found = found && v[i];
  }
  return found;
}
template <class V>
inline typename When<Parts<V>::size != 0, typename Parts<V>::element>::type dot(V a, V b) {
  typename Parts<V>::element sum = a[0] * b[0];
  for (int i = 1; i < Parts<V>::size; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}
#undef LILY_ELEMENTWISE
#undef LILY_ELEMENTWISE_2
#undef LILY_ELEMENTWISE_3

namespace precise {
using metal::cos;
using metal::exp;
using metal::exp2;
using metal::fma;
using metal::log;
using metal::log2;
using metal::pow;
using metal::rsqrt;
using metal::sin;
using metal::sqrt;
using metal::tanh;
}  // namespace precise

}  // namespace metal
