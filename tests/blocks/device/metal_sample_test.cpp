// The sampler of the Metal kernels against its specification, token for token.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "backends/metal/encoder.h"
#include "backends/metal/kernel_args.h"
#include "backends/metal/pipelines.h"
#include "model/shape.h"
#include "sampling/sampler.h"
#include "tests/blocks/device/metal_device.h"
#include "tests/support/random_weights.h"

namespace lily::test {
namespace {

using metal::View;

template <class T>
T must(Result<T> result) {
  EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().message);
  return *std::move(result);
}

// One row: its logits, the state of its sequence, and what comes back.
class SampledRow {
 public:
  SampledRow(uint32_t vocab, bool checked)
      : vocab_(vocab),
        device_(must(metal_device({.checked = checked}))),
        pipelines_(must(metal::Pipelines::open(*device_))) {
    slices_ = (vocab + metal::kSampleSlice - 1) / metal::kSampleSlice;
    logits_ = buffer(vocab * 4);
    adjusted_ = buffer(vocab * 4);
    best_ = buffer(slices_ * sizeof(metal::SliceBest));
    counts_ = buffer(vocab * 4);
    bits_ = buffer((vocab + 31) / 32 * 4);
    out_ = buffer(3 * 4);
    begin({}, {});
  }

  void begin(std::span<const int32_t> prompt, std::span<const int32_t> answer) {
    counts.begin(prompt, vocab_);
    std::memset(bits_->contents(), 0, bits_->size());
    std::memset(counts_->contents(), 0, counts_->size());
    for (const int32_t token : prompt) {
      bits_->as<uint32_t>()[token / 32] |= 1U << (token % 32);
    }
    for (const int32_t token : answer) {
      counts.add(token);
      ++counts_->as<uint32_t>()[token];
    }
  }

  Sampled run(const std::vector<float>& logits, const Sampling& s, uint64_t position) {
    std::copy(logits.begin(), logits.end(), logits_->as<float>());
    const auto bias = buffer(std::max<size_t>(s.bias.size(), 1) * sizeof(metal::BiasEntry));
    const auto allowed = buffer(std::max<size_t>(s.allowed.size(), 1) * 4);
    std::memcpy(bias->contents(), s.bias.data(), s.bias.size_bytes());
    std::memcpy(allowed->contents(), s.allowed.data(), s.allowed.size_bytes());
    const metal::SampleArgs args{
        .vocab = vocab_,
        .mode = static_cast<uint32_t>(s.mode),
        .temperature = s.temperature,
        .top_k = s.top_k,
        .top_p = s.top_p,
        .min_p = s.min_p,
        .presence = s.presence_penalty,
        .frequency = s.frequency_penalty,
        .repetition = s.repetition_penalty,
        .seed = {static_cast<uint32_t>(s.seed), static_cast<uint32_t>(s.seed >> 32)},
        .position = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32)},
        .bias_count = static_cast<uint32_t>(s.bias.size()),
        .masked = s.allowed.empty() ? 0U : 1U};
    auto commands = must(device_->commands("sampling"));
    metal::launch(*commands, must(pipelines_->get({"sample", "sample_adjust"})),
                  {logits_, bias, allowed, bits_, counts_, adjusted_, best_}, args, {slices_}, 256);
    commands->barrier();
    metal::launch(*commands, must(pipelines_->get({"sample", "sample_choose", {}, 512})),
                  {adjusted_, best_, View(out_).part(0, 8), View(out_).part(8, 4), counts_}, args, {1}, 512);
    EXPECT_TRUE(commands->commit().has_value());
    const auto done = commands->wait();
    EXPECT_TRUE(done.has_value()) << (done ? "" : done.error().message);
    const auto* found = out_->as<int32_t>();
    if (found[0] >= 0) {
      EXPECT_EQ(found[2], found[0]) << "the token that the next pass feeds";
    }
    return {.token = found[0], .finite = found[1] != 0};
  }

  TokenCounts counts;

 private:
  std::unique_ptr<metal::Buffer> buffer(size_t bytes) const {
    return must(device_->buffer(bytes, "sampling"));
  }
  uint32_t vocab_, slices_;
  std::unique_ptr<metal::Device> device_;
  std::unique_ptr<metal::Pipelines> pipelines_;
  std::unique_ptr<metal::Buffer> logits_, adjusted_, best_, counts_, bits_, out_;
};

struct Case {
  uint32_t vocab;
  float scale;  // of the logits
  Sampling sampling;
  int draws;
  bool checked = false;
};

class MetalSample : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto device = metal_device({}); !device) {
      GTEST_SKIP() << device.error().message;
    }
  }
};

