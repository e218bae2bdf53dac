// Router, grouping and experts of prefill.
#include <algorithm>
#include <numeric>

#include "tests/cuda/rig.h"

namespace lily::cuda::test {
namespace {

struct MoeCase {
  Shape shape;
  uint32_t tokens;
};
class CudaPrefillMoe : public NeedsGpu, public ::testing::WithParamInterface<MoeCase> {};

// A layer's experts, as the file and as the device have them.
struct Experts {
  explicit Experts(const Shape& shape)
      : weights(shape.with_layers(4), {.seed = 7, .share_layers = true}), moe(weights.get().layers[0].moe) {
    Recipe in{.matrices = {}, .interleaved = true};
    Recipe out{};
    for (uint32_t expert = 0; expert < shape.experts; ++expert) {
      in.matrices.push_back({moe.gate.expert(expert), moe.up.expert(expert)});
      out.matrices.push_back({moe.down.expert(expert)});
    }
    in.matrices.push_back({moe.shared_gate_proj, moe.shared_up_proj});
    out.matrices.push_back({moe.shared_down_proj});
    gate_up.emplace_back(in);
    down.emplace_back(out);
    router.emplace_back(Recipe{.matrices = {{moe.router, moe.shared_gate}}});
  }
  lily::test::RandomWeights weights;
  const MoeWeights& moe;
  std::vector<Packed> gate_up, down, router;  // one each; in vectors since Packed is made late
};

// Experts of the full shape take seconds to make: once for all tests.
const Experts& experts_of(const Shape& shape) {
  static const Experts tiny(kTiny);
  if (shape.id == ShapeId::tiny) {
    return tiny;
  }
  static const Experts full(kQwen36);
  return full;
}

std::vector<float> dequantised(const AffineMatrix& matrix, bool exact) {
  std::vector<float> all(size_t{matrix.rows} * matrix.cols);
  for (uint32_t row = 0; row < matrix.rows; ++row) {
    const std::span<float> out(all.data() + size_t{row} * matrix.cols, matrix.cols);
    dequantize_row(matrix, row, out);
    for (float& w : out) {
      w = exact ? w : rounded(w);
    }
  }
  return all;
}

struct Routed {
  std::vector<uint16_t> chosen;
  std::vector<float> weights;
  std::vector<uint32_t> counts, uses;
};

// What one expert adds for its uses: down(silu(gate x) * up x), the inner values rounded to bf16 as the
// kernel does.
void add_expert(const MoeWeights& moe, uint32_t expert, const std::vector<uint32_t>& uses,
                const std::vector<float>& x, std::vector<float>& outer) {
  const bool shared = expert == moe.gate.experts;
  const auto gate = dequantised(shared ? moe.shared_gate_proj : moe.gate.expert(expert), false);
  const auto up = dequantised(shared ? moe.shared_up_proj : moe.up.expert(expert), false);
  const auto down = dequantised(shared ? moe.shared_down_proj : moe.down.expert(expert), false);
  const size_t hidden = moe.gate.cols;
  const size_t ffn = moe.gate.rows;
  std::vector<float> inner(ffn);
  for (const uint32_t use : uses) {
    const float* row = x.data() + use / kUses * hidden;
    for (size_t unit = 0; unit < ffn; ++unit) {
      float g = 0;
      float u = 0;
      for (size_t i = 0; i < hidden; ++i) {
        g += gate[unit * hidden + i] * row[i];
        u += up[unit * hidden + i] * row[i];
      }
      inner[unit] = rounded(g / (1.0F + std::exp(-g)) * u);
    }
    for (size_t output = 0; output < hidden; ++output) {
      float sum = 0;
      for (size_t i = 0; i < ffn; ++i) {
        sum += down[output * ffn + i] * inner[i];
      }
      outer[use * hidden + output] = sum;
    }
  }
}

void expect_routing(const Routed& routed, const std::vector<float>& logits, uint32_t experts,
                    uint32_t tokens) {
  std::vector<std::vector<uint32_t>> uses(experts);
  uint32_t near_ties = 0;
  for (uint32_t token = 0; token < tokens; ++token) {
    const float* row = logits.data() + size_t{token} * (experts + 1);
    std::vector<uint32_t> order(experts);
    std::iota(order.begin(), order.end(), 0U);
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return row[a] != row[b] ? row[a] > row[b] : a < b; });
    const bool near_tie = row[order[kTopK - 1]] - row[order[kTopK]] < 1e-3F;
    near_ties += near_tie ? 1 : 0;
    std::vector<uint32_t> top(order.begin(), order.begin() + kTopK);
    std::sort(top.begin(), top.end());
    double total = 0;
    for (const uint32_t expert : top) {
      total += std::exp(static_cast<double>(row[expert] - row[order[0]]));
    }
    for (uint32_t slot = 0; slot < kTopK; ++slot) {
      const uint32_t expert = routed.chosen[size_t{token} * kTopK + slot];
      ASSERT_LT(expert, experts);
      uses[expert].push_back(token * kUses + slot);
      if (!near_tie) {
        ASSERT_EQ(expert, top[slot]) << "token " << token;
        const double weight = std::exp(static_cast<double>(row[expert] - row[order[0]])) / total;
        ASSERT_NEAR(routed.weights[size_t{token} * kUses + slot], weight, 1e-4);
      }
    }
    ASSERT_NEAR(routed.weights[size_t{token} * kUses + kTopK], 1 / (1 + std::exp(-row[experts])), 1e-4);
  }
  EXPECT_LE(near_ties, 1 + tokens / 20);
  for (uint32_t expert = 0; expert < experts; ++expert) {
    ASSERT_EQ(routed.counts[expert], uses[expert].size()) << "expert " << expert;
    for (size_t i = 0; i < uses[expert].size(); ++i) {
      ASSERT_EQ(routed.uses[size_t{expert} * tokens + i], uses[expert][i]);
    }
  }
}

