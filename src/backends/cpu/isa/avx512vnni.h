// The vectors of AVX-512 with VNNI.
#pragma once

#include "backends/cpu/isa/avx512.h"

namespace lily::cpu {
namespace {

struct Avx512Vnni : Avx512Base {
  LILY_INLINE I dot_halves(I sum, I low, I high, I x_low, I x_high) {
    sum = _mm512_dpbusd_epi32(sum, low, x_low);
    return _mm512_dpbusd_epi32(sum, high, x_high);
  }
  LILY_INLINE I dot_bytes(I sum, I codes, I x) { return _mm512_dpbusd_epi32(sum, codes, x); }
};

}  // namespace
}  // namespace lily::cpu
