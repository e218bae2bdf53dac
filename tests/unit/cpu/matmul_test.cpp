// Quantised rows against what they stand for, and products of every format against a sum in double of the
// decoded weights with the quantised rows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "base/aligned.h"
#include "tests/unit/cpu/isa_param.h"
#include "weights/formats/affine.h"

namespace lily::cpu {
namespace {

using test::kUnit;
using test::randoms;

// A random matrix whose tensors lie at odd addresses.
class Matrix {
 public:
  Matrix(uint32_t rows, uint32_t cols, uint32_t bits, uint32_t group, DType type) {
    view_.rows = rows;
    view_.cols = cols;
    view_.bits = bits;
    view_.group = group;
    view_.scale_type = type;
    std::mt19937 engine(rows * 31 + cols * 7 + bits + group + static_cast<uint32_t>(type));
    codes_.resize(view_.code_bytes() + 1);
    for (std::byte& byte : codes_) {
      byte = static_cast<std::byte>(engine());
    }
    // Some words of all ones: the highest code next to the sign bit.
    std::memset(codes_.data() + 1, 0xff, std::min<size_t>(64, view_.code_bytes()));
    scales_ = floats(engine, 0.01F);
    biases_ = floats(engine, 0.1F);
    view_.codes = codes_.data() + 1;
    view_.scales = scales_.data() + 1;
    view_.biases = biases_.data() + 1;
  }
  const AffineMatrix& view() const { return view_; }

 private:
  std::vector<std::byte> floats(std::mt19937& engine, float size) const {
    std::normal_distribution<float> normal(0.0F, size);
    std::vector<std::byte> bytes(view_.scale_bytes() + 1);
    for (size_t i = 0; i < view_.scale_bytes() / size_of(view_.scale_type); ++i) {
      const float value = normal(engine);
      const uint16_t half = view_.scale_type == DType::bf16 ? float_to_bf16(value) : float_to_f16(value);
      if (view_.scale_type == DType::f32) {
        std::memcpy(bytes.data() + 1 + i * 4, &value, 4);
      } else {
        std::memcpy(bytes.data() + 1 + i * 2, &half, 2);
      }
    }
    return bytes;
  }
  AffineMatrix view_;
  std::vector<std::byte> codes_, scales_, biases_;
};

// A matrix packed.
class Packed {
 public:
  explicit Packed(const AffineMatrix& m, uint32_t digits = kMostDigits) : form_(packed_form(m)) {
    form_.digits = digits;
    bytes_ = *AlignedBytes::allocate(form_.total_bytes());
    for (uint32_t block = 0; block < form_.blocks(); ++block) {
      pack_block(m, form_, block, bytes_.data() + block * block_bytes(form_));
    }
    form_.data = bytes_.data();
  }
  const PackedMatrix& view() const { return form_; }

