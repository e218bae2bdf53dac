// Products of every format against a sum in double of the decoded weights.
#include <algorithm>
#include <cmath>
#include <cstring>

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

struct Inputs {
  std::vector<float> plain;     // [rows][cols]
  std::vector<float> prepared;  // [rows][stride]
  size_t stride;
};

Inputs make_inputs(const Kernels& kernels, const AffineMatrix& m, uint32_t rows) {
  const InputFormat format{m.cols, m.bits, m.group};
  Inputs inputs{randoms(size_t{rows} * m.cols, 5 + m.cols), {}, kernels.prepared_floats(format)};
  inputs.prepared.assign(rows * inputs.stride, std::nanf(""));  // prepare must write all that is read
  for (uint32_t row = 0; row < rows; ++row) {
    kernels.prepare(
        {format, inputs.plain.data() + size_t{row} * m.cols, inputs.prepared.data() + row * inputs.stride});
  }
  return inputs;
}

MatmulArgs args_of(const AffineMatrix& m, const Inputs& inputs, uint32_t rows, float* y) {
  return {.matrix = &m,
          .x = inputs.prepared.data(),
          .x_stride = inputs.stride,
          .x_rows = nullptr,
          .rows = rows,
          .begin = 0,
          .end = m.rows,
          .y = y,
          .y_stride = m.rows,
          .accumulate = false};
}

struct Expected {
  double value;
  double bound;  // of the rounding errors
};

// Terms |scale*q*x| and |bias*x| pass through at most one rounded product each and depth additions: cols/8 in
// a lane of the narrowest vector, one per group and a few more to join lanes and groups.
Expected expected(const AffineMatrix& m, uint32_t output, const float* x) {
  std::vector<uint8_t> codes(m.cols);
  decode_codes(m, output, codes);
  double sum = 0;
  double size = 0;
  for (uint32_t c = 0; c < m.cols; ++c) {
    const AffineGroup group = load_group(m, output, c / m.group);
    sum += (double{group.scale} * codes[c] + double{group.bias}) * double{x[c]};
    size +=
        (std::fabs(double{group.scale}) * codes[c] + std::fabs(double{group.bias})) * std::fabs(double{x[c]});
  }
  const double depth = m.cols / 8.0 + m.cols / static_cast<double>(m.group) + 24.0;
  return {sum, depth * kUnit * size};
}

void expect_product(const Kernels& kernels, const AffineMatrix& m, uint32_t rows) {
  const Inputs inputs = make_inputs(kernels, m, rows);
  std::vector<float> y(size_t{rows} * m.rows, std::nanf(""));
  kernels.matmul(args_of(m, inputs, rows, y.data()));
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t output = 0; output < m.rows; ++output) {
      const Expected want = expected(m, output, inputs.plain.data() + size_t{row} * m.cols);
      ASSERT_NEAR(y[size_t{row} * m.rows + output], want.value, want.bound)
          << "rows " << rows << " row " << row << " output " << output << " of " << m.rows << "x" << m.cols
          << ", " << m.bits << " bits, group " << m.group;
    }
  }
}

class Matmul : public test::IsaTest {};

TEST_P(Matmul, EqualsTheSumOfDecodedWeightsInEveryFormat) {
  for (const uint32_t bits : {4U, 8U}) {
    for (const uint32_t group : {32U, 64U, 128U}) {
      for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
        for (const uint32_t cols : {128U, 384U, 2048U}) {
          for (const uint32_t rows : {1U, 3U, 8U}) {
            const Matrix m(rows == 3 ? 9 : 12, cols, bits, group, type);
            ASSERT_NO_FATAL_FAILURE(expect_product(kernels(), m.view(), rows));
          }
        }
      }
    }
  }
}

TEST_P(Matmul, TakesRowsShorterThanAVector) {
  for (const uint32_t bits : {4U, 8U}) {
    for (const uint32_t cols : {32U, 64U, 96U, 160U}) {
      const Matrix m(6, cols, bits, 32, DType::bf16);
      ASSERT_NO_FATAL_FAILURE(expect_product(kernels(), m.view(), 2));
    }
  }
}

TEST_P(Matmul, TakesAnyNumberOfRowsAndOutputs) {
  for (const uint32_t rows : {1U, 2U, 4U, 5U, 47U, 48U, 49U, 100U}) {
    for (const uint32_t outputs : {1U, 2U, 3U, 5U, 32U}) {
      const Matrix m(outputs, 256, 4, 64, DType::bf16);
      ASSERT_NO_FATAL_FAILURE(expect_product(kernels(), m.view(), rows));
    }
  }
}

// The promise on which "whoever shares the batch" rests, as equality of bits.
TEST_P(Matmul, ARowDoesNotDependOnTheOthersNorOnTheSplitOfOutputs) {
  for (const uint32_t bits : {4U, 8U}) {
    const Matrix m(37, 2048, bits, 64, DType::bf16);
    constexpr uint32_t kRows = 101;
    const Inputs inputs = make_inputs(kernels(), m.view(), kRows);
    std::vector<float> together(size_t{kRows} * 37);
    kernels().matmul(args_of(m.view(), inputs, kRows, together.data()));
    for (uint32_t row = 0; row < kRows; ++row) {
      std::vector<float> alone(37);
      for (uint32_t begin = 0; begin < 37; begin += 7) {
        MatmulArgs args = args_of(m.view(), inputs, 1, alone.data());
        args.x += row * inputs.stride;
        args.begin = begin;
        args.end = std::min(begin + 7, 37U);
        kernels().matmul(args);
      }
      ASSERT_EQ(0, std::memcmp(alone.data(), together.data() + size_t{row} * 37, sizeof(float) * 37)) << row;
    }
  }
}

TEST_P(Matmul, GathersRowsAndAddsToWhatIsThere) {
  const Matrix m(16, 512, 4, 64, DType::bf16);
  const Inputs inputs = make_inputs(kernels(), m.view(), 6);
  std::vector<float> plain(6 * 16);
  kernels().matmul(args_of(m.view(), inputs, 6, plain.data()));
  const std::vector<uint32_t> rows{5, 0, 3, 3};
  std::vector<float> y(4 * 20, 2.0F);
  MatmulArgs args = args_of(m.view(), inputs, 4, y.data());
  args.x_rows = rows.data();
  args.y_stride = 20;
  args.accumulate = true;
  kernels().matmul(args);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t output = 0; output < 20; ++output) {
      const float want = output < 16 ? 2.0F + plain[rows[i] * 16 + output] : 2.0F;
      ASSERT_EQ(y[i * 20 + output], want) << i << " " << output;
    }
  }
}

LILY_FOR_EACH_ISA(Matmul);

}  // namespace
}  // namespace lily::cpu
