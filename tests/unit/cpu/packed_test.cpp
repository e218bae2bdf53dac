// The packed form, element by element, and what is given back of a mapped file.
#include "backends/cpu/packed_model.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/random_weights.h"
#include "weights/formats/affine.h"

namespace lily::cpu {
namespace {

// Where packed.h says that a code lies.
uint32_t code_at(const std::byte* group_codes, uint32_t bits, uint32_t output, uint32_t input) {
  const size_t vector = bits == 8 ? input / 8 * 2 + input % 2 : input / 8;
  const auto byte = static_cast<uint32_t>(group_codes[vector * 64 + size_t{output} * 4 + input % 8 / 2]);
  return bits == 8 ? byte : input % 2 == 0 ? byte & 15U : byte >> 4;
}

void expect_packed(const AffineMatrix& m, const PackedMatrix& packed) {
  ASSERT_EQ(reinterpret_cast<uintptr_t>(packed.data) % 64, 0U);
  const uint32_t groups = m.cols / m.group;
  const size_t size = scale_bytes(packed.scale_type);
  std::vector<uint8_t> codes(m.cols);
  for (uint32_t row = 0; row < packed.blocks() * 16; ++row) {
    const std::byte* block = packed.data + row / 16 * block_bytes(packed);
    if (row < m.rows) {
      decode_codes(m, row, codes);
    } else {
      std::fill(codes.begin(), codes.end(), uint8_t{0});
    }
    for (uint32_t g = 0; g < groups; ++g) {
      const std::byte* at = block + g * group_bytes(packed);
      const AffineGroup want = row < m.rows ? load_group(m, row, g) : AffineGroup{0, 0};
      ASSERT_EQ(load_float(at, packed.scale_type, row % 16), want.scale);
      ASSERT_EQ(load_float(at + 16 * size, packed.scale_type, row % 16), want.bias);
      for (uint32_t i = 0; i < m.group; ++i) {
        ASSERT_EQ(code_at(at + 32 * size, m.bits, row % 16, i), codes[g * m.group + i])
            << "row " << row << " input " << g * m.group + i;
      }
    }
  }
}

TEST(Packed, HoldsEveryCodeScaleAndBias) {
  ThreadPool pool(2);
  const Shape shape = kTiny.with_layers(4);
  for (const uint32_t bits : {4U, 8U}) {
    for (const auto& [group, type] :
         {std::pair{32U, DType::f16}, std::pair{64U, DType::bf16}, std::pair{128U, DType::f32}}) {
      const lily::test::RandomWeights weights(
          shape, {.bits = bits, .group = group, .router_bits = 12 - bits, .scale_type = type});
      const auto model = pack_model(weights.get(), pool, [](double) {});
      ASSERT_TRUE(model.has_value());
      const MoeWeights& moe = weights.get().layers[0].moe;
      const PackedMoe& packed = model->layers[0].moe;
      for (const uint32_t expert : {0U, 5U, shape.experts - 1}) {
        ASSERT_NO_FATAL_FAILURE(expect_packed(moe.down.expert(expert), packed.down.expert(expert)));
      }
      ASSERT_NO_FATAL_FAILURE(expect_packed(moe.router, packed.router));
      ASSERT_NO_FATAL_FAILURE(expect_packed(moe.shared_gate, packed.shared_gate));  // one output
    }
  }
}

TEST(Packed, ReportsItsSizeAndProgress) {
  ThreadPool pool(1);
  const lily::test::RandomWeights weights(kTiny.with_layers(4));
  double last = 0;
  const auto model = pack_model(weights.get(), pool, [&](double done) {
    EXPECT_GT(done, last);
    last = done;
  });
  ASSERT_TRUE(model.has_value());
  EXPECT_EQ(last, 1.0);
  uint64_t bytes = 0;
  for (const AlignedBytes& storage : model->storage) {
    bytes += storage.size();
  }
  EXPECT_EQ(model->total_bytes(), bytes);
  EXPECT_EQ(packed_forms(weights.get()).total_bytes(), bytes);
}

TEST(Packed, LayersThatShareBytesShareThemPacked) {
  ThreadPool pool(1);
  const lily::test::RandomWeights weights(kTiny.with_layers(8), {.share_layers = true});
  const auto model = pack_model(weights.get(), pool, [](double) {});
  ASSERT_TRUE(model.has_value());
  EXPECT_EQ(model->layers[0].moe.gate.data, model->layers[5].moe.gate.data);
}

}  // namespace
}  // namespace lily::cpu