 private:
  PackedMatrix form_;
  AlignedBytes bytes_;
};

struct Inputs {
  std::vector<float> plain;          // [rows][cols]
  AlignedArray<std::byte> prepared;  // in panels
  size_t stride;
  uint32_t rows;
};

struct Place {
  size_t panel;  // offset
  uint32_t rows;
  uint32_t row;
};
Place place_of(const Kernels& kernels, const PackedMatrix& m, const Inputs& inputs, uint32_t row) {
  const Panels panels = panels_of(inputs.rows, kernels.panel_rows(m.input(), inputs.rows));
  const uint32_t panel = panel_of_row(panels, row);
  const uint32_t begin = panel_begin(panels, panel);
  return {begin * inputs.stride, rows_of_panel(panels, panel), row - begin};
}

Inputs make_inputs(const Kernels& kernels, const PackedMatrix& m, std::vector<float> plain) {
  const size_t stride = prepared_bytes(m.input());
  const auto rows = static_cast<uint32_t>(plain.size() / m.cols);
  Inputs inputs{std::move(plain), {}, stride, rows};
  inputs.prepared = *AlignedArray<std::byte>::allocate(rows * stride + 64);
  std::memset(inputs.prepared.data(), 0xff, rows * stride + 64);  // prepare must write all that is read
  for (uint32_t row = 0; row < rows; ++row) {
    const Place place = place_of(kernels, m, inputs, row);
    kernels.prepare({.format = m.input(),
                     .x = inputs.plain.data() + size_t{row} * m.cols,
                     .begin = 0,
                     .end = m.cols,
                     .panel = inputs.prepared.data() + place.panel,
                     .panel_rows = place.rows,
                     .row = place.row,
                     .word = kernels.word});
  }
  return inputs;
}
Inputs make_inputs(const Kernels& kernels, const PackedMatrix& m, uint32_t rows) {
  return make_inputs(kernels, m, randoms(size_t{rows} * m.cols, 5 + m.cols));
}

// A row by itself.
std::vector<std::byte> row_of(const Kernels& kernels, const PackedMatrix& m, const Inputs& inputs,
                              uint32_t row) {
  const Place place = place_of(kernels, m, inputs, row);
  const std::byte* panel = inputs.prepared.data() + place.panel;
  const size_t scales = prepared_scales(m.input());
  std::vector<std::byte> out(inputs.stride);
  for (size_t at = 0; at < scales; at += kernels.word) {
    std::memcpy(out.data() + at, panel + at * place.rows + place.row * kernels.word, kernels.word);
  }
  for (size_t at = scales; at < scales + m.cols / m.group * 8; at += 4) {
    std::memcpy(out.data() + at, panel + at * place.rows + size_t{place.row} * 4, 4);
  }
  return out;
}

MatmulArgs args_of(const PackedMatrix& m, const Inputs& inputs, uint32_t rows, float* y) {
  return {.matrix = &m,
          .x = inputs.prepared.data(),
          .x_stride = inputs.stride,
          .rows = rows,
          .begin = 0,
          .end = m.rows,
          .y = y,
          .y_stride = m.rows,
          .accumulate = false};
}

// One row times all outputs.
std::vector<float> product_of(const Kernels& kernels, const PackedMatrix& m, std::span<const float> x) {
  const Inputs inputs = make_inputs(kernels, m, {x.begin(), x.end()});
  std::vector<float> y(m.rows);
  kernels.matmul(args_of(m, inputs, 1, y.data()));
  return y;
}

// A prepared row as numbers: what its digits stand for.
std::vector<double> numbers_of(const std::byte* prepared, const InputFormat& format) {
  std::vector<double> out(format.cols);
  for (uint32_t c = 0; c < format.cols; ++c) {
    const auto digit = [&](size_t i) { return static_cast<double>(load_unaligned<int8_t>(prepared + i)); };
    const auto scale = load_unaligned<float>(prepared + prepared_scales(format) + c / format.group * 8);
    const size_t in_group = c % format.group / 8 * 8 + c % 2 * 4 + c % 8 / 2;  // the even ones of 8 first
    const size_t at = c / format.group * format.group * format.digits + in_group;
    const double value = format.digits == 1 ? digit(at) : 256 * digit(at) + digit(at + format.group);
    out[c] = value * double{scale};
  }
  return out;
}

struct Expected {
  double value;
  double bound;  // of the rounding errors
};

// Sums of integers are exact. Per group, the product with the scales passes through three roundings
// (scale * scale, and the integer, and the term) and the bias through two; then there is one addition for
// each.
Expected expected(const AffineMatrix& m, uint32_t output, std::span<const double> x) {
  std::vector<uint8_t> codes(m.cols);
  decode_codes(m, output, codes);
  double sum = 0;
  double size = 0;
  for (uint32_t g = 0; g < m.cols / m.group; ++g) {
    const AffineGroup group = load_group(m, output, g);
    double dot = 0;
    double total = 0;
    for (uint32_t c = g * m.group; c < (g + 1) * m.group; ++c) {
      dot += codes[c] * x[c];
      total += x[c];
    }
    sum += double{group.scale} * dot + double{group.bias} * total;
    size += std::fabs(double{group.scale} * dot) + std::fabs(double{group.bias} * total);
  }
  return {sum, (2.0 * m.cols / m.group + 4.0) * kUnit * size};
}

void expect_product(const Kernels& kernels, const AffineMatrix& m, uint32_t rows, uint32_t digits) {
  const Packed packed(m, digits);
  const Inputs inputs = make_inputs(kernels, packed.view(), rows);
  std::vector<float> y(size_t{rows} * m.rows, std::nanf(""));
  kernels.matmul(args_of(packed.view(), inputs, rows, y.data()));
  for (uint32_t row = 0; row < rows; ++row) {
    const auto x = numbers_of(row_of(kernels, packed.view(), inputs, row).data(), packed.view().input());
    for (uint32_t output = 0; output < m.rows; ++output) {
      const Expected want = expected(m, output, x);
      ASSERT_NEAR(y[size_t{row} * m.rows + output], want.value, want.bound)
          << "rows " << rows << " row " << row << " output " << output << " of " << m.rows << "x" << m.cols
          << ", " << m.bits << " bits, group " << m.group << ", digits " << digits;
    }
  }
}
void expect_product(const Kernels& kernels, const AffineMatrix& m, uint32_t rows) {
  for (const uint32_t digits : {1U, 2U}) {
    ASSERT_NO_FATAL_FAILURE(expect_product(kernels, m, rows, digits));
  }
}

class Matmul : public test::IsaTest {};

TEST_P(Matmul, EqualsTheSumOfDecodedWeightsInEveryFormat) {
  for (const uint32_t bits : {4U, 8U}) {
    for (const uint32_t group : {32U, 64U, 128U}) {
      for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
        for (const uint32_t cols : {128U, 384U, 2048U}) {
          for (const uint32_t rows : {1U, 3U, 8U}) {
            const Matrix m(rows == 3 ? 9 : 32, cols, bits, group, type);
            ASSERT_NO_FATAL_FAILURE(expect_product(kernels(), m.view(), rows));
          }
        }
      }
    }
  }
}

TEST_P(Matmul, TakesShortRows) {
  for (const uint32_t bits : {4U, 8U}) {
    for (const uint32_t cols : {32U, 64U, 96U, 160U}) {
      const Matrix m(6, cols, bits, 32, DType::bf16);
      ASSERT_NO_FATAL_FAILURE(expect_product(kernels(), m.view(), 2));
    }
  }
}

TEST_P(Matmul, TakesAnyNumberOfRowsAndOutputs) {
  for (const uint32_t rows : {1U, 2U, 4U, 5U, 7U, 13U, 47U, 48U, 49U, 300U}) {
    for (const uint32_t outputs : {1U, 2U, 15U, 16U, 17U, 48U}) {
      const Matrix m(outputs, 256, 4, 64, DType::bf16);
      ASSERT_NO_FATAL_FAILURE(expect_product(kernels(), m.view(), rows));
    }
  }
}

// The largest integers that a group can add up to.
TEST_P(Matmul, TheLargestCodesAndInputsDoNotOverflow) {
  for (const auto& [bits, digits] : {std::pair{4U, 1U}, {4U, 2U}, {8U, 1U}, {8U, 2U}}) {
    for (const float sign : {1.0F, -1.0F}) {
      std::vector<std::byte> codes(16 * 128 * bits / 8, std::byte{0xff});
      const std::vector<float> ones(16, 1.0F);
      AffineMatrix m{.codes = codes.data(),
                     .scales = reinterpret_cast<const std::byte*>(ones.data()),
                     .biases = reinterpret_cast<const std::byte*>(ones.data()),
                     .scale_type = DType::f32,
                     .rows = 16,
                     .cols = 128,
                     .bits = bits,
                     .group = 128};
      const Packed packed(m, digits);
      const std::vector<float> x(128, sign);
      const auto y = product_of(kernels(), packed.view(), x);
      const float want = sign * 128.0F * static_cast<float>(1U << bits);
      EXPECT_NEAR(y[3], want, 1e-6 * std::fabs(want)) << bits;
    }
  }
}

void expect_half_a_step(const Kernels& kernels, const InputFormat& format, double steps) {
  auto x = randoms(512, 3);
  std::fill_n(x.begin() + 64, 64, 0.0F);     // a group of zeros
  std::fill_n(x.begin() + 128, 64, 1e-35F);  // whose inverse would overflow
  for (size_t c = 192; c < 256; ++c) {
    x[c] *= 1e20F;
  }
  auto prepared = *AlignedBytes::allocate(prepared_bytes(format));
  std::memset(prepared.data(), 0xff, prepared.size());
  for (const auto& [begin, end] : {std::pair{0U, 192U}, std::pair{192U, 512U}}) {
    kernels.prepare({.format = format,
                     .x = x.data() + begin,
                     .begin = begin,
                     .end = end,
                     .panel = prepared.data(),
                     .panel_rows = 1,
                     .row = 0,
                     .word = kernels.word});
  }
  const auto numbers = numbers_of(prepared.data(), format);
  for (size_t g = 0; g < 8; ++g) {
    double largest = 0;
    double sum = 0;
    for (size_t c = g * 64; c < (g + 1) * 64; ++c) {
      largest = std::max(largest, std::fabs(double{x[c]}));
      sum += numbers[c];
    }
    const double step = largest / steps;
    for (size_t c = g * 64; c < (g + 1) * 64; ++c) {
      EXPECT_NEAR(numbers[c], x[c], step * 0.501 + 1e-30) << c;
    }
    const auto found =
        load_unaligned<float>(prepared.data() + prepared_scales(format) + g * 8 + sizeof(float));
    EXPECT_NEAR(found, sum, 2 * kUnit * std::fabs(sum)) << g;
  }
}
TEST_P(Matmul, PreparedRowsAreWithinHalfAStepOfTheirGroup) {
  expect_half_a_step(kernels(), {.cols = 512, .group = 64, .digits = 1}, 127.0);
  expect_half_a_step(kernels(), {.cols = 512, .group = 64, .digits = 2}, 32512.0);
}

TEST_P(Matmul, WhatIsNotFiniteStaysSo) {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    for (const size_t at : {0U, 77U, 127U}) {
      const Matrix m(16, 128, 4, 64, DType::bf16);
      const Packed packed(m.view(), at == 77 ? 1 : 2);
      auto x = randoms(128, 3);
      x[at] = bad;
      const auto y = product_of(kernels(), packed.view(), x);
      for (const float value : y) {
        EXPECT_FALSE(std::isfinite(value)) << at;
      }
    }
  }
}

