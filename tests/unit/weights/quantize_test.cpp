#include "weights/quantize.h"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/checkpoint_builder.h"
#include "weights/formats/affine.h"

namespace lily {
namespace {

namespace json = boost::json;

template <class T>
std::vector<T> numbers(const json::value& array) {
  std::vector<T> out;
  for (const json::value& value : array.as_array()) {
    out.push_back(value.to_number<T>());
  }
  return out;
}

// Output of mx.quantize, made by tools/golden/convert_reference.py.
TEST(Quantize, EqualsMlxBitForBit) {
  const json::value golden =
      json::parse(test::read_file(std::string(LILY_SOURCE_DIR) + "/tests/golden/quantize.json"));
  size_t cases = 0;
  for (const json::value& entry : golden.at("cases").as_array()) {
    const QuantFormat format{entry.at("bits").to_number<uint32_t>(), entry.at("group").to_number<uint32_t>()};
    const auto input = numbers<uint16_t>(entry.at("input"));
    std::vector<float> weights(input.size());
    load_floats(std::as_bytes(std::span(input)), DType::bf16, weights);
    std::vector<uint32_t> codes(input.size() * format.bits / 32);
    std::vector<float> scales(input.size() / format.group);
    std::vector<float> biases(scales.size());
    quantize_groups(weights, format, std::as_writable_bytes(std::span(codes)), scales, biases);
    std::vector<uint16_t> stored(scales.size());
    const std::string name = std::string(entry.at("kind").as_string()) + " " + std::to_string(format.bits) +
                             "/" + std::to_string(format.group);
    EXPECT_EQ(codes, numbers<uint32_t>(entry.at("weight"))) << name;
    store_floats(scales, DType::bf16, std::as_writable_bytes(std::span(stored)));
    EXPECT_EQ(stored, numbers<uint16_t>(entry.at("scales"))) << name;
    store_floats(biases, DType::bf16, std::as_writable_bytes(std::span(stored)));
    EXPECT_EQ(stored, numbers<uint16_t>(entry.at("biases"))) << name;
    ++cases;
  }
  EXPECT_EQ(cases, 96U);
}

// The definition of docs/QUANTIZATION.md, as plainly as it can be written.
struct Plain {
  std::vector<uint32_t> codes;
  float scale, bias;
};
Plain quantize_plainly(std::span<const float> w, uint32_t bits) {
  const float levels = static_cast<float>((1U << bits) - 1);
  const float high = *std::max_element(w.begin(), w.end());
  const float low = *std::min_element(w.begin(), w.end());
  const bool low_is_edge = std::fabs(low) > std::fabs(high);
  const float edge = low_is_edge ? low : high;
  Plain out{{}, std::max((high - low) / levels, 1e-7F) * (low_is_edge ? 1.0F : -1.0F), 0.0F};
  const float steps = std::rint(edge / out.scale);
  if (steps != 0) {
    out.scale = edge / steps;
    out.bias = edge;
  }
  for (const float value : w) {
    out.codes.push_back(
        static_cast<uint32_t>(std::clamp(std::rint((value - out.bias) / out.scale), 0.0F, levels)));
  }
  return out;
}

RC_GTEST_PROP(Quantize, EqualsTheDefinition, ()) {
  const QuantFormat format{*rc::gen::element(4U, 8U), *rc::gen::element(32U, 64U, 128U)};
  const uint32_t groups = *rc::gen::inRange(1U, 5U);
  const float magnitude = std::ldexp(1.0F, *rc::gen::inRange(-40, 40));
  const bool coarse = *rc::gen::arbitrary<bool>();  // ties and equal values
  std::vector<float> weights(size_t{groups} * format.group);
  for (float& weight : weights) {
    const auto draw = static_cast<float>(*rc::gen::inRange(-30'000, 30'001));
    weight = magnitude * (coarse ? std::round(draw / 2000.0F) * 0.5F : draw * 0x1p-15F);
  }
  std::vector<std::byte> codes(weights.size() * format.bits / 8);
  std::vector<float> scales(groups);
  std::vector<float> biases(groups);
  quantize_groups(weights, format, codes, scales, biases);
  for (uint32_t group = 0; group < groups; ++group) {
    const Plain plain =
        quantize_plainly(std::span(weights).subspan(group * format.group, format.group), format.bits);
    RC_ASSERT(scales[group] == plain.scale);
    RC_ASSERT(biases[group] == plain.bias);
    const AffineMatrix matrix{.codes = codes.data(),
                              .rows = 1,
                              .cols = static_cast<uint32_t>(weights.size()),
                              .bits = format.bits,
                              .group = format.group};
    std::vector<uint8_t> decoded(weights.size());
    decode_codes(matrix, 0, decoded);
    for (uint32_t i = 0; i < format.group; ++i) {
      RC_ASSERT(decoded[group * format.group + i] == plain.codes[i]);
    }
  }
}

TEST(Quantize, AGroupOfZerosIsExact) {
  const std::vector<float> weights(64, 0.0F);
  std::vector<std::byte> codes(32, std::byte{0xff});
  float scale = 0;
  float bias = 1;
  quantize_groups(weights, {4, 64}, codes, {&scale, 1}, {&bias, 1});
  EXPECT_EQ(scale, -1e-7F);
  EXPECT_EQ(bias, 0.0F);
  EXPECT_THAT(codes, ::testing::Each(std::byte{0}));
}

TEST(Quantize, FindsWhatIsNotFinite) {
  std::vector<float> values(100, 1.0F);
  EXPECT_EQ(find_not_finite(values), 100U);
  values[70] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(find_not_finite(values), 70U);
  values[33] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(find_not_finite(values), 33U);
  EXPECT_EQ(find_not_finite({}), 0U);
}

RC_GTEST_PROP(Quantize, StoringAndLoadingRoundTrips, ()) {
  const DType type = *rc::gen::element(DType::bf16, DType::f16, DType::f32);
  const auto draws = *rc::gen::container<std::vector<int16_t>>(rc::gen::arbitrary<int16_t>());
  std::vector<float> values(draws.begin(), draws.end());
  for (float& value : values) {
    value = std::ldexp(std::trunc(value / 256.0F), -6);  // 8 significant bits: exact in every type
  }
  std::vector<std::byte> bytes(values.size() * size_of(type));
  store_floats(values, type, bytes);
  std::vector<float> back(values.size());
  load_floats(bytes, type, back);
  RC_ASSERT(back == values);
}

}  // namespace
}  // namespace lily
