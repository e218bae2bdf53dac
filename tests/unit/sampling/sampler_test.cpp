// The sampler against hand-worked rows, against a naive reading of its specification, and against statistics.
#include "sampling/sampler.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace lily {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNaN = std::numeric_limits<float>::quiet_NaN();

Sampling greedy() {
  Sampling sampling;
  sampling.mode = Sampling::Mode::greedy;
  return sampling;
}

Sampling random(float temperature = 1.0F) {
  Sampling sampling;
  sampling.mode = Sampling::Mode::random;
  sampling.temperature = temperature;
  return sampling;
}

Sampled draw(const std::vector<float>& logits, const Sampling& sampling, uint64_t position = 0,
             const TokenCounts& counts = {}) {
  SamplerScratch scratch;
  return sample(logits, sampling, counts, position, scratch);
}

// The tokens that come out over many positions.
std::map<int32_t, int> histogram(const std::vector<float>& logits, const Sampling& sampling, int draws) {
  std::map<int32_t, int> seen;
  for (int i = 0; i < draws; ++i) {
    ++seen[draw(logits, sampling, static_cast<uint64_t>(i)).token];
  }
  return seen;
}

// Known answers of Philox 4x32-10 as its authors publish them (Random123, kat_vectors).
TEST(Philox, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformUsesTheUpperBitsOfTheFirstTwoWords) {
  EXPECT_EQ(philox_uniform(0, 0), static_cast<double>(0x6627e8d5e169c58dULL >> 11) * 0x1p-53);
}

TEST(Philox, UniformIsEvenAndDependsOnSeedAndPosition) {
  constexpr int kDraws = 64'000;
  constexpr int kBins = 64;
  std::array<int, kBins> bins{};
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double u = philox_uniform(12345, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++bins[static_cast<size_t>(u * kBins)];
  }
  double chi = 0;
  for (const int count : bins) {
    chi += std::pow(count - kDraws / kBins, 2) / (static_cast<double>(kDraws) / kBins);
  }
  EXPECT_LT(chi, 110.0);  // 63 degrees of freedom: above with a chance of 2e-4
  EXPECT_NE(philox_uniform(1, 0), philox_uniform(2, 0));
  EXPECT_NE(philox_uniform(1, 0), philox_uniform(1, 1));
  EXPECT_NE(philox_uniform(1, 0), philox_uniform(1ULL << 32, 0));
  EXPECT_NE(philox_uniform(1, 1), philox_uniform(1, 1ULL << 32));
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowestIdAmongEquals) {
  EXPECT_EQ(draw({1, 5, 3, 5}, greedy()).token, 1);
  EXPECT_EQ(draw({-3, -1, -2}, greedy()).token, 1);
  EXPECT_EQ(draw({-kInfinity, -7, -kInfinity}, greedy()).token, 1);
}

TEST(Sampler, RowsThatAreNotFiniteAreReportedAndNeverSampled) {
  for (const Sampling& sampling : {greedy(), random()}) {
    for (const std::vector<float>& row :
         {std::vector<float>{1, kNaN, 2}, {kNaN, kNaN, kNaN}, {1, kInfinity, 2}, {1, 2, kNaN}}) {
      const Sampled sampled = draw(row, sampling);
      EXPECT_FALSE(sampled.finite);
      EXPECT_EQ(sampled.token, -1);
    }
    EXPECT_FALSE(draw({-kInfinity, -kInfinity}, sampling).finite);
  }
}

TEST(Sampler, ANaNBehindTheMaskStillIsReported) {
  const std::array<uint32_t, 1> allowed{0b001};
  Sampling sampling = greedy();
  sampling.allowed = allowed;
  EXPECT_FALSE(draw({1, kNaN, 2}, sampling).finite);
}

