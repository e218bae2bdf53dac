#include "weights/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace lily {
namespace {

// Adding 1.5 * 2^23 rounds a float32 of magnitude below 2^22 to a whole number, ties to even, in the last
// bits of the sum; the loop below stays free of calls and is vectorised.
constexpr float kRounder = 12'582'912.0F;
constexpr uint32_t kMaxGroup = 128;

struct Fit {
  float scale;
  float bias;
};

Fit fit_group(std::span<const float> weights, float levels) {
  float high = weights[0];
  float low = weights[0];
  for (const float weight : weights) {
    high = weight > high ? weight : high;
    low = weight < low ? weight : low;
  }
  const float step = (high - low) / levels;
  const float width = step > 1e-7F ? step : 1e-7F;
  const bool low_is_edge = std::abs(low) > std::abs(high);
  const float edge = low_is_edge ? low : high;
  const float scale = low_is_edge ? width : -width;
  const float steps = std::rint(edge / scale);
  if (steps != 0.0F) {
    return {edge / steps, edge};
  }
  return {scale, 0.0F};
}

void encode_group(std::span<const float> weights, Fit fit, float levels, uint8_t* codes) {
  for (size_t i = 0; i < weights.size(); ++i) {
    float code = (weights[i] - fit.bias) / fit.scale;
    code = code > 0.0F ? code : 0.0F;  // clamping first changes nothing: the bounds are whole numbers
    code = code < levels ? code : levels;
    codes[i] = static_cast<uint8_t>(std::bit_cast<uint32_t>(code + kRounder) & 0xffU);
  }
}

}  // namespace

void quantize_groups(std::span<const float> weights, QuantFormat format, std::span<std::byte> codes,
                     std::span<float> scales, std::span<float> biases) {
  const size_t groups = weights.size() / format.group;
  LILY_CHECK(groups * format.group == weights.size() && format.group <= kMaxGroup);
  LILY_CHECK(codes.size() == weights.size() * format.bits / 8);
  LILY_CHECK(scales.size() == groups && biases.size() == groups);
  const auto levels = static_cast<float>((1U << format.bits) - 1);
  std::array<uint8_t, kMaxGroup> wide{};
  std::byte* out = codes.data();
  for (size_t group = 0; group < groups; ++group) {
    const auto values = weights.subspan(group * format.group, format.group);
    const Fit fit = fit_group(values, levels);
    scales[group] = fit.scale;
    biases[group] = fit.bias;
    encode_group(values, fit, levels, wide.data());
    if (format.bits == 8) {
      std::memcpy(out, wide.data(), format.group);
      out += format.group;
    } else {
      for (uint32_t i = 0; i < format.group; i += 2) {
        *out++ = static_cast<std::byte>(wide[i] | wide[i + 1] << 4);
      }
    }
  }
}

void load_floats(std::span<const std::byte> from, DType type, std::span<float> to) {
  LILY_CHECK(from.size() == to.size() * size_of(type));
  if (type == DType::bf16) {
    for (size_t i = 0; i < to.size(); ++i) {
      to[i] = bf16_to_float(load_unaligned<uint16_t>(from.data() + i * 2));
    }
  } else if (type == DType::f16) {
    for (size_t i = 0; i < to.size(); ++i) {
      to[i] = f16_to_float(load_unaligned<uint16_t>(from.data() + i * 2));
    }
  } else {
    LILY_CHECK(type == DType::f32);
    std::ranges::copy(from, std::as_writable_bytes(to).begin());  // memcpy may not be given an empty span
  }
}

void store_floats(std::span<const float> from, DType type, std::span<std::byte> to) {
  LILY_CHECK(to.size() == from.size() * size_of(type));
  if (type == DType::f32) {
    std::ranges::copy(std::as_bytes(from), to.begin());
    return;
  }
  LILY_CHECK(type == DType::bf16 || type == DType::f16);
  for (size_t i = 0; i < from.size(); ++i) {
    const uint16_t bits = type == DType::bf16 ? float_to_bf16(from[i]) : float_to_f16(from[i]);
    std::memcpy(to.data() + i * 2, &bits, sizeof bits);
  }
}

size_t find_not_finite(std::span<const float> from) {
  constexpr uint32_t kExponent = 0x7f800000U;
  bool all_finite = true;  // one pass without a branch; the position is wanted only when it fails
  for (const float value : from) {
    all_finite &= (std::bit_cast<uint32_t>(value) & kExponent) != kExponent;
  }
  size_t index = all_finite ? from.size() : 0;
  while (index < from.size() && std::isfinite(from[index])) {
    ++index;
  }
  return index;
}

}  // namespace lily
