// Products of bytes without VNNI: of pairs in 16 bits, then of pairs of those.
#pragma once

#include "backends/cpu/isa/vectors.h"

namespace lily::cpu {
namespace {

// Base multiplies codes below 16 with digits without saturation: pairs(codes, x) in 16 bits.
template <class Base>
struct PairsOf : Base {
  using I = typename Base::I;
  LILY_INLINE I dot_halves(I sum, I low, I high, I x_low, I x_high) {
    const I both = Base::add_shorts(Base::pairs(low, x_low), Base::pairs(high, x_high));
    return Base::add_int(sum, Base::join_pairs(both, 1));
  }
  LILY_INLINE I dot_bytes(I sum, I codes, I x) {
    sum = Base::add_int(sum, Base::join_pairs(Base::pairs(Base::low_halves(codes), x), 1));
    return Base::add_int(sum, Base::join_pairs(Base::pairs(Base::high_halves(codes), x), 16));
  }
};

}  // namespace
}  // namespace lily::cpu