TEST(Sampler, MaskAllowsOnlyItsTokens) {
  std::vector<float> logits(40, 0.0F);
  logits[3] = 9;
  logits[33] = 1;
  const std::array<uint32_t, 2> allowed{1U << 7, (1U << 1) | (1U << 2)};  // 7, 33, 34
  Sampling sampling = greedy();
  sampling.allowed = allowed;
  EXPECT_EQ(draw(logits, sampling).token, 33);
  sampling = random();
  sampling.allowed = allowed;
  for (const auto& [token, count] : histogram(logits, sampling, 500)) {
    EXPECT_TRUE(token == 7 || token == 33 || token == 34) << token;
  }
  const std::array<uint32_t, 2> nothing{};
  sampling.allowed = nothing;
  EXPECT_FALSE(draw(logits, sampling).finite);
}

TEST(Sampler, BiasComesBeforeEverythingElse) {
  Sampling sampling = greedy();
  const std::array<LogitBias, 2> bias{{{2, 4.0F}, {0, -100.0F}}};
  sampling.bias = bias;
  EXPECT_EQ(draw({5, 3, 2}, sampling).token, 2);
  // 2 + 4 = 6, and the repetition penalty halves the sum, not the bare logit: 3 < 3.5.
  TokenCounts counts;
  counts.begin(std::vector<int32_t>{2}, 3);
  sampling.repetition_penalty = 2.0F;
  EXPECT_EQ(draw({5, 3.5, 2}, sampling, 0, counts).token, 1);
  EXPECT_EQ(draw({5, 2.5, 2}, sampling, 0, counts).token, 2);
}

TEST(Sampler, RepetitionPenaltySeesPromptAndAnswerOnceEach) {
  TokenCounts counts;
  counts.begin(std::vector<int32_t>{0, 0, 1}, 4);
  counts.add(1);
  counts.add(2);
  counts.add(2);
  Sampling sampling = greedy();
  sampling.repetition_penalty = 2.0F;
  EXPECT_EQ(draw({8, 7, 6, 3.9F}, sampling, 0, counts).token, 0);  // 4, 3.5, 3, 3.9
  EXPECT_EQ(draw({7.6F, 7, 6, 3.9F}, sampling, 0, counts).token, 3);
  // Negative logits are multiplied: -1 becomes -2.
  EXPECT_EQ(draw({-1, -1, -1, -1.9F}, sampling, 0, counts).token, 3);
}

TEST(Sampler, PresenceCountsOnceFrequencyCountsEachTimeAndThePromptIsSpared) {
  TokenCounts counts;
  counts.begin(std::vector<int32_t>{0, 0, 0}, 4);
  for (const int32_t token : {1, 2, 2, 2}) {
    counts.add(token);
  }
  Sampling sampling = greedy();
  sampling.presence_penalty = 1.5F;
  EXPECT_EQ(draw({5, 6.4F, 6.4F, 0}, sampling, 0, counts).token, 0);
  EXPECT_EQ(draw({5, 6.6F, 6.4F, 0}, sampling, 0, counts).token, 1);
  sampling.presence_penalty = 0;
  sampling.frequency_penalty = 1.0F;
  EXPECT_EQ(draw({5, 5.9F, 8.1F, 0}, sampling, 0, counts).token, 2);  // 5, 4.9, 5.1
  EXPECT_EQ(draw({5, 6.2F, 8.1F, 0}, sampling, 0, counts).token, 1);
}

TEST(Sampler, CountsForgetTheLastAnswerAndTakeBackDraftedTokens) {
  TokenCounts counts;
  counts.begin(std::vector<int32_t>{3, 70, -5, 1000}, 100);
  EXPECT_TRUE(counts.in_prompt(3));
  EXPECT_TRUE(counts.in_prompt(70));
  EXPECT_FALSE(counts.in_prompt(4));
  EXPECT_FALSE(counts.in_prompt(-5));
  EXPECT_FALSE(counts.in_prompt(1000));
  counts.add(5);
  counts.add(5);
  counts.remove(5);
  EXPECT_EQ(counts.answer().at(5), 1U);
  counts.remove(5);
  counts.remove(5);
  EXPECT_TRUE(counts.answer().empty());
  counts.add(9);
  counts.begin({}, 100);
  EXPECT_TRUE(counts.answer().empty());
  EXPECT_FALSE(counts.in_prompt(3));
}

