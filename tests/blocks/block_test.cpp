// Each block of every implementation against the equations in double precision.
#include <gtest/gtest.h>

#include "tests/blocks/rig.h"
#include "tests/support/oracle.h"

namespace lily::test {
namespace {

using host::Segment;

constexpr uint32_t kDeltaLayer = 1;
constexpr uint32_t kAttentionLayer = 3;

class BlockTest : public ::testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    if (!GetParam().unusable.empty()) {
      GTEST_SKIP() << GetParam().unusable;
    }
  }
  const Tolerances& tolerance() const { return GetParam().tolerances; }
};
INSTANTIATE_TEST_SUITE_P(Host, BlockTest, ::testing::ValuesIn(implementations()), ImplementationName());

struct Format {
  uint32_t bits, group;
  DType scales, dense;
};
const std::vector<Format> kFormats{{4, 64, DType::bf16, DType::bf16}, {8, 64, DType::bf16, DType::bf16},
                                   {4, 32, DType::f16, DType::f16},   {4, 128, DType::f32, DType::f32},
                                   {8, 32, DType::f32, DType::f16},   {8, 128, DType::f16, DType::f32}};

RandomOptions options_of(const Format& format) {
  return {.seed = 5,
          .bits = format.bits,
          .group = format.group,
          .router_bits = format.bits == 4 ? 8U : 4U,
          .scale_type = format.scales,
          .dense_type = format.dense};
}

std::string label(const Format& f) {
  return fmt::format("{} bits, group {}, scales {}, dense {}", f.bits, f.group, to_string(f.scales),
                     to_string(f.dense));
}

// A mixer block over several sequences of different lengths in two passes, against the oracle.
void check_mixer(Rig& rig, const Oracle& oracle, uint32_t layer, std::span<const uint32_t> before,
                 double limit) {
  const Shape& shape = rig.plan.shape;
  std::vector<std::unique_ptr<host::HostState>> states;
  std::vector<OracleState> oracles(before.size(), OracleState(shape));
  for (size_t i = 0; i < before.size(); ++i) {
    states.push_back(rig.state());
  }
  const auto run = [&](std::vector<Segment> segments, uint64_t seed) {
    const uint32_t rows = segments.back().first_row + segments.back().rows;
    const auto stream = random_stream(shape, rows, seed);
    const auto found = rig.mixer(layer, segments, stream);
    for (size_t i = 0; i < segments.size(); ++i) {
      const auto which = static_cast<size_t>(
          std::find_if(states.begin(), states.end(),
                       [&](const auto& state) { return state.get() == segments[i].state; }) -
          states.begin());
      for (uint32_t r = 0; r < segments[i].rows; ++r) {
        const auto input = row_of(stream, segments[i].first_row + r, shape.hidden);
        const Row row(input.begin(), input.end());
        const Row expected = shape.is_attention(layer) ? oracle.attention(layer, oracles[which], row)
                                                       : oracle.delta_net(layer, oracles[which], row);
        ASSERT_LE(distance<double>(row_of(found, segments[i].first_row + r, shape.hidden), expected), limit)
            << "pass " << seed << " sequence " << which << " row " << r;
      }
    }
  };
  for (size_t i = 0; i < before.size(); ++i) {  // each alone
    if (before[i] > 0) {
      run({{states[i].get(), 0, before[i], 0, false}}, i + 1);
    }
  }
  std::vector<Segment> together;  // then 1, 2, 3, ... rows of all
  uint32_t rows = 0;
  for (uint32_t i = 0; i < before.size(); ++i) {
    together.push_back({states[i].get(), rows, i + 1, before[i], false});
    rows += i + 1;
  }
  run(together, 100);
}

TEST_P(BlockTest, EmbedIsTheDequantisedRow) {
  for (const Format& format : kFormats) {
    const RandomWeights weights(kTiny.with_layers(4), options_of(format));
    Rig rig(GetParam(), kTiny.with_layers(4), weights.get());
    const Oracle oracle(rig.plan.shape, weights.get());
    const std::vector<int32_t> ids{0, 8191, 17, 17, 4000};
    std::vector<float> stream(ids.size() * rig.plan.shape.hidden);
    rig.blocks->embed(ids, stream.data());
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_LE(distance<double>(row_of(stream, i, rig.plan.shape.hidden), oracle.embed(ids[i])),
                tolerance().embed)
          << label(format);
    }
  }
}

TEST_P(BlockTest, DeltaNet) {
  for (const Format& format : kFormats) {
    SCOPED_TRACE(label(format));
    const RandomWeights weights(kTiny.with_layers(4), options_of(format));
    Rig rig(GetParam(), kTiny.with_layers(4), weights.get());
    const Oracle oracle(rig.plan.shape, weights.get());
    const std::array<uint32_t, 4> before{0, 1, 67, 2};
    check_mixer(rig, oracle, kDeltaLayer, before, tolerance().delta_net);
  }
}

