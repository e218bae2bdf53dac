#include "backends/cpu/packed.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace lily::cpu {
namespace {

// Eight codes, lowest first, to those at even places in the low halves of the bytes in order: 0 4 1 5 2 6
// 3 7.
constexpr uint32_t interleave_halves(uint32_t codes) {
  const uint32_t bytes = (codes ^ (codes >> 8)) & 0x0000ff00U;
  codes ^= bytes ^ (bytes << 8);
  const uint32_t halves = (codes ^ (codes >> 4)) & 0x00f000f0U;
  return codes ^ halves ^ (halves << 4);
}
static_assert(interleave_halves(0x76543210U) == 0x73625140U);

void pack_scales(const std::byte* source, DType type, size_t index, DType to, std::byte* out) {
  if (to == DType::f32) {
    const float value = load_float(source, type, index);
    std::memcpy(out, &value, sizeof(value));
  } else {
    std::memcpy(out, source + index * 2, 2);
  }
}

}  // namespace

size_t PackedMatrix::expert_bytes() const { return blocks() * block_bytes(*this); }

PackedMatrix PackedMatrix::expert(uint32_t index) const {
  LILY_CHECK(index < experts);
  PackedMatrix one = *this;
  one.data += index * expert_bytes();
  one.experts = 1;
  return one;
}

PackedMatrix packed_form(const AffineMatrix& matrix, Digits digits) {
  return {.data = nullptr,
          .rows = matrix.rows,
          .cols = matrix.cols,
          .experts = matrix.experts,
          .bits = matrix.bits,
          .group = matrix.group,
          .scale_type = matrix.scale_type == DType::bf16 ? DType::bf16 : DType::f32,
          .digits = digits};
}

void pack_block(const AffineMatrix& matrix, const PackedMatrix& form, uint32_t block, std::byte* out) {
  const uint32_t first = block * kBlockOutputs;
  const uint32_t count = std::min(kBlockOutputs, matrix.rows - first);
  const uint32_t groups = matrix.cols / matrix.group;
  const uint32_t words = matrix.group * matrix.bits / 32;  // of a row's group
  const size_t row_bytes = size_t{matrix.cols} * matrix.bits / 8;
  const size_t scale_size = scale_bytes(form.scale_type);
  if (count < kBlockOutputs) {
    std::memset(out, 0, block_bytes(form));
  }
  for (uint32_t g = 0; g < groups; ++g, out += group_bytes(form)) {
    std::byte* biases = out + kBlockOutputs * scale_size;
    std::byte* codes = biases + kBlockOutputs * scale_size;
    for (uint32_t o = 0; o < count; ++o) {
      const size_t index = size_t{first + o} * groups + g;
      pack_scales(matrix.scales, matrix.scale_type, index, form.scale_type, out + o * scale_size);
      pack_scales(matrix.biases, matrix.scale_type, index, form.scale_type, biases + o * scale_size);
      const std::byte* row = matrix.codes + (first + o) * row_bytes + size_t{g} * words * 4;
      for (uint32_t w = 0; w < words; ++w) {
        uint32_t word = 0;
        std::memcpy(&word, row + size_t{w} * 4, 4);
        word = matrix.bits == 4 ? interleave_halves(word) : word;
        std::memcpy(codes + (size_t{w} * kBlockOutputs + o) * 4, &word, 4);
      }
    }
  }
}

}  // namespace lily::cpu