TEST(Sampler, TopKKeepsTheLargestWithTiesByLowerId) {
  Sampling sampling = random();
  sampling.top_k = 3;
  const auto seen = histogram({1, 2, 2, 2, 2, 0}, sampling, 2000);
  EXPECT_EQ(seen.size(), 3U);
  for (const int32_t token : {1, 2, 3}) {
    EXPECT_TRUE(seen.contains(token)) << token;
  }
  sampling.top_k = 1;
  EXPECT_EQ(histogram({1, 2, 2, 2, 2, 0}, sampling, 100).begin()->first, 1);
}

TEST(Sampler, TopPKeepsTheShortestPrefixThatReachesIt) {
  // Masses 0.25, 0.5, 0.125, 0.125.
  const std::vector<float> logits{std::log(4.0F), std::log(8.0F), std::log(2.0F), std::log(2.0F)};
  Sampling sampling = random();
  sampling.top_p = 0.4F;
  EXPECT_EQ(histogram(logits, sampling, 500), (std::map<int32_t, int>{{1, 500}}));
  sampling.top_p = 0.6F;
  auto seen = histogram(logits, sampling, 2000);
  EXPECT_EQ(seen.size(), 2U);
  EXPECT_TRUE(seen.contains(0) && seen.contains(1));
  sampling.top_p = 0.8F;
  seen = histogram(logits, sampling, 2000);
  EXPECT_EQ(seen.size(), 3U);
  EXPECT_TRUE(seen.contains(2));  // the lower id of the two equal ones
  sampling.top_p = 1e-9F;
  EXPECT_EQ(histogram(logits, sampling, 100).size(), 1U);
}

TEST(Sampler, TopPCountsTheMassLeftByTopK) {
  Sampling sampling = random();
  sampling.top_k = 2;
  sampling.top_p = 0.6F;  // of two equal ones, each has 0.5: both are needed
  EXPECT_EQ(histogram({1, 1, 1, 1}, sampling, 500).size(), 2U);
  sampling.top_p = 0.45F;
  EXPECT_EQ(histogram({1, 1, 1, 1}, sampling, 500).size(), 1U);
}

TEST(Sampler, MinPDropsWhatIsFarBelowTheLargest) {
  Sampling sampling = random();
  sampling.min_p = 0.2F;
  const auto seen = histogram({0, std::log(0.25F), std::log(0.15F), -20}, sampling, 3000);
  EXPECT_EQ(seen.size(), 2U);
  EXPECT_NEAR(seen.at(0), 3000 * 0.8, 120);
  sampling.min_p = 1.0F;  // only what equals the largest
  EXPECT_EQ(histogram({2, 2, 1}, sampling, 500).size(), 2U);
}

TEST(Sampler, FrequenciesFollowTheSoftmaxAtEveryTemperature) {
  const std::vector<float> logits{0.3F, -1.0F, 1.2F, 0.0F, -4.0F};
  constexpr int kDraws = 40'000;
  for (const float temperature : {0.5F, 1.0F, 2.0F}) {
    std::vector<double> weights;
    for (const float logit : logits) {
      weights.push_back(std::exp(static_cast<double>(logit) / temperature));
    }
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    auto seen = histogram(logits, random(temperature), kDraws);
    double chi = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const double expected = kDraws * weights[i] / total;
      chi += std::pow(seen[static_cast<int32_t>(i)] - expected, 2) / expected;
    }
    EXPECT_LT(chi, 22.0) << temperature;  // 4 degrees of freedom: above with a chance of 2e-4
  }
}

TEST(Sampler, ATinyTemperatureDecidesLikeGreedy) {
  EXPECT_EQ(draw({1, 3, 2}, random(1e-40F)).token, 1);
  EXPECT_EQ(draw({-3, -1, -2}, random(1e-40F)).token, 1);
  EXPECT_EQ(draw({1, 3, 2}, random(1e-3F)).token, 1);
}

TEST(Sampler, SameSeedAndPositionSameTokenOtherwiseNot) {
  std::vector<float> flat(1000, 0.0F);
  Sampling seven = random();
  seven.seed = 7;
  Sampling eight = random();
  eight.seed = 8;
  int differ = 0;
  for (uint64_t position = 0; position < 50; ++position) {
    EXPECT_EQ(draw(flat, seven, position).token, draw(flat, seven, position).token);
    differ += draw(flat, seven, position).token != draw(flat, eight, position).token ? 1 : 0;
  }
  EXPECT_GT(differ, 45);
}