struct Shared {
  uint32_t rows;
  uint32_t step;   // every so many rows is looked at
  uint32_t split;  // outputs of a call
};

// A row has the bits that it has among `shared.rows` also beside a few others, its outputs in several calls.
void expect_rows_alone(const Kernels& kernels, const PackedMatrix& m, const Shared& shared) {
  const Inputs inputs = make_inputs(kernels, m, shared.rows);
  std::vector<float> together(size_t{shared.rows} * m.rows);
  kernels.matmul(args_of(m, inputs, shared.rows, together.data()));
  for (uint32_t row = 0; row < shared.rows; row += shared.step) {
    const uint32_t count = std::min(1 + row % 12, shared.rows - row);
    const auto from = inputs.plain.begin() + size_t{row} * m.cols;
    const Inputs beside = make_inputs(kernels, m, {from, from + size_t{count} * m.cols});
    std::vector<float> some(size_t{count} * m.rows);
    for (uint32_t begin = 0; begin < m.rows; begin += shared.split) {
      MatmulArgs args = args_of(m, beside, count, some.data());
      args.begin = begin;
      args.end = std::min(begin + shared.split, m.rows);
      kernels.matmul(args);
    }
    ASSERT_EQ(0,
              std::memcmp(some.data(), together.data() + size_t{row} * m.rows, some.size() * sizeof(float)))
        << row;
  }
}

