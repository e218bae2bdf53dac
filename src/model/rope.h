// Rotary position embedding (equations 6 and 7) for text, where all three axes have the same position.
#pragma once

#include <array>
#include <cstdint>

#include "model/shape.h"

namespace lily {

inline constexpr uint32_t kRotaryPairs = Shape::kRotaryDim / 2;

// inv_freq_j = 1 / 1e7^(2j/64), each step rounded to float32 as the published implementation rounds it. At
// position 100,000 the rounding turns a pair by up to 0.004 rad: it is part of the model, not noise to be
// improved on.
const std::array<float, kRotaryPairs>& rotary_frequencies();

// Cosines and sines of one position: of angle = position * inv_freq_j, the product rounded to float32.
struct Rotation {
  std::array<float, kRotaryPairs> cosine;
  std::array<float, kRotaryPairs> sine;
};
Rotation rotation_at(uint32_t position);

// Turns the first kRotaryDim values of a head: (x_j, x_{j+32}) -> (x_j cos - x_{j+32} sin, x_{j+32} cos +
// x_j sin). The others pass.
void rotate(const Rotation& rotation, float* head);

}  // namespace lily
