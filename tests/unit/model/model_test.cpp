#include <gtest/gtest.h>

#include <set>

#include "model/plan.h"
#include "model/program.h"
#include "model/tensors.h"

namespace lily {
namespace {

TEST(Shape, WidthsOfTheLargeModelAreTheSpecifiedOnes) {
  EXPECT_EQ(kQwen36.conv_channels(), 8192U);
  EXPECT_EQ(kQwen36.q_width(), 4096U);
  EXPECT_EQ(kQwen36.kv_width(), 512U);
  EXPECT_EQ(kQwen36.value_width(), 4096U);
  EXPECT_EQ(kQwen36.attention_layers(), 10U);
  EXPECT_EQ(kQwen36.delta_net_layers(), 30U);
  EXPECT_TRUE(kQwen36.is_attention(3));
  EXPECT_FALSE(kQwen36.is_attention(4));
}

TEST(Shape, LayerCountsAreMultiplesOfFourUpToForty) {
  for (uint32_t layers = 0; layers <= 48; ++layers) {
    EXPECT_EQ(check_layers(layers).has_value(), layers >= 4 && layers <= 40 && layers % 4 == 0) << layers;
  }
  EXPECT_FALSE(shape_by_name("large"));
  EXPECT_EQ(shape_by_name("tiny")->hidden, 256U);
}

// The published checkpoint has 693 text and 19 MTP tensors. There the gate and up projections of the experts
// are one tensor and a quantised module is one; the table splits them: one site more per layer.
TEST(TensorTable, CountsMatchThePublishedCheckpoint) {
  ModelWeights weights = empty_weights(kQwen36, /*with_mtp=*/true);
  const auto table = tensor_table(kQwen36, weights);
  EXPECT_EQ(table.size(), 693U + 40U + 19U + 1U);
  std::set<std::string> names;
  size_t quantised = 0;
  for (const TensorSite& site : table) {
    names.insert(site.name + site.suffix);
    quantised += site.name.starts_with("mtp.") ? 0 : std::holds_alternative<AffineMatrix*>(site.view);
  }
  EXPECT_EQ(names.size(), table.size());
  // The MLX text checkpoint has 1,757 tensors: three for each quantised module, one for each other.
  EXPECT_EQ(3 * quantised + (693 + 40 - quantised), 1757U);
}

TEST(TensorTable, SitesPointIntoTheWeights) {
  ModelWeights weights = empty_weights(kTiny, false);
  for (const TensorSite& site : tensor_table(kTiny, weights)) {
    if (const auto* matrix = std::get_if<AffineMatrix*>(&site.view)) {
      (*matrix)->rows = site.rows;
    }
  }
  EXPECT_EQ(weights.head.lm_head.rows, kTiny.vocab);
  EXPECT_EQ(std::get<AttentionWeights>(weights.layers[3].mixer).q_proj.rows, 2 * 8 * 256U);
  EXPECT_EQ(weights.layers[7].moe.gate.rows, 64U);
}

TEST(Program, HasAMixerAndExpertsForEachLayer) {
  const auto steps = make_program(kQwen36);
  ASSERT_EQ(steps.size(), 82U);
  EXPECT_EQ(to_string(steps.front()), "embed");
  EXPECT_EQ(to_string(steps[7]), "layer 3 attention");
  EXPECT_EQ(to_string(steps[8]), "layer 3 moe");
  EXPECT_EQ(to_string(steps[9]), "layer 4 delta_net");
  EXPECT_EQ(to_string(steps.back()), "head");
}

TEST(Plan, SizesOfTheLargeModelAreThePublishedOnes) {
  const Plan plan = *make_plan(kQwen36, {.context = 32'768, .sequences = 4, .chunk = 256});
  EXPECT_EQ(plan.kv_bytes_per_token(), 20'480U);
  EXPECT_EQ(plan.recurrent_bytes(), 65'863'680U);  // 62.8125 MiB
  EXPECT_EQ(plan.max_rows, 259U);
}

TEST(Plan, NamesTheOptionThatIsOutOfRange) {
  const auto message = [](PlanOptions options) { return make_plan(kTiny, options).error().message; };
  EXPECT_EQ(message({.context = 63}), "context length: expected 64 to 262144, found 63");
  EXPECT_EQ(message({.sequences = 0}), "parallel sequences: expected 1 to 256, found 0");
  EXPECT_EQ(message({.chunk = 5000}), "prefill chunk: expected 1 to 4096, found 5000");
}

TEST(Plan, RowBucketsArePowersOfTwo) {
  EXPECT_EQ(row_bucket(1), 1U);
  EXPECT_EQ(row_bucket(3), 4U);
  EXPECT_EQ(row_bucket(64), 64U);
  EXPECT_EQ(row_bucket(65), 128U);
}

}  // namespace
}  // namespace lily