// A layer's run over random tokens: arrays on the device, filled by run().
struct MoeRun {
  MoeRun(const Shape& shape, const std::vector<float>& exact)
      : tokens(static_cast<uint32_t>(exact.size() / shape.hidden)),
        high(to_bf16(exact)),
        x(high),
        rest(to_bf16(rest_of(exact, high))),
        logits(size_t{tokens} * prefill::logits_stride(shape.experts)),
        chosen(size_t{tokens} * kTopK),
        weights(size_t{tokens} * kUses),
        counts(shape.experts),
        uses(size_t{shape.experts} * tokens),
        bits(std::vector<uint32_t>(8, 0)),
        inner(size_t{tokens} * kUses * shape.expert_ffn),
        outer(size_t{tokens} * kUses * shape.hidden),
        stream(std::vector<float>(exact.size(), 0.25F)) {}

  void run(const Shape& shape, prefill::Device device) {
    const Experts& layer = experts_of(shape);
    prefill::route({.router = layer.router[0].get(),
                    .x = x.get(),
                    .rest = rest.get(),
                    .logits = logits.get(),
                    .chosen = chosen.get(),
                    .weights = weights.get(),
                    .counts = counts.get(),
                    .uses = uses.get(),
                    .used_bits = bits.get(),
                    .experts = shape.experts,
                    .tokens = tokens},
                   device);
    expect_success();
    prefill::experts({.gate_up = layer.gate_up[0].get(),
                      .down = layer.down[0].get(),
                      .x = x.get(),
                      .weights = weights.get(),
                      .counts = counts.get(),
                      .uses = uses.get(),
                      .inner = inner.get(),
                      .outer = outer.get(),
                      .stream = stream.get(),
                      .experts = shape.experts,
                      .tokens = tokens},
                     device);
    expect_success();
  }

  static std::vector<float> rest_of(const std::vector<float>& exact, const std::vector<uint16_t>& high) {
    std::vector<float> rests(exact.size());
    for (size_t i = 0; i < exact.size(); ++i) {
      rests[i] = exact[i] - bf16_to_float(high[i]);
    }
    return rests;
  }

  uint32_t tokens;
  std::vector<uint16_t> high;
  Array<uint16_t> x, rest;
  Array<float> logits;
  Array<uint16_t> chosen;
  Array<float> weights;
  Array<uint32_t> counts, uses, bits;
  Array<uint16_t> inner, outer;
  Array<float> stream;
};

