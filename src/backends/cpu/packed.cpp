#include "backends/cpu/packed.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace lily::cpu {
namespace {

using Words = uint32_t __attribute__((vector_size(16)));

Words load_words(const std::byte* p) {
  Words words;
  std::memcpy(&words, p, sizeof(words));
  return words;
}
void store_words(std::byte* p, Words words) { std::memcpy(p, &words, sizeof(words)); }

// Four rows of four words, each row's `stride` bytes after the one before, to columns 64 bytes apart.
void transpose(const std::byte* from, size_t stride, std::byte* to) {
  const Words a = load_words(from);
  const Words b = load_words(from + stride);
  const Words c = load_words(from + 2 * stride);
  const Words d = load_words(from + 3 * stride);
  const Words ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Words cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Words ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Words cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  store_words(to, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
  store_words(to + 64, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
  store_words(to + 128, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
  store_words(to + 192, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
}

// Codes of 8 bits: in each 8 bytes of a vector pair of an output the even ones go to the first.
void part_even_and_odd(std::byte* codes, size_t bytes) {
  constexpr uint32_t kEven = 0x00ff00ffU;
  const auto join = [](uint32_t halves) { return (halves | halves >> 8) & 0xffffU; };  // bytes 0 and 2
  for (size_t i = 0; i < bytes; i += 128) {
    for (size_t o = i; o < i + 64; o += 4) {
      uint32_t first = 0;
      uint32_t second = 0;
      std::memcpy(&first, codes + o, 4);
      std::memcpy(&second, codes + o + 64, 4);
      const uint32_t even = join(first & kEven) | join(second & kEven) << 16;
      const uint32_t odd = join(first >> 8 & kEven) | join(second >> 8 & kEven) << 16;
      std::memcpy(codes + o, &even, 4);
      std::memcpy(codes + o + 64, &odd, 4);
    }
  }
}

// A group of codes of 16 rows. Words of a row: 4, 8, 16 or 32.
void pack_codes(const std::byte* from, size_t row_bytes, uint32_t words, uint32_t bits, std::byte* out) {
  for (uint32_t w = 0; w < words; w += 4) {
    for (uint32_t o = 0; o < kBlockOutputs; o += 4) {
      transpose(from + o * row_bytes + size_t{w} * 4, row_bytes, out + (size_t{w} * kBlockOutputs + o) * 4);
    }
  }
  if (bits == 8) {
    part_even_and_odd(out, size_t{words} * kBlockOutputs * 4);
  }
}

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

PackedMatrix packed_form(const AffineMatrix& matrix) {
  return {.data = nullptr,
          .rows = matrix.rows,
          .cols = matrix.cols,
          .experts = matrix.experts,
          .bits = matrix.bits,
          .group = matrix.group,
          .scale_type = matrix.scale_type == DType::bf16 ? DType::bf16 : DType::f32};
}

void pack_block(const AffineMatrix& matrix, const PackedMatrix& form, uint32_t block, std::byte* out) {
  const uint32_t first = block * kBlockOutputs;
  const uint32_t count = std::min(kBlockOutputs, matrix.rows - first);
  const uint32_t groups = matrix.cols / matrix.group;
  const uint32_t words = matrix.group * matrix.bits / 32;  // of a row's group
  const size_t row_bytes = size_t{matrix.cols} * matrix.bits / 8;
  const size_t scale_size = scale_bytes(form.scale_type);
  const std::byte* codes = matrix.codes + first * row_bytes;
  std::array<std::byte, size_t{kBlockOutputs} * 128> part;  // a group of a block that has fewer than 16 rows
  if (count < kBlockOutputs) {
    part.fill(std::byte{0});
    std::memset(out, 0, block_bytes(form));
  }
  for (uint32_t g = 0; g < groups; ++g, out += group_bytes(form)) {
    std::byte* biases = out + kBlockOutputs * scale_size;
    for (uint32_t o = 0; o < count; ++o) {
      const size_t index = size_t{first + o} * groups + g;
      pack_scales(matrix.scales, matrix.scale_type, index, form.scale_type, out + o * scale_size);
      pack_scales(matrix.biases, matrix.scale_type, index, form.scale_type, biases + o * scale_size);
    }
    std::byte* to = biases + kBlockOutputs * scale_size;
    const size_t bytes = size_t{words} * 4;
    if (count == kBlockOutputs) {
      pack_codes(codes + g * bytes, row_bytes, words, matrix.bits, to);
    } else {
      for (uint32_t o = 0; o < count; ++o) {
        std::memcpy(part.data() + o * bytes, codes + o * row_bytes + g * bytes, bytes);
      }
      pack_codes(part.data(), bytes, words, matrix.bits, to);
    }
  }
}

}  // namespace lily::cpu
