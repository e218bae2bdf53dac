#pragma once

#include <cmath>
#include <cstdint>

struct __half {
  uint16_t bits;
};
inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
inline float __half2float(__half x) {
  const int exponent = x.bits >> 10 & 31;
  const float mantissa = static_cast<float>(x.bits & 1023);
  const float size = exponent == 0    ? std::ldexp(mantissa, -24)
                     : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                      : std::ldexp(1024 + mantissa, exponent - 25);
  return (x.bits & 0x8000) != 0 ? -size : size;
}
