// Affine matrices in the order in which the kernels read them. Made once when a model is loaded; the products
// of one row and of many read the same bytes, in one sequential stream.
//
// Outputs lie in blocks of 16, the last one padded with zeros. A block is its groups one after the other, a
// group of `group` inputs is
//   scale[16], bias[16]            scale_type (bf16 or f32), one per output
//   codes                          vectors of 64 bytes, 4 bytes per output, for every 8 inputs k..k+7:
//     4 bits: one vector; byte j holds input k + 2j in its low half, k + 2j + 1 in its high half
//     8 bits: two vectors; byte j holds input k + 2j in the first, k + 2j + 1 in the second
// Prepared rows (kernels.h) hold the 4 even inputs of 8 before the 4 odd ones, so that 4 digits, broadcast,
// meet the codes of 16 outputs in one multiply-add of bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/tensors.h"

namespace lily::cpu {

inline constexpr uint32_t kBlockOutputs = 16;

// Most signed bytes that an input of a matrix is quantised to (precision.h says which one takes how many).
inline constexpr uint32_t kMostDigits = 2;

// In the place of a number of bytes: inputs are rounded to bf16 (kernels.h), and the weights are cut to it.
inline constexpr uint32_t kHalves = 0;
inline constexpr uint32_t kHalfWord = 32;  // inputs that lie together then

// What of a matrix decides how its input is quantised.
struct InputFormat {
  uint32_t cols;
  uint32_t group;
  uint32_t digits;
  bool operator==(const InputFormat&) const = default;
};

// A packed matrix or a stack of them. Borrows its bytes, which are aligned to 64.
struct PackedMatrix {
  const std::byte* data = nullptr;
  uint32_t rows = 0;  // outputs
  uint32_t cols = 0;  // inputs
  uint32_t experts = 1;
  uint32_t bits = 4;
  uint32_t group = 64;
  DType scale_type = DType::bf16;
  uint32_t digits = kMostDigits;  // of its inputs, or kHalves
  bool halves = false;            // whether its products with long segments may be of bf16

  InputFormat input() const { return {cols, group, digits}; }
  uint32_t blocks() const { return (rows + kBlockOutputs - 1) / kBlockOutputs; }
  size_t expert_bytes() const;
  size_t total_bytes() const { return experts * expert_bytes(); }
  PackedMatrix expert(uint32_t index) const;
};

// Internal linkage: files that are compiled for an instruction set have their own copies.
static constexpr size_t scale_bytes(DType type) { return type == DType::f32 ? 4 : 2; }
static constexpr size_t group_bytes(const PackedMatrix& m) {
  return kBlockOutputs * (2 * scale_bytes(m.scale_type) + size_t{m.group} * m.bits / 8);
}
static constexpr size_t block_bytes(const PackedMatrix& m) { return m.cols / m.group * group_bytes(m); }

// The form that `matrix` is packed to, without data. f16 scales become f32, which holds them exactly.
PackedMatrix packed_form(const AffineMatrix& matrix);

// Packs block `block` of one expert (matrix.experts == 1) to `out`: block_bytes(form) bytes.
void pack_block(const AffineMatrix& matrix, const PackedMatrix& form, uint32_t block, std::byte* out);

}  // namespace lily::cpu
