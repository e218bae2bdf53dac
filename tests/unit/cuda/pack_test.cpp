// The packed tiles hold the matrix of the file, read back as kernel_args.h says they are laid out.
#include "backends/cuda/pack.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/random_weights.h"
#include "weights/formats/affine.h"

namespace lily::cuda {
namespace {

float scale_part(const uint8_t* tile, const PackedMatrix& form, uint32_t row, uint32_t col, uint32_t which) {
  const uint8_t* scales = tile + form.planes * kPlaneBytes;
  if (form.wide != 0) {
    float value = 0;
    std::memcpy(&value, scales + ((col / 32) * 16 + row) * 8 + which * 4, 4);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, scales + row * 4 + which * 2, 2);
  return bf16_to_float(bits);
}

// Weight (row, col) of a tile, straight from the description of the layout.
float weight_at(const uint8_t* tile, const PackedMatrix& form, uint32_t row, uint32_t col) {
  const uint32_t step = col / 16;
  const uint32_t in_step = col % 16;
  const uint32_t lane = (row % 8) * 4 + (in_step % 8) / 2;
  const uint32_t nibble = row / 8 + 2 * (in_step / 8) + 4 * (in_step % 2);
  uint32_t code = 0;
  for (uint32_t plane = 0; plane < form.planes; ++plane) {
    uint32_t word = 0;
    std::memcpy(&word, tile + plane * kPlaneBytes + lane * 16 + step * 4, 4);
    code |= ((word >> (4 * nibble)) & 15U) << (4 * plane);
  }
  const float product = scale_part(tile, form, row, col, 0) * static_cast<float>(code);
  return product + scale_part(tile, form, row, col, 1);
}

// Row `row` of a packed matrix against the dequantised row of the file.
void expect_row(const std::vector<uint8_t>& packed, const PackedMatrix& form, uint32_t row,
                const AffineMatrix& part, uint32_t part_row) {
  std::vector<float> expected(part.cols);
  dequantize_row(part, part_row, expected);
  const uint8_t* block = packed.data() + (row / 16) * block_bytes(form);
  for (uint32_t col = 0; col < part.cols; ++col) {
    const uint8_t* tile = block + (col / 64) * form.tile_bytes;
    ASSERT_EQ(weight_at(tile, form, row % 16, col % 64), expected[col]) << "row " << row << " col " << col;
  }
}

std::vector<uint8_t> pack(const Recipe& recipe, const PackedMatrix& form, uint32_t matrix) {
  std::vector<uint8_t> packed(form.matrix_bytes, 0xee);
  for (uint32_t block = 0; block < form.row_blocks; ++block) {
    pack_block(recipe, form, matrix, block, packed.data() + block * block_bytes(form));
  }
  return packed;
}

class Pack : public ::testing::TestWithParam<test::RandomOptions> {};

TEST_P(Pack, AProjectionOfSeveralParts) {
  const test::RandomWeights weights(kTiny.with_layers(4), GetParam());
  const auto& w = std::get<DeltaNetWeights>(weights.get().layers[0].mixer);
  // in_proj_a and in_proj_b have 8 rows each: a block of 16 holds both.
  const Recipe recipe{.matrices = {{w.in_proj_qkv, w.in_proj_z, w.in_proj_a, w.in_proj_b}}};
  const auto form = packed_form(recipe, "in_proj");
  ASSERT_TRUE(form.has_value());
  const bool narrow = GetParam().group != 32 && GetParam().scale_type == DType::bf16;
  EXPECT_EQ(form->wide, narrow ? 0U : 1U);
  EXPECT_EQ(form->planes, GetParam().bits / 4);
  const auto packed = pack(recipe, *form, 0);
  uint32_t row = 0;
  for (const AffineMatrix& part : recipe.matrices[0]) {
    for (uint32_t r = 0; r<part.rows; r += part.rows> 64 ? 37 : 1) {
      expect_row(packed, *form, row + r, part, r);
    }
    row += part.rows;
  }
  EXPECT_EQ(row, form->rows);
}

TEST_P(Pack, PadsWithZeros) {
  const test::RandomWeights weights(kTiny.with_layers(4), GetParam());
  const MoeWeights& moe = weights.get().layers[0].moe;
  const Recipe recipe{.matrices = {{moe.router, moe.shared_gate}}};
  const auto form = packed_form(recipe, "router");
  ASSERT_TRUE(form.has_value());
  ASSERT_EQ(form->rows, 33U);
  ASSERT_EQ(form->row_blocks, 3U);
  const auto packed = pack(recipe, *form, 0);
  expect_row(packed, *form, 31, moe.router, 31);
  expect_row(packed, *form, 32, moe.shared_gate, 0);
  for (uint32_t row = 33; row < 48; ++row) {
    for (uint32_t col = 0; col < 64; ++col) {
      ASSERT_EQ(weight_at(packed.data() + 2 * block_bytes(*form), *form, row % 16, col), 0.0F);
    }
  }
}

TEST_P(Pack, GateAndUpAlternateByEightRows) {
  const test::RandomWeights weights(kTiny.with_layers(4), GetParam());
  const MoeWeights& moe = weights.get().layers[0].moe;
  Recipe recipe{.matrices = {}, .interleaved = true};
  for (const uint32_t expert : {0U, 31U}) {
    recipe.matrices.push_back({moe.gate.expert(expert), moe.up.expert(expert)});
  }
  recipe.matrices.push_back({moe.shared_gate_proj, moe.shared_up_proj});
  const auto form = packed_form(recipe, "gate_up");
  ASSERT_TRUE(form.has_value());
  EXPECT_EQ(form->row_blocks, 8U);
  for (uint32_t matrix = 0; matrix < 3; ++matrix) {
    const auto packed = pack(recipe, *form, matrix);
    for (uint32_t block = 0; block < form->row_blocks; ++block) {
      for (uint32_t r = 0; r < 16; ++r) {
        expect_row(packed, *form, block * 16 + r, recipe.matrices[matrix][r / 8], block * 8 + r % 8);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, Pack,
    ::testing::Values(test::RandomOptions{.bits = 4, .group = 64},
                      test::RandomOptions{.bits = 8, .group = 64},
                      test::RandomOptions{.bits = 4, .group = 128},
                      test::RandomOptions{.bits = 4, .group = 32, .scale_type = DType::f16},
                      test::RandomOptions{.bits = 8, .group = 32, .scale_type = DType::f32},
                      test::RandomOptions{.bits = 4, .group = 64, .scale_type = DType::f32}));

TEST(PackMixed, FourBitPartsBesideEightBitOnesAreWidened) {
  const Shape shape = kTiny.with_layers(4);
  const test::RandomWeights four(shape, {.seed = 3, .bits = 4});
  const test::RandomWeights eight(shape, {.seed = 4, .bits = 8});
  const AffineMatrix& a = four.get().layers[0].moe.shared_gate_proj;
  const AffineMatrix& b = eight.get().layers[0].moe.shared_up_proj;
  const Recipe recipe{.matrices = {{a, b}}};
  const auto form = packed_form(recipe, "mixed");
  ASSERT_TRUE(form.has_value());
  EXPECT_EQ(form->planes, 2U);
  const auto packed = pack(recipe, *form, 0);
  expect_row(packed, *form, 5, a, 5);
  expect_row(packed, *form, 64 + 9, b, 9);
}

TEST(PackMixed, RefusesWhatDoesNotFitTiles) {
  AffineMatrix odd{.rows = 16, .cols = 96, .group = 32};
  const auto form = packed_form({.matrices = {{odd}}}, "layer 7 down_proj");
  ASSERT_FALSE(form.has_value());
  EXPECT_EQ(form.error().kind, ErrorKind::unsupported);
  EXPECT_NE(form.error().message.find("layer 7 down_proj"), std::string::npos);
}

}  // namespace
}  // namespace lily::cuda