// The promise on which "whoever shares the batch" rests, as equality of bits.
TEST_P(Matmul, ARowDoesNotDependOnTheOthersNorOnTheSplitOfOutputs) {
  for (const auto& [bits, digits] : {std::pair{4U, 1U}, {4U, 2U}, {8U, 1U}, {8U, 2U}}) {
    const Matrix m(53, 2048, bits, 64, DType::bf16);
    const Packed packed(m.view(), digits);
    ASSERT_NO_FATAL_FAILURE(
        expect_rows_alone(kernels(), packed.view(), {.rows = 101, .step = 1, .split = 32}));
  }
}

float bf16_of(float value) { return bf16_to_float(float_to_bf16(value)); }

// Inputs as they are prepared, weights before they are cut to bf16, which moves each by 1.8e-3 of itself in
// the mean, with any sign. Six deviations of the sum, and the roundings of its additions.
void expect_halves(const Kernels& kernels, const AffineMatrix& m, uint32_t rows) {
  const Packed packed(m, kHalves);
  const Inputs inputs = make_inputs(kernels, packed.view(), rows);
  std::vector<float> y(size_t{rows} * m.rows, std::nanf(""));
  kernels.matmul(args_of(packed.view(), inputs, rows, y.data()));
  std::vector<uint8_t> codes(m.cols);
  for (uint32_t output = 0; output < m.rows; ++output) {
    decode_codes(m, output, codes);
    for (uint32_t row = 0; row < rows; ++row) {
      double sum = 0;
      double squares = 0;
      double size = 0;
      for (uint32_t c = 0; c < m.cols; ++c) {
        const AffineGroup group = load_group(m, output, c / m.group);
        const double weight = double{group.scale} * codes[c] + double{group.bias};
        const double term = weight * double{bf16_of(inputs.plain[size_t{row} * m.cols + c])};
        sum += term;
        squares += term * term;
        size += std::fabs(term);
      }
      const double bound = 6 * 1.8e-3 * std::sqrt(squares) + m.cols / 32.0 * kUnit * size;
      ASSERT_NEAR(y[size_t{row} * m.rows + output], sum, bound)
          << "rows " << rows << " row " << row << " output " << output << " of " << m.rows << "x" << m.cols
          << ", " << m.bits << " bits, group " << m.group;
    }
  }
}

