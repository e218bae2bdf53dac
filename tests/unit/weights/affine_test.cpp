#include "weights/formats/affine.h"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

namespace lily {
namespace {

// The definition, with the words read as the format describes them: element i of a row in bits
// [bits*i, bits*i + bits) of its little-endian u32 stream.
uint32_t code_by_words(const std::vector<std::byte>& codes, size_t row_words, uint32_t row, uint32_t bits,
                       uint32_t i) {
  const uint32_t per_word = 32 / bits;
  const size_t at = (size_t{row} * row_words + i / per_word) * 4;
  uint32_t word = 0;
  for (size_t byte = 4; byte-- > 0;) {
    word = word << 8 | static_cast<uint32_t>(codes[at + byte]);
  }
  return word >> (bits * (i % per_word)) & ((1U << bits) - 1);
}

RC_GTEST_PROP(Affine, DecodesEveryFormat, ()) {
  const uint32_t bits = *rc::gen::element(4U, 8U);
  const uint32_t group = *rc::gen::element(32U, 64U, 128U);
  const uint32_t rows = *rc::gen::inRange(1U, 5U);
  const uint32_t cols = group * *rc::gen::inRange(1U, 4U);
  const uint32_t experts = *rc::gen::inRange(1U, 4U);
  const DType type = *rc::gen::element(DType::bf16, DType::f16, DType::f32);
  const uint32_t chosen = *rc::gen::inRange(0U, experts);

  AffineMatrix matrix{
      .scale_type = type, .rows = rows, .cols = cols, .experts = experts, .bits = bits, .group = group};
  // One byte of offset: the data has no alignment.
  std::vector<std::byte> codes(1 + experts * matrix.code_bytes());
  std::vector<std::byte> scales(1 + experts * matrix.scale_bytes());
  std::vector<std::byte> biases(scales.size());
  uint64_t state = *rc::gen::arbitrary<uint64_t>();
  const auto next = [&] {
    return static_cast<std::byte>((state = state * 6364136223846793005ULL + 1442695040888963407ULL) >> 56);
  };
  for (auto* bytes : {&codes, &scales, &biases}) {
    std::generate(bytes->begin(), bytes->end(), next);
  }
  // Finite values: clear the top exponent bit of the last byte of every element.
  for (auto* bytes : {&scales, &biases}) {
    for (size_t i = size_of(type); i < bytes->size(); i += size_of(type)) {
      (*bytes)[i] &= std::byte{0xbf};
    }
  }
  matrix.codes = codes.data() + 1;
  matrix.scales = scales.data() + 1;
  matrix.biases = biases.data() + 1;

  const AffineMatrix one = matrix.expert(chosen);
  const std::vector<std::byte> aligned(one.codes, one.codes + one.code_bytes());
  std::vector<uint8_t> decoded(cols);
  std::vector<float> floats(cols);
  for (uint32_t row = 0; row < rows; ++row) {
    decode_codes(one, row, decoded);
    dequantize_row(one, row, floats);
    for (uint32_t i = 0; i < cols; ++i) {
      const uint32_t code = code_by_words(aligned, cols * bits / 32, row, bits, i);
      RC_ASSERT(decoded[i] == code);
      const AffineGroup g = load_group(one, row, i / group);
      const size_t at = size_t{row} * (cols / group) + i / group;
      RC_ASSERT(g.scale == load_float(one.scales, type, at));
      RC_ASSERT(g.bias == load_float(one.biases, type, at));
      volatile const float product = g.scale * static_cast<float>(code);
      RC_ASSERT(floats[i] == product + g.bias);
    }
  }
}

TEST(Affine, AWordByHand) {
  // Elements 0..7 are the nibbles of 0x76543210, lowest first.
  std::vector<std::byte> codes(16);
  const uint32_t word = 0x76543210;
  std::memcpy(codes.data(), &word, 4);
  const float scale = 0.5F;
  const float bias = -1.0F;
  const AffineMatrix matrix{.codes = codes.data(),
                            .scales = reinterpret_cast<const std::byte*>(&scale),
                            .biases = reinterpret_cast<const std::byte*>(&bias),
                            .scale_type = DType::f32,
                            .rows = 1,
                            .cols = 32,
                            .bits = 4,
                            .group = 32};
  std::vector<float> row(32);
  dequantize_row(matrix, 0, row);
  for (uint32_t i = 0; i < 8; ++i) {
    EXPECT_EQ(row[i], 0.5F * static_cast<float>(i) - 1.0F);
  }
  EXPECT_EQ(row[8], -1.0F);
}

}  // namespace
}  // namespace lily
