// Armv8.6 with products of unsigned and signed bytes (Neoverse V1, Apple M2 and later): codes of 8 bits
// without a detour.
#if defined(__ARM_FEATURE_DOTPROD) && defined(__ARM_FEATURE_MATMUL_INT8)
#include "backends/cpu/isa/generic.h"
#include "backends/cpu/isa/neon.h"
#else
#include "backends/cpu/kernels.h"
#endif

namespace lily::cpu {

#if defined(__ARM_FEATURE_DOTPROD) && defined(__ARM_FEATURE_MATMUL_INT8)
namespace {

struct I8mm : Neon {
  LILY_INLINE int32x4_t dot(int32x4_t sum, int32x4_t codes, int32x4_t x) {
    return vusdotq_s32(sum, vreinterpretq_u8_s32(codes), vreinterpretq_s8_s32(x));
  }
  LILY_INLINE I dot_halves(I sum, I low, I high, I x_low, I x_high) {
    return {dot(dot(sum.a, low.a, x_low.a), high.a, x_high.a),
            dot(dot(sum.b, low.b, x_low.b), high.b, x_high.b)};
  }
  LILY_INLINE I dot_bytes(I sum, I codes, I x) {
    return {dot(sum.a, codes.a, x.a), dot(sum.b, codes.b, x.b)};
  }
};

constexpr Kernels kTable = Generic<I8mm>::table("i8mm", "usdot");

}  // namespace

const Kernels* i8mm_kernels() { return &kTable; }

#else

const Kernels* i8mm_kernels() { return nullptr; }

#endif

}  // namespace lily::cpu