// The specification read naively: everything sorted, nothing clever.
int32_t naive(const std::vector<float>& logits, const Sampling& sampling, uint64_t position) {
  std::vector<float> scaled;
  for (const float logit : logits) {
    scaled.push_back(logit / sampling.temperature);
  }
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return scaled[a] > scaled[b]; });
  if (sampling.top_k != 0) {
    order.resize(std::min<size_t>(order.size(), sampling.top_k));
  }
  std::vector<double> weights;
  for (const int32_t token : order) {
    weights.push_back(std::exp(static_cast<double>(scaled[token]) - static_cast<double>(scaled[order[0]])));
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  size_t kept = 0;
  for (double sum = 0; kept < weights.size() && (kept == 0 || sum < sampling.top_p * total);) {
    sum += weights[kept++];
  }
  if (sampling.top_p >= 1) {
    kept = weights.size();
  }
  while (kept > 1 && weights[kept - 1] < sampling.min_p) {
    --kept;
  }
  const double mass = std::accumulate(weights.begin(), weights.begin() + static_cast<ptrdiff_t>(kept), 0.0);
  const double target = philox_uniform(sampling.seed, position) * mass;
  double sum = 0;
  for (size_t i = 0; i < kept; ++i) {
    sum += weights[i];
    if (target < sum) {
      return order[i];
    }
  }
  return order[kept - 1];
}

RC_GTEST_PROP(Sampler, EqualsANaiveReadingOfTheSpecification, ()) {
  const auto size = *rc::gen::inRange<size_t>(1, 3000);
  const auto seed = *rc::gen::arbitrary<uint64_t>();
  std::vector<float> logits;
  for (uint64_t i = 0; i < size; ++i) {  // coarse values: many ties
    logits.push_back(std::round(static_cast<float>(philox_uniform(seed, i)) * 40.0F) / 4.0F);
  }
  Sampling sampling = random(*rc::gen::element(0.3F, 0.7F, 1.0F, 1.7F));
  sampling.seed = seed;
  sampling.top_k = *rc::gen::element(0U, 1U, 5U, 20U, 400U, 5000U);
  sampling.top_p = *rc::gen::element(1.0F, 0.95F, 0.5F, 0.01F);
  sampling.min_p = *rc::gen::element(0.0F, 0.05F, 0.3F);
  for (uint64_t position = 0; position < 20; ++position) {
    RC_ASSERT(draw(logits, sampling, position).token == naive(logits, sampling, position));
  }
}

TEST(Logprobs, AreOfTheUntemperedRow) {
  const std::vector<float> logits{std::log(1.0F), std::log(2.0F), std::log(5.0F)};
  EXPECT_NEAR(log_softmax_at(logits, 0), std::log(1.0 / 8), 1e-7);
  EXPECT_NEAR(log_softmax_at(logits, 2), std::log(5.0 / 8), 1e-7);
  EXPECT_NEAR(log_softmax_at(std::vector<float>{1000, -1000}, 1), -2000, 1e-9);
}

TEST(Logprobs, TopIsInOrderWithTiesByLowerId) {
  const auto top = top_logprobs(std::vector<float>{1, 3, 3, 2, 3}, 4);
  ASSERT_EQ(top.size(), 4U);
  EXPECT_EQ(top[0].token, 1);
  EXPECT_EQ(top[1].token, 2);
  EXPECT_EQ(top[2].token, 4);
  EXPECT_EQ(top[3].token, 3);
  EXPECT_EQ(top[0].logprob, log_softmax_at(std::vector<float>{1, 3, 3, 2, 3}, 1));
  EXPECT_EQ(top_logprobs(std::vector<float>{1, 2}, 20).size(), 2U);
  EXPECT_TRUE(top_logprobs(std::vector<float>{1, 2}, 0).empty());
}

}  // namespace
}  // namespace lily