TEST_P(Matmul, OfHalvesIsTheSumOfRoundedWeightsInEveryFormat) {
  if (!kernels().halves) {
    GTEST_SKIP() << GetParam() << " has no products of bf16";
  }
  for (const uint32_t bits : {4U, 8U}) {
    for (const uint32_t group : {32U, 64U, 128U}) {
      for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
        const Matrix m(25, group == 64 ? 2048 : 384, bits, group, type);
        for (const uint32_t rows : {1U, 5U, 17U}) {
          ASSERT_NO_FATAL_FAILURE(expect_halves(kernels(), m.view(), rows));
        }
      }
    }
  }
  const Matrix m(70, 256, 4, 64, DType::bf16);
  for (const uint32_t rows : {16U, 33U, 256U, 300U}) {
    ASSERT_NO_FATAL_FAILURE(expect_halves(kernels(), m.view(), rows));
  }
}

TEST_P(Matmul, OfHalvesARowDoesNotDependOnTheOthersNorOnTheSplitOfOutputs) {
  if (!kernels().halves) {
    GTEST_SKIP() << GetParam() << " has no products of bf16";
  }
  const Matrix m(53, 2048, 4, 64, DType::bf16);
  const Packed packed(m.view(), kHalves);
  ASSERT_NO_FATAL_FAILURE(expect_rows_alone(kernels(), packed.view(), {.rows = 51, .step = 5, .split = 16}));
}

// Whatever the number of rows, each is in one panel, the panels follow one another, and none is larger than
// it may be nor smaller than half of that where there are more rows.
TEST(Panels, HoldEveryRowOnce) {
  for (const uint32_t most : {1U, 2U, 4U, 7U, 16U}) {
    for (uint32_t rows = 1; rows < 60; ++rows) {
      const Panels panels = panels_of(rows, most);
      uint32_t row = 0;
      for (uint32_t panel = 0; panel < panels.count; ++panel) {
        ASSERT_EQ(panel_begin(panels, panel), row);
        ASSERT_LE(rows_of_panel(panels, panel), most);
        ASSERT_GE(rows_of_panel(panels, panel), std::min(rows, (most + 1) / 2));
        for (uint32_t i = 0; i < rows_of_panel(panels, panel); ++i) {
          ASSERT_EQ(panel_of_row(panels, row++), panel);
        }
      }
      ASSERT_EQ(row, rows);
    }
  }
  EXPECT_EQ(panels_of(0, 7).count, 0);
}

TEST_P(Matmul, AddsToWhatIsThere) {
  for (const uint32_t outputs : {16U, 21U}) {
    const Matrix m(outputs, 512, 4, 64, DType::bf16);
    const Packed packed(m.view());
    const Inputs inputs = make_inputs(kernels(), packed.view(), 4);
    std::vector<float> plain(size_t{4} * outputs);
    kernels().matmul(args_of(packed.view(), inputs, 4, plain.data()));
    std::vector<float> y(size_t{4} * 30, 2.0F);
    MatmulArgs args = args_of(packed.view(), inputs, 4, y.data());
    args.y_stride = 30;
    args.accumulate = true;
    kernels().matmul(args);
    for (size_t row = 0; row < 4; ++row) {
      for (size_t output = 0; output < 30; ++output) {
        const float want = output < outputs ? 2.0F + plain[row * outputs + output] : 2.0F;
        ASSERT_EQ(y[row * 30 + output], want) << row << " " << output;
      }
    }
  }
}

TEST_P(Matmul, PastTheCachesOutputsAreTheSame) {
  const Matrix m(53, 512, 4, 64, DType::bf16);
  const Packed packed(m.view(), kernels().halves ? kHalves : 2);
  const Inputs inputs = make_inputs(kernels(), packed.view(), 21);
  constexpr size_t kStride = 64;
  auto plain = *AlignedArray<float>::allocate(21 * kStride);
  auto past = *AlignedArray<float>::allocate(21 * kStride);
  for (const bool bypass : {false, true}) {
    auto& y = bypass ? past : plain;
    std::fill_n(y.data(), y.size(), 2.0F);
    MatmulArgs args = args_of(packed.view(), inputs, 21, y.data());
    args.y_stride = kStride;
    args.bypass = bypass;
    kernels().matmul(args);
  }
  EXPECT_TRUE(std::equal(plain.data(), plain.data() + plain.size(), past.data()));
  EXPECT_NE(plain.data()[52], 2.0F);
  EXPECT_EQ(plain.data()[53], 2.0F);
}

LILY_FOR_EACH_ISA(Matmul);

}  // namespace
}  // namespace lily::cpu
