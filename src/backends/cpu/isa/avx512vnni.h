// The vectors of AVX-512 with VNNI.
#pragma once

#include "backends/cpu/isa/avx512.h"

namespace lily::cpu {
namespace {

struct Avx512Vnni : Avx512Base {
  // Not the intrinsic: GCC 12 then copies nearly every sum to another register and back.
  LILY_INLINE I dot_bytes(I sum, I codes, I x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(x));
    return sum;
  }
  LILY_INLINE I dot_halves(I sum, I low, I high, I x_low, I x_high) {
    return dot_bytes(dot_bytes(sum, low, x_low), high, x_high);
  }
};

}  // namespace
}  // namespace lily::cpu