TEST_P(CudaPrefillMoe, RoutesGroupsAndSums) {
  const Shape shape = GetParam().shape;
  const uint32_t tokens = GetParam().tokens;
  const Experts& layer = experts_of(shape);
  const std::vector<float> exact = random_values(size_t{tokens} * shape.hidden, 21 + tokens);
  MoeRun run(shape, exact);
  run.run(shape, device_);
  const Routed routed{run.chosen.download(), run.weights.download(), run.counts.download(),
                      run.uses.download()};
  std::vector<float> router = dequantised(layer.moe.router, true);
  const std::vector<float> shared_gate = dequantised(layer.moe.shared_gate, true);
  router.insert(router.end(), shared_gate.begin(), shared_gate.end());
  expect_routing(routed, product(router, exact, shape.hidden), shape.experts, tokens);
  if (HasFailure()) {
    return;
  }
  const std::vector<uint32_t> found_bits = run.bits.download();
  for (uint32_t expert = 0; expert < shape.experts; ++expert) {
    EXPECT_EQ((found_bits[expert / 32] >> expert % 32 & 1) != 0, routed.counts[expert] != 0);
  }

  std::vector<float> expected_outer(run.outer.size());
  const std::vector<float> rows = to_floats(run.high);
  parallel(shape.experts + 1, [&](size_t expert) {
    std::vector<uint32_t> of_expert;
    if (expert == shape.experts) {
      for (uint32_t token = 0; token < tokens; ++token) {
        of_expert.push_back(token * kUses + kTopK);
      }
    } else {
      const auto begin = routed.uses.begin() + static_cast<ptrdiff_t>(expert * tokens);
      of_expert.assign(begin, begin + routed.counts[expert]);
    }
    if (!of_expert.empty()) {
      add_expert(layer.moe, static_cast<uint32_t>(expert), of_expert, rows, expected_outer);
    }
  });
  // A weight of the kernel may be rounded the other way, an inner value too (2^-8 of it), and the row is
  // stored in bf16.
  expect_rows(to_floats(run.outer.download()), expected_outer, shape.hidden, 6e-3);
  std::vector<float> found = run.stream.download();
  std::vector<float> expected(found.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const size_t token = i / shape.hidden;
    for (uint32_t slot = 0; slot < kUses; ++slot) {
      expected[i] += routed.weights[token * kUses + slot] *
                     expected_outer[(token * kUses + slot) * shape.hidden + i % shape.hidden];
    }
    found[i] -= 0.25F;
  }
  expect_rows(found, expected, shape.hidden, 6e-3);
}

class CudaPrefillMoeCompany : public NeedsGpu {};

TEST_F(CudaPrefillMoeCompany, ChangesNoBit) {
  for (const Shape& shape : {kTiny, kQwen36}) {
    SCOPED_TRACE(shape.name);
    const std::vector<float> all = random_values(size_t{600} * shape.hidden, 23);
    MoeRun together(shape, all);
    together.run(shape, device_);
    const std::vector<float> expected = together.stream.download();
    for (const uint32_t tokens : {9U, 70U, 250U}) {
      const std::vector<float> few(all.begin(), all.begin() + tokens * shape.hidden);
      MoeRun alone(shape, few);
      alone.run(shape, device_);
      const std::vector<float> found = alone.stream.download();
      EXPECT_TRUE(std::equal(found.begin(), found.end(), expected.begin())) << tokens;
    }
  }
}

std::vector<MoeCase> moe_cases() {
  std::vector<MoeCase> cases;
  for (const uint32_t tokens :
       {1U, 2U, 3U, 5U, 8U, 9U, 32U, 33U, 64U, 65U, 100U, 128U, 129U, 200U, 300U, 512U, 600U}) {
    cases.push_back({kTiny, tokens});
  }
  for (const uint32_t tokens : {1U, 9U, 65U, 600U}) {
    cases.push_back({kQwen36, tokens});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Tokens, CudaPrefillMoe, ::testing::ValuesIn(moe_cases()), [](const auto& tested) {
  return std::string(tested.param.shape.name) + "_" + std::to_string(tested.param.tokens);
});

TEST(PrefillTuning, TileOfAnExpertGrowsWithItsTokens) {
  EXPECT_EQ(prefill::experts_tile_tokens(256, 9), 32U);
  EXPECT_EQ(prefill::experts_tile_tokens(256, 512), 32U);
  EXPECT_EQ(prefill::experts_tile_tokens(256, 1024), 64U);
  EXPECT_EQ(prefill::experts_tile_tokens(256, 2048), 96U);
  EXPECT_EQ(prefill::experts_tile_tokens(256, 8192), 128U);
}

TEST(PrefillTuning, TileOfAProductFillsTheDevice) {
  EXPECT_EQ(prefill::dense_tile_tokens(2048, 8192, 132), 128U);
  EXPECT_EQ(prefill::dense_tile_tokens(2048, 2048, 132), 128U);
  EXPECT_EQ(prefill::dense_tile_tokens(2048, 512, 132), 32U);
  EXPECT_EQ(prefill::dense_tile_tokens(12352, 512, 132), 128U);
}

}  // namespace
}  // namespace lily::cuda::test
