// Kernels without a fault: what the emulator computes is what the host computes, in any order of threads,
// with and without checks.
#include <cmath>

#include "base/dtype.h"
#include "tests/metal_emulator/test/rig.h"

namespace lily::metal {
namespace {

struct Args {
  uint32_t n;
  float scale;
};

class Sound : public testing::TestWithParam<std::tuple<bool, uint64_t>> {
 protected:
  Rig rig{"sound", std::get<1>(GetParam()), std::get<0>(GetParam())};
};

TEST_P(Sound, SumsRowsWithFunctionConstants) {
  auto x = rig.filled(500, 0.0F, "x");
  auto y = rig.filled(5, 0.0F, "y");
  for (int i = 0; i < 500; ++i) {
    x->as<float>()[i] = static_cast<float>(i % 7);
  }
  for (const bool twice : {true, false}) {
    auto commands = rig.commands();
    commands->set_pipeline(rig.pipeline("row_sums", {{0, twice}, {1, 3U}}));
    commands->set_buffer(0, *x);
    commands->set_buffer(1, *y);
    commands->set_bytes(2, Args{100, 0.5F});
    commands->dispatch({5}, {96});
    ASSERT_EQ(rig.finish(*commands), "");
    for (int row = 0; row < 5; ++row) {
      float sum = 0;
      for (int i = 0; i < 100; ++i) {
        sum += static_cast<float>((row * 100 + i) % 7);
      }
      EXPECT_EQ(y->as<float>()[row], sum * (twice ? 3.0F : 1.5F)) << row;
    }
  }
}

TEST_P(Sound, SimdFunctions) {
  auto x = rig.filled(32, 0.0F);
  auto y = rig.filled(256, 0.0F);
  const auto value = [](uint32_t lane) { return static_cast<float>(lane * lane % 23) - 4; };
  for (uint32_t i = 0; i < 32; ++i) {
    x->as<float>()[i] = value(i);
  }
  ASSERT_EQ(rig.run("simd_functions", {x.get(), y.get()}, {1}, {32}), "");
  float before = 0;
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const float* out = y->as<float>() + lane * 8;
    EXPECT_EQ(out[0], 14);
    EXPECT_EQ(out[1], value(lane ^ 5));
    EXPECT_EQ(out[2], value(lane * 7 % 32));
    EXPECT_EQ(out[3], value(17));
    EXPECT_EQ(out[4], before);
    EXPECT_EQ(out[5], lane < 31 ? value(lane + 1) : 0.0F);
    EXPECT_EQ(out[6], 496);
    EXPECT_EQ(out[7], -4);
    before += value(lane);
  }
}

TEST_P(Sound, MultipliesMatrices) {
  auto a = rig.filled(256, 0.0F);
  auto b = rig.filled<uint16_t>(256, 0);
  auto y = rig.filled(256, 0.0F);
  for (uint32_t i = 0; i < 256; ++i) {
    a->as<float>()[i] = static_cast<float>(i % 5) - 2;
    b->as<uint16_t>()[i] = float_to_f16(static_cast<float>(i % 11) / 4);
  }
  ASSERT_EQ(rig.run("multiply", {a.get(), b.get(), y.get()}, {1}, {128}), "");
  for (uint32_t row = 0; row < 16; ++row) {
    for (uint32_t column = 0; column < 16; ++column) {
      float sum = 1;
      for (uint32_t k = 0; k < 16; ++k) {
        sum += a->as<float>()[row * 16 + k] * (static_cast<float>((k * 16 + column) % 11) / 4);
      }
      EXPECT_EQ(y->as<float>()[row * 16 + column], sum) << row << ", " << column;
    }
  }
}

TEST_P(Sound, ConvertsAsTheHostDoes) {
  constexpr uint32_t kCount = 4096;
  auto x = rig.filled(kCount, 0.0F);
  auto halves = rig.filled<uint16_t>(kCount, 0);
  auto bfloats = rig.filled<uint16_t>(kCount, 0);
  auto four = rig.filled(kCount * 4, 0.0F);
  for (uint32_t i = 0; i < kCount; ++i) {
    // All sizes: subnormal halves, ties, too large ones.
    x->as<float>()[i] = std::ldexp(1.0F + static_cast<float>(i * 2654435761U >> 9) / 8388608.0F,
                                   static_cast<int>(i % 48) - 30) *
                        (i % 2 == 0 ? 1.0F : -1.0F);
  }
  x->as<float>()[0] = 2049.0F / 2048.0F;
  x->as<float>()[1] = INFINITY;
  x->as<float>()[2] = 65520.0F;
  x->as<float>()[3] = 1.0F + 3.0F / 256.0F;
  ASSERT_EQ(rig.run("convert", {x.get(), halves.get(), bfloats.get(), four.get()}, {kCount / 64}, {64}), "");
  for (uint32_t i = 0; i < kCount; ++i) {
    const float value = x->as<float>()[i];
    ASSERT_EQ(halves->as<uint16_t>()[i], float_to_f16(value)) << value;
    ASSERT_EQ(bfloats->as<uint16_t>()[i], float_to_bf16(value)) << value;
    const float* out = four->as<float>() + size_t{i} * 4;
    ASSERT_EQ(out[0], f16_to_float(halves->as<uint16_t>()[i]));
    ASSERT_EQ(out[1], bf16_to_float(bfloats->as<uint16_t>()[i]));
    ASSERT_EQ(out[2], value + 2 + 2 + 3);
  }
}

TEST_P(Sound, CountsAtomically) {
  auto total = rig.filled(1, 5U);
  ASSERT_EQ(rig.run("count", {total.get()}, {3}, {256}), "");
  EXPECT_EQ(*total->as<uint32_t>(), 5 + 3 * 256U);
}

TEST_P(Sound, Positions) {
  auto y = rig.filled(6 * 4 * 2 * 32, 0U);
  ASSERT_EQ(rig.run("positions", {y.get()}, {3, 2, 2}, {32, 2, 1}), "");
  for (uint32_t z = 0; z < 2; ++z) {
    for (uint32_t line = 0; line < 4; ++line) {
      for (uint32_t x = 0; x < 96; ++x) {
        ASSERT_EQ(y->as<uint32_t>()[(z * 4 + line) * 96 + x],
                  x % 32 + 100 * (line % 2) + 10000 * (x / 32) + 100000 * (line / 2) + 1000000 * 2);
      }
    }
  }
}

TEST_P(Sound, Exchanges) {
  auto x = rig.filled(64, 0.0F);
  for (uint32_t i = 0; i < 64; ++i) {
    x->as<float>()[i] = static_cast<float>(i);
  }
  ASSERT_EQ(rig.run("exchange", {x.get()}, {1}, {64}), "");
  for (uint32_t i = 0; i < 64; ++i) {
    EXPECT_EQ(x->as<float>()[63 - i], static_cast<float>(i ^ 1));
  }
}

TEST_P(Sound, PartsOfWords) {
  auto y = *rig.device->buffer(32 * sizeof(uint32_t), "y");
  ASSERT_EQ(rig.run("parts", {y.get()}, {1}, {64}), "");
  for (uint32_t i = 0; i < 16; ++i) {
    const uint32_t first = 4 * i;
    const uint32_t bytes = first | (first + 1) << 8 | (first + 2) << 16 | (first + 3) << 24;
    EXPECT_EQ(y->as<uint32_t>()[i], i < 4 ? bytes + 0x01010101U : bytes);
    EXPECT_EQ(y->as<uint32_t>()[16 + i], (1000 + 2 * i) | (1001 + 2 * i) << 16);
  }
}

INSTANTIATE_TEST_SUITE_P(MetalEmulator, Sound,
                         testing::Combine(testing::Bool(), testing::Values<uint64_t>(1, 2, 3)),
                         [](const auto& of) {
                           return std::string(std::get<0>(of.param) ? "checked" : "fast") +
                                  std::to_string(std::get<1>(of.param));
                         });

}  // namespace
}  // namespace lily::metal
