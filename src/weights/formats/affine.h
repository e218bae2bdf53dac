// Decoding of affine groups (model/tensors.h says the layout): the readable form, for the reference and for
// tests. Backends repack with decode_codes and load_scale; their kernels have their own decoders.
#pragma once

#include <cstdint>
#include <span>

#include "model/tensors.h"

namespace lily {

// Codes of one row of a single matrix (experts == 1), as integers. `out` holds cols.
void decode_codes(const AffineMatrix& matrix, uint32_t row, std::span<uint8_t> out);

// Scale and bias of one group of a row.
struct AffineGroup {
  float scale;
  float bias;
};
AffineGroup load_group(const AffineMatrix& matrix, uint32_t row, uint32_t group_index);

// One row as float32: scale * q + bias, the product rounded before the sum. `out` holds cols.
void dequantize_row(const AffineMatrix& matrix, uint32_t row, std::span<float> out);

}  // namespace lily