void compare(const Case& of) {
  SampledRow row(of.vocab, of.checked);
  const std::vector<int32_t> prompt{1, 5, 9, 700, 701};
  const std::vector<int32_t> answer{5, 5, 5, 40, 41, 42, 42};
  SamplerScratch scratch;
  for (int i = 0; i < of.draws; ++i) {
    row.begin(prompt, answer);
    Sampling sampling = of.sampling;
    sampling.seed = 77 + static_cast<uint64_t>(i) * 0x123456789abcULL;
    std::vector<float> logits(of.vocab);
    for (uint32_t token = 0; token < of.vocab; ++token) {
      logits[token] = of.scale * normal(static_cast<uint64_t>(i), token);
    }
    const uint64_t position = 1000 + static_cast<uint64_t>(i);
    const Sampled expected = sample(logits, sampling, row.counts, position, scratch);
    const Sampled found = row.run(logits, sampling, position);
    ASSERT_EQ(found.token, expected.token) << "draw " << i;
    ASSERT_EQ(found.finite, expected.finite);
  }
}

TEST_F(MetalSample, Greedy) {
  compare({kTiny.vocab, 3, {.mode = Sampling::Mode::greedy}, 3, true});
  compare({kQwen36.vocab, 3, {.mode = Sampling::Mode::greedy}, 1});
}

TEST_F(MetalSample, AsTheModelCardSays) {
  const Sampling card{.mode = Sampling::Mode::random, .top_k = 20, .top_p = 0.95F};
  compare({kTiny.vocab, 3, card, 10});
  compare({kTiny.vocab, 3, card, 1, true});
  compare({kQwen36.vocab, 3, card, 2});
  compare({kTiny.vocab,
           3,
           {.mode = Sampling::Mode::random,
            .temperature = 0.7F,
            .top_k = 20,
            .top_p = 0.8F,
            .presence_penalty = 1.5F},
           10});
}

TEST_F(MetalSample, TheWholeDistribution) {
  compare({kTiny.vocab, 1, {.mode = Sampling::Mode::random}, 10});  // flat: most of the vocabulary has mass
  compare({kTiny.vocab, 4, {.mode = Sampling::Mode::random, .temperature = 1.3F}, 5});
  compare({kTiny.vocab, 2, {.mode = Sampling::Mode::random, .top_p = 0.9F}, 10});
  compare({kTiny.vocab, 2, {.mode = Sampling::Mode::random, .min_p = 0.05F}, 10});
  compare(
      {kTiny.vocab, 2, {.mode = Sampling::Mode::random, .top_k = 3000, .top_p = 0.99F, .min_p = 0.001F}, 5});
}

TEST_F(MetalSample, PenaltiesBiasAndMask) {
  const std::vector<LogitBias> bias{{40, 4.0F}, {7, -100.0F}, {40, 3.0F}, {8191, 2.5F}};
  const std::vector<uint32_t> allowed((kTiny.vocab + 31) / 32, 0xf0f0f0f3U);
  const Sampling penalties{.mode = Sampling::Mode::greedy,
                           .presence_penalty = 0.5F,
                           .frequency_penalty = 0.7F,
                           .repetition_penalty = 1.3F,
                           .bias = bias};
  compare({kTiny.vocab, 1, penalties, 5});
  const Sampling masked{.mode = Sampling::Mode::random,
                        .top_k = 50,
                        .frequency_penalty = 0.7F,
                        .repetition_penalty = 0.8F,
                        .bias = bias,
                        .allowed = allowed};
  compare({kTiny.vocab, 1, masked, 10});
  compare({kTiny.vocab, 1, masked, 1, true});
}

TEST_F(MetalSample, EqualLogitsAndUnusableOnes) {
  SampledRow row(kTiny.vocab, false);
  SamplerScratch scratch;
  std::vector<float> logits(kTiny.vocab, 1.25F);
  EXPECT_EQ(row.run(logits, {.mode = Sampling::Mode::greedy}, 3).token, 0);
  for (uint64_t position = 0; position < 6; ++position) {
    row.begin({}, {});
    const Sampling sampling{.mode = Sampling::Mode::random, .top_k = 300, .top_p = 0.5F};
    EXPECT_EQ(row.run(logits, sampling, position).token,
              sample(logits, sampling, row.counts, position, scratch).token);
  }
  logits[4000] = std::numeric_limits<float>::quiet_NaN();
  const Sampled found = row.run(logits, {.mode = Sampling::Mode::greedy}, 3);
  EXPECT_FALSE(found.finite);
  EXPECT_EQ(found.token, -1);
  // A temperature so small that the quotient overflows decides like greedy.
  logits[4000] = 5.0F;
  EXPECT_EQ(row.run(logits, {.mode = Sampling::Mode::random, .temperature = 1e-38F}, 3).token, 4000);
}

}  // namespace
}  // namespace lily::test
