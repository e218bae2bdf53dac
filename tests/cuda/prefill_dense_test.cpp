// Norm and dense products of prefill, at all borders of their tiles.
#include "tests/cuda/rig.h"

namespace lily::cuda::test {
namespace {

class CudaPrefillDense : public NeedsGpu, public ::testing::WithParamInterface<MatrixOptions> {};

// What the kernel rounds: the weights to bf16 (the test does too). Sums are float32: sqrt(2048) * 2^-24 and
// the tensor cores' truncation stay under 1e-5; a weight whose rounding falls the other way adds 2^-8 /
// sqrt(2048) of the sum.
constexpr double kSumTolerance = 1e-4;
constexpr double kStoreTolerance = 4e-3;  // the sum rounded to bf16: 2^-8 at most, 1.65e-3 in the mean

TEST_P(CudaPrefillDense, EveryNumberOfTokens) {
  const MatrixOptions options = GetParam();
  const RandomMatrix matrix(options);
  const Packed packed(matrix);
  const std::vector<float> weights = matrix.weights();
  constexpr uint32_t kMost = 321;
  const std::vector<uint16_t> x = to_bf16(random_values(size_t{kMost} * options.cols, 5));
  const std::vector<float> expected = product(weights, to_floats(x), options.cols);
  const Array<uint16_t> device_x(x);
  for (const uint32_t tokens :
       {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 9U, 31U, 32U, 33U, 63U, 64U, 65U, 127U, 128U, 129U, 192U, kMost}) {
    SCOPED_TRACE(tokens);
    const std::vector<float> before = random_values(size_t{tokens} * options.rows, 9);
    Array<float> y(before);
    prefill::DenseArgs args{};
    args.weights = packed.get();
    args.ranges[0] = {y.get(), options.rows, options.rows, prefill::Store::add_f32};
    args.x = device_x.get();
    args.tokens = tokens;
    // Pretending to have few multiprocessors makes the tile wide, many make it narrow: not a bit may differ.
    std::vector<float> first;
    for (const uint32_t processors : {1U, 4U, 100000U}) {
      y.upload(before);
      prefill::Device device = device_;
      device.processors = processors;
      prefill::dense(args, device);
      expect_success();
      std::vector<float> found = y.download();
      first = first.empty() ? found : first;
      ASSERT_EQ(found, first) << "processors " << processors;
      for (size_t i = 0; i < found.size(); ++i) {
        found[i] -= before[i];
      }
      expect_rows(found, std::span(expected).first(found.size()), options.rows, kSumTolerance);
      if (HasFailure()) {
        FAIL() << "processors " << processors;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, CudaPrefillDense,
    ::testing::Values(MatrixOptions{.rows = 256, .cols = 1024}, MatrixOptions{.rows = 2048, .cols = 256},
                      MatrixOptions{.rows = 48, .cols = 64}, MatrixOptions{.rows = 400, .cols = 128},
                      MatrixOptions{.rows = 2048, .cols = 4096},
                      MatrixOptions{.rows = 336, .cols = 512, .bits = 8},
                      MatrixOptions{.rows = 336, .cols = 512, .bits = 4, .group = 32},
                      MatrixOptions{
                          .rows = 336, .cols = 512, .bits = 8, .group = 128, .scale_type = DType::f32}));

class CudaPrefillDenseRanges : public NeedsGpu {};

// The projection of a delta-net layer of both shapes: three ranges, the last with a and b.
TEST_F(CudaPrefillDenseRanges, GoWhereTheyBelong) {
  for (const Shape& shape : {kTiny, kQwen36}) {
    SCOPED_TRACE(shape.name);
    const uint32_t channels = shape.conv_channels();
    const uint32_t values = shape.value_width();
    const uint32_t gates = 2 * shape.v_heads;
    const uint32_t rows = channels + values + gates;
    const RandomMatrix matrix({.rows = rows, .cols = shape.hidden, .seed = 3});
    const Packed packed(matrix);
    constexpr uint32_t kTokens = 150;
    const std::vector<uint16_t> x = to_bf16(random_values(size_t{kTokens} * shape.hidden, 6));
    const std::vector<float> expected = product(matrix.weights(), to_floats(x), shape.hidden);
    const Array<uint16_t> device_x(x);
    const Array<uint16_t> mixed(size_t{kTokens} * channels);
    const Array<uint16_t> z(size_t{kTokens} * values);
    const Array<float> ab(size_t{kTokens} * gates);
    prefill::DenseArgs args{};
    args.weights = packed.get();
    args.ranges[0] = {mixed.get(), channels, channels, prefill::Store::bf16};
    args.ranges[1] = {z.get(), values, channels + values, prefill::Store::bf16};
    args.ranges[2] = {ab.get(), gates, rows, prefill::Store::f32};
    args.x = device_x.get();
    args.tokens = kTokens;
    prefill::dense(args, device_);
    expect_success();
    const auto part = [&](uint32_t begin, uint32_t end) {
      std::vector<float> columns;
      for (uint32_t token = 0; token < kTokens; ++token) {
        const auto row = expected.begin() + static_cast<ptrdiff_t>(size_t{token} * rows);
        columns.insert(columns.end(), row + begin, row + end);
      }
      return columns;
    };
    expect_rows(to_floats(mixed.download()), part(0, channels), channels, kStoreTolerance);
    expect_rows(to_floats(z.download()), part(channels, channels + values), values, kStoreTolerance);
    expect_rows(ab.download(), part(channels + values, rows), gates, kSumTolerance);
  }
}

TEST_F(CudaPrefillDenseRanges, NormLeavesAHighPartAndARest) {
  for (const uint32_t width : {kTiny.hidden, kQwen36.hidden}) {
    constexpr uint32_t kTokens = 37;
    const std::vector<float> x = random_values(size_t{kTokens} * width, 11, 3.0F);
    const std::vector<float> weight = random_values(width, 12);
    std::vector<float> expected(x.size());
    for (uint32_t token = 0; token < kTokens; ++token) {
      double sum = 0;
      for (uint32_t i = 0; i < width; ++i) {
        sum += std::pow(static_cast<double>(x[token * width + i]), 2);
      }
      for (uint32_t i = 0; i < width; ++i) {
        expected[token * width + i] =
            static_cast<float>(static_cast<double>(x[token * width + i]) / std::sqrt(sum / width + 1e-6)) *
            weight[i];
      }
    }
    const Array<float> device_x(x);
    const Array<float> device_weight(weight);
    const Array<uint16_t> high(x.size());
    const Array<uint16_t> rest(x.size());
    prefill::norm({.x = device_x.get(),
                   .weight = device_weight.get(),
                   .y = high.get(),
                   .rest = rest.get(),
                   .tokens = kTokens,
                   .width = width},
                  device_);
    expect_success();
    std::vector<float> sum = to_floats(high.download());
    expect_rows(sum, expected, width, 4e-3);
    const std::vector<float> rests = to_floats(rest.download());
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += rests[i];
    }
    expect_rows(sum, expected, width, 2e-5);
  }
}

}  // namespace
}  // namespace lily::cuda::test
