#pragma once

#include <cstdint>

#include "cuda_runtime.h"

// Rounded to nearest, ties to even; what is not a number stays none.
struct __nv_bfloat16 {
  uint16_t bits;
};
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  const uint32_t bits = __float_as_uint(x);
  if (x != x) {
    return {0x7fff};
  }
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
