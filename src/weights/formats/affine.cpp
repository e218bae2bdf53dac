#include "weights/formats/affine.h"

#include "base/check.h"

namespace lily {
namespace {

size_t group_offset(const AffineMatrix& matrix, uint32_t row, uint32_t group_index) {
  return size_t{row} * (matrix.cols / matrix.group) + group_index;
}

// A row of codes is a stream of little-endian words filled from the lowest bits: for 8 bits element i is byte
// i, for 4 bits element i is the low (even i) or high (odd i) half of byte i / 2.
uint32_t code_at(const std::byte* row, uint32_t bits, uint32_t index) {
  if (bits == 8) {
    return static_cast<uint32_t>(row[index]);
  }
  const auto pair = static_cast<uint32_t>(row[index / 2]);
  return index % 2 == 0 ? pair & 15U : pair >> 4;
}

const std::byte* row_codes(const AffineMatrix& matrix, uint32_t row) {
  LILY_CHECK(matrix.experts == 1 && row < matrix.rows);
  return matrix.codes + size_t{row} * matrix.cols * matrix.bits / 8;
}

}  // namespace

void decode_codes(const AffineMatrix& matrix, uint32_t row, std::span<uint8_t> out) {
  LILY_CHECK(out.size() == matrix.cols);
  const std::byte* codes = row_codes(matrix, row);
  for (uint32_t i = 0; i < matrix.cols; ++i) {
    out[i] = static_cast<uint8_t>(code_at(codes, matrix.bits, i));
  }
}

AffineGroup load_group(const AffineMatrix& matrix, uint32_t row, uint32_t group_index) {
  LILY_CHECK(matrix.experts == 1 && row < matrix.rows && group_index < matrix.cols / matrix.group);
  const size_t offset = group_offset(matrix, row, group_index);
  return {load_float(matrix.scales, matrix.scale_type, offset),
          load_float(matrix.biases, matrix.scale_type, offset)};
}

void dequantize_row(const AffineMatrix& matrix, uint32_t row, std::span<float> out) {
  LILY_CHECK(out.size() == matrix.cols);
  const std::byte* codes = row_codes(matrix, row);
  for (uint32_t first = 0; first < matrix.cols; first += matrix.group) {
    const AffineGroup group = load_group(matrix, row, first / matrix.group);
    const std::byte* from = codes + size_t{first} * matrix.bits / 8;
    float* to = out.data() + first;
    const auto value = [group](uint32_t code) {
      const float product = group.scale * static_cast<float>(static_cast<int32_t>(code));
      return product + group.bias;
    };
    if (matrix.bits == 8) {
      for (size_t i = 0; i < matrix.group; ++i) {
        to[i] = value(static_cast<uint32_t>(from[i]));
      }
      continue;
    }
    for (size_t i = 0; i < matrix.group / 2; ++i) {
      to[2 * i] = value(static_cast<uint32_t>(from[i]) & 15U);
      to[2 * i + 1] = value(static_cast<uint32_t>(from[i]) >> 4);
    }
  }
}

}  // namespace lily