TEST_P(BlockTest, Attention) {
  for (const Format& format : kFormats) {
    SCOPED_TRACE(label(format));
    const RandomWeights weights(kTiny.with_layers(4), options_of(format));
    Rig rig(GetParam(), kTiny.with_layers(4), weights.get());
    const Oracle oracle(rig.plan.shape, weights.get());
    const std::array<uint32_t, 4> before{0, 63, 64, 127};
    check_mixer(rig, oracle, kAttentionLayer, before, tolerance().attention);
  }
}

// Rows whose choice of experts is not within the implementation's error of another one.
std::vector<bool> clear_choice(const Oracle& oracle, uint32_t layer, const std::vector<float>& stream,
                               double error) {
  std::vector<bool> clear;
  const size_t hidden = stream.size() / 24;
  for (size_t r = 0; r < 24; ++r) {
    const auto row = row_of(stream, r, hidden);
    Row logits = oracle.router_logits(layer, Row(row.begin(), row.end()));
    std::partial_sort(logits.begin(), logits.begin() + 9, logits.end(), std::greater<>());
    clear.push_back(logits[7] - logits[8] > 2 * error);
  }
  EXPECT_GE(std::count(clear.begin(), clear.end(), true), 12);
  return clear;
}

// The block over the first few rows of a stream: devices have other kernels for few rows than for many. A
// row's bits do not depend on how many of the few there are.
void check_few_rows(Rig& rig, const Oracle& oracle, uint32_t layer, const std::vector<float>& stream,
                    const std::vector<bool>& clear, double tolerance) {
  const auto hidden = static_cast<ptrdiff_t>(rig.plan.shape.hidden);
  std::vector<float> alone;
  for (const ptrdiff_t count : {1, 2, 3, 8, 9, 16}) {
    const auto found = rig.moe(layer, {stream.begin(), stream.begin() + count * hidden});
    alone = alone.empty() ? found : alone;
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), found.begin())) << count << " rows";
    const auto last = static_cast<size_t>(count) - 1;
    if (clear[last]) {
      const auto row = row_of(stream, last, rig.plan.shape.hidden);
      EXPECT_LE(distance<double>(row_of(found, last, rig.plan.shape.hidden),
                                 oracle.moe(layer, Row(row.begin(), row.end()))),
                tolerance)
          << "the last of " << count << " rows";
    }
  }
}

TEST_P(BlockTest, Moe) {
  for (const Format& format : kFormats) {
    const RandomWeights weights(kTiny.with_layers(4), options_of(format));
    Rig rig(GetParam(), kTiny.with_layers(4), weights.get());
    const Oracle oracle(rig.plan.shape, weights.get());
    const auto stream = random_stream(rig.plan.shape, 24, 3);
    const auto clear = clear_choice(oracle, 2, stream, tolerance().router);
    uint32_t experts = 0;
    const auto found = rig.moe(2, stream, &experts);
    EXPECT_GT(experts, 8U);
    EXPECT_LE(experts, rig.plan.shape.experts);
    for (size_t r = 0; r < 24; ++r) {
      const auto row = row_of(stream, r, rig.plan.shape.hidden);
      if (clear[r]) {
        EXPECT_LE(distance<double>(row_of(found, r, rig.plan.shape.hidden),
                                   oracle.moe(2, Row(row.begin(), row.end()))),
                  tolerance().moe)
            << label(format) << " row " << r;
      }
    }
    EXPECT_EQ((rig.moe(2, {stream.begin(), stream.begin() + rig.plan.shape.hidden}, &experts), experts), 8U);
    SCOPED_TRACE(label(format));
    check_few_rows(rig, oracle, 2, stream, clear, tolerance().moe);
  }
}

// Experts with equal logits: the lower indices are taken.
TEST_P(BlockTest, MoeBreaksTiesByTheLowerIndex) {
  const Shape shape = kTiny.with_layers(4);
  RandomWeights weights(shape);
  AffineMatrix& router = weights.get().layers[0].moe.router;
  // Every row of the router is its first: all 32 logits are equal.
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
  std::vector<std::byte> biases;
  const size_t groups = size_t{2} * (router.cols / router.group);
  for (uint32_t r = 0; r < router.rows; ++r) {
    codes.insert(codes.end(), router.codes, router.codes + router.cols * router.bits / 8);
    scales.insert(scales.end(), router.scales, router.scales + groups);
    biases.insert(biases.end(), router.biases, router.biases + groups);
  }
  router.codes = codes.data();
  router.scales = scales.data();
  router.biases = biases.data();
  Rig rig(GetParam(), shape, weights.get());
  const Oracle oracle(shape, weights.get());
  const auto stream = random_stream(shape, 3, 8);
  const auto found = rig.moe(0, stream);
  for (size_t r = 0; r < 3; ++r) {
    const auto row = row_of(stream, r, shape.hidden);
    EXPECT_LE(distance<double>(row_of(found, r, shape.hidden), oracle.moe(0, Row(row.begin(), row.end()))),
              tolerance().moe);
  }
}

