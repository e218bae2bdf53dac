#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lily {
namespace {

TEST(Bf16, EveryPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float value = bf16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value))));
    } else {
      EXPECT_EQ(float_to_bf16(value), bits);
    }
  }
}

TEST(Bf16, RoundsToNearestTiesToEven) {
  EXPECT_EQ(float_to_bf16(1.0F), 0x3f80);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808000U)), 0x3f80);  // halfway, even below
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f818000U)), 0x3f82);  // halfway, even above
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808001U)), 0x3f81);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);  // rounds to infinity
}

TEST(F16, EveryPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float value = f16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(value))));
    } else {
      EXPECT_EQ(float_to_f16(value), bits) << value;
    }
  }
}

TEST(F16, RoundsToNearestTiesToEven) {
  EXPECT_EQ(float_to_f16(1.0F + 0x1p-11F), 0x3c00);      // halfway, even below
  EXPECT_EQ(float_to_f16(1.0F + 3 * 0x1p-11F), 0x3c02);  // halfway, even above
  EXPECT_EQ(float_to_f16(65519.0F), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0F), 0x7c00);
  EXPECT_EQ(float_to_f16(0x1p-25F), 0x0000);  // half of the smallest, ties to even
  EXPECT_EQ(float_to_f16(0x1.8p-25F), 0x0001);
  EXPECT_EQ(float_to_f16(-0x1.ffcp-15F - 0x1p-26F), 0x8400);  // the largest subnormal rounds up to normal
}

TEST(LoadFloat, ReadsEveryFloatingTypeAtAnyAlignment) {
  alignas(8) std::byte buffer[16] = {};
  const float value = -1.5F;
  std::memcpy(buffer + 1 + 4, &value, 4);
  EXPECT_EQ(load_float(buffer + 1, DType::f32, 1), -1.5F);
  const uint16_t half = float_to_f16(-1.5F);
  std::memcpy(buffer + 3, &half, 2);
  EXPECT_EQ(load_float(buffer + 3, DType::f16, 0), -1.5F);
  const uint16_t brain = float_to_bf16(-1.5F);
  std::memcpy(buffer + 3, &brain, 2);
  EXPECT_EQ(load_float(buffer + 3, DType::bf16, 0), -1.5F);
  EXPECT_ANY_THROW(load_float(buffer, DType::u32, 0));
}

}  // namespace
}  // namespace lily
