#include "model/rope.h"

#include <cmath>

namespace lily {

const std::array<float, kRotaryPairs>& rotary_frequencies() {
  static const std::array<float, kRotaryPairs> frequencies = [] {
    std::array<float, kRotaryPairs> out{};
    for (uint32_t j = 0; j < kRotaryPairs; ++j) {
      const float exponent = static_cast<float>(2 * j) / static_cast<float>(Shape::kRotaryDim);
      const auto power = static_cast<float>(std::pow(Shape::kRopeTheta, static_cast<double>(exponent)));
      out[j] = 1.0F / power;
    }
    return out;
  }();
  return frequencies;
}

Rotation rotation_at(uint32_t position) {
  Rotation rotation{};
  for (uint32_t j = 0; j < kRotaryPairs; ++j) {
    const float angle = static_cast<float>(position) * rotary_frequencies()[j];
    // In double, so that the result is the rounded one whatever the mathematics library.
    rotation.cosine[j] = static_cast<float>(std::cos(static_cast<double>(angle)));
    rotation.sine[j] = static_cast<float>(std::sin(static_cast<double>(angle)));
  }
  return rotation;
}

void rotate(const Rotation& rotation, float* head) {
  for (uint32_t j = 0; j < kRotaryPairs; ++j) {
    const float a = head[j];
    const float b = head[j + kRotaryPairs];
    head[j] = a * rotation.cosine[j] - b * rotation.sine[j];
    head[j + kRotaryPairs] = b * rotation.cosine[j] + a * rotation.sine[j];
  }
}

}  // namespace lily
