#include "base/dtype.h"

#include <cmath>

#include "base/check.h"

namespace lily {

std::string_view to_string(DType type) {
  switch (type) {
    case DType::f32:
      return "F32";
    case DType::f16:
      return "F16";
    case DType::bf16:
      return "BF16";
    case DType::u32:
      return "U32";
    case DType::i32:
      return "I32";
    case DType::u8:
      return "U8";
    case DType::i8:
      return "I8";
    case DType::i64:
      return "I64";
    case DType::f64:
      return "F64";
    case DType::boolean:
      return "BOOL";
    case DType::other:
      return "other";
  }
  return "other";
}

float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fU;
  const uint32_t mantissa = bits & 0x3ffU;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  if (exponent == 31) {
    return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t float_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {
    return static_cast<uint16_t>(sign | 0x7e00U);
  }
  if (magnitude >= 0x477ff000U) {  // 65520 and above round to infinity
    return static_cast<uint16_t>(sign | 0x7c00U);
  }
  if (magnitude < 0x38800000U) {  // below 2^-14: subnormal, one unit is 2^-24
    const float units = std::nearbyint(std::ldexp(std::bit_cast<float>(magnitude), 24));
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(units));
  }
  const uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

float load_float(const std::byte* data, DType type, size_t index) {
  switch (type) {
    case DType::f32:
      return load_unaligned<float>(data + index * 4);
    case DType::f16:
      return f16_to_float(load_unaligned<uint16_t>(data + index * 2));
    case DType::bf16:
      return bf16_to_float(load_unaligned<uint16_t>(data + index * 2));
    default:
      break;
  }
  LILY_CHECK(!"load_float: not a floating type");
  return 0.0F;
}

}  // namespace lily
