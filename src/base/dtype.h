// Element types of stored tensors, and exact conversions between the 16-bit floats and float.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace lily {

enum class DType : uint8_t { f32, f16, bf16, u32, i32, u8, i8, i64, f64, boolean, other };

constexpr uint32_t size_of(DType type) {
  switch (type) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::u32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::u8:
    case DType::i8:
    case DType::boolean:
      return 1;
    case DType::other:
      return 0;
  }
  return 0;
}

std::string_view to_string(DType type);

constexpr float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest, ties to even; a NaN stays a (quiet) NaN.
constexpr uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return static_cast<uint16_t>((bits >> 16) | 0x40U);
  }
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

float f16_to_float(uint16_t bits);
uint16_t float_to_f16(float value);  // round to nearest even, overflow to infinity

// Reads a T from memory of any alignment (tensors in a mapped file have none that is guaranteed).
template <class T>
T load_unaligned(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// The element `index` of a tensor of a floating type, as float. `type` must be f32, f16 or bf16.
float load_float(const std::byte* data, DType type, size_t index);

}  // namespace lily
