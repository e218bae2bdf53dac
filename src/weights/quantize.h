// Affine quantisation, bit for bit as mx.quantize (mode "affine") on the CPU: docs/QUANTIZATION.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "weights/config.h"

namespace lily {

// Quantises whole groups. `weights` holds n values, n a multiple of format.group, all finite; `codes`
// receives n * bits / 8 bytes, `scales` and `biases` one float32 per group, before they are rounded to the
// stored type.
void quantize_groups(std::span<const float> weights, QuantFormat format, std::span<std::byte> codes,
                     std::span<float> scales, std::span<float> biases);

// Elements as float32, and float32 rounded (to nearest, ties to even) to `type`: bf16, f16 or f32. `from` and
// `to` have no particular alignment and hold exactly the elements.
void load_floats(std::span<const std::byte> from, DType type, std::span<float> to);
void store_floats(std::span<const float> from, DType type, std::span<std::byte> to);

// Index of the first element that is infinite or NaN; from.size() when there is none.
size_t find_not_finite(std::span<const float> from);

}  // namespace lily