TEST_P(BlockTest, Head) {
  for (const Format& format : kFormats) {
    const RandomWeights weights(kTiny.with_layers(4), options_of(format));
    Rig rig(GetParam(), kTiny.with_layers(4), weights.get());
    const Oracle oracle(rig.plan.shape, weights.get());
    const auto stream = random_stream(rig.plan.shape, 10, 4);
    const std::vector<uint32_t> rows{9, 0, 4};
    std::vector<float> logits(rows.size() * rig.plan.shape.vocab);
    rig.blocks->head(rows, stream.data(), logits.data());
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto row = row_of(stream, rows[i], rig.plan.shape.hidden);
      EXPECT_LE(
          distance<double>(row_of(logits, i, rig.plan.shape.vocab), oracle.head(Row(row.begin(), row.end()))),
          tolerance().head)
          << label(format);
    }
  }
}

// A draft's kept states are those of the same rows run without a draft.
TEST_P(BlockTest, DeltaNetKeepsTheStateAfterEachDraftedRow) {
  const Shape shape = kTiny.with_layers(4);
  const RandomWeights weights(shape);
  Rig rig(GetParam(), shape, weights.get());
  const auto before = random_stream(shape, 9, 1);
  const auto stream = random_stream(shape, 5, 2);
  const auto drafted = rig.state();
  const auto run = [&](host::HostState& state, uint32_t rows, bool provisional) {
    const std::vector<Segment> first{{&state, 0, 9, 0, false}};
    const std::vector<Segment> second{{&state, 0, rows, 9, provisional}};
    rig.mixer(kDeltaLayer, first, before);
    rig.mixer(kDeltaLayer, second, {stream.begin(), stream.begin() + rows * shape.hidden});
  };
  run(*drafted, 5, true);
  const host::StateLayout& layout = drafted->layout();
  for (uint32_t row = 0; row < 4; ++row) {
    const auto plain = rig.state();
    run(*plain, row + 1, false);
    EXPECT_LE(distance<float>({drafted->kept_conv(kDeltaLayer, row), layout.conv_floats()},
                              std::span<const float>(plain->conv(kDeltaLayer), layout.conv_floats())),
              tolerance().state);
    EXPECT_LE(distance<float>({drafted->kept_delta(kDeltaLayer, row), layout.delta_floats()},
                              std::span<const float>(plain->delta(kDeltaLayer), layout.delta_floats())),
              tolerance().state);
  }
  EXPECT_EQ(drafted->kept_conv(kDeltaLayer, 4), nullptr);
}

// The error of a recurrent state does not grow with the tokens absorbed.
TEST_P(BlockTest, DeltaNetStateStaysTrueOverManyTokens) {
  const Shape shape = kTiny.with_layers(4);
  const RandomWeights weights(shape);
  Rig rig(GetParam(), shape, weights.get());
  const Oracle oracle(shape, weights.get());
  const auto state = rig.state();
  OracleState expected(shape);
  for (uint32_t chunk = 0; chunk < 6; ++chunk) {
    const auto stream = random_stream(shape, 100, chunk);
    const std::vector<Segment> segments{{state.get(), 0, 100, chunk * 100, false}};
    rig.mixer(kDeltaLayer, segments, stream);
    for (size_t r = 0; r < 100; ++r) {
      const auto row = row_of(stream, r, shape.hidden);
      oracle.delta_net(kDeltaLayer, expected, Row(row.begin(), row.end()));
    }
  }
  for (uint32_t head = 0; head < shape.v_heads; ++head) {
    const Row& of_head = expected.delta[kDeltaLayer][head];
    const std::span<const float> found(state->delta(kDeltaLayer) + head * of_head.size(), of_head.size());
    EXPECT_LE(distance<double>(found, of_head), tolerance().state) << head;
  }
}

// One layer of each kind at the full width. One test, because the weights take a gigabyte.
TEST_P(BlockTest, FullWidth) {
  const Shape shape = kQwen36.with_layers(4);
  const RandomWeights weights(shape, {.share_layers = true});
  Rig rig(GetParam(), shape, weights.get());
  const Oracle oracle(shape, weights.get());
  const std::array<uint32_t, 2> before{0, 2};
  {
    SCOPED_TRACE("delta_net");
    check_mixer(rig, oracle, kDeltaLayer, before, tolerance().delta_net);
  }
  {
    SCOPED_TRACE("attention");
    check_mixer(rig, oracle, kAttentionLayer, before, tolerance().attention);
  }
  const auto stream = random_stream(shape, 24, 3);
  const auto clear = clear_choice(oracle, 0, stream, tolerance().router);
  const auto added = rig.moe(0, stream);
  for (size_t r = 0; r < 24; r += 8) {
    const auto row = row_of(stream, r, shape.hidden);
    if (clear[r]) {
      EXPECT_LE(distance<double>(row_of(added, r, shape.hidden), oracle.moe(0, Row(row.begin(), row.end()))),
                tolerance().moe)
          << "moe row " << r;
    }
  }
  check_few_rows(rig, oracle, 0, stream, clear, tolerance().moe);
  const std::vector<uint32_t> rows{5};
  std::vector<float> logits(shape.vocab);
  rig.blocks->head(rows, stream.data(), logits.data());
  const auto row = row_of(stream, 5, shape.hidden);
  EXPECT_LE(distance<double>(logits, oracle.head(Row(row.begin(), row.end()))), tolerance().head);
}

}  // namespace
}  // namespace lily::test
