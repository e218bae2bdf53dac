// The sampler on the device against its specification, token for token.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backends/cuda/backend.h"
#include "backends/cuda/kernels/sample.h"
#include "model/shape.h"
#include "sampling/sampler.h"
#include "tests/support/random_weights.h"

namespace lily::cuda {
namespace {

template <class T>
T must(Result<T> result) {
  EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().message);
  return *std::move(result);
}

// One row on the device: its logits, the state of its sequence, and what comes back.
class Row {
 public:
  explicit Row(uint32_t vocab) : vocab_(vocab) {
    logits_ = must(DeviceMemory::allocate(vocab * 4, meter_, "logits"));
    adjusted_ = must(DeviceMemory::allocate(vocab * 4, meter_, "adjusted"));
    best_ = must(DeviceMemory::allocate(slices_of(vocab) * sizeof(SliceBest), meter_, "best"));
    counts_ = must(DeviceMemory::allocate(vocab * 4, meter_, "counts"));
    bits_ = must(DeviceMemory::allocate((vocab + 31) / 32 * 4, meter_, "bits"));
    allowed_ = must(DeviceMemory::allocate((vocab + 31) / 32 * 4, meter_, "allowed"));
    bias_ = must(DeviceMemory::allocate(1024 * sizeof(BiasEntry), meter_, "bias"));
    out_ = must(DeviceMemory::allocate(256 + sizeof(SampleRow), meter_, "out"));
    EXPECT_TRUE(clear(counts_.bytes(), counts_.size(), nullptr).has_value());
    EXPECT_TRUE(clear(bits_.bytes(), bits_.size(), nullptr).has_value());
  }

  void begin(std::span<const int32_t> prompt, std::span<const int32_t> answer) {
    counts.begin(prompt, vocab_);
    std::vector<uint32_t> bits((vocab_ + 31) / 32);
    std::vector<uint32_t> count(vocab_);
    for (const int32_t token : prompt) {
      bits[static_cast<size_t>(token) / 32] |= 1U << (token % 32);
    }
    for (const int32_t token : answer) {
      counts.add(token);
      ++count[static_cast<size_t>(token)];
    }
    put(bits_, bits);
    put(counts_, count);
  }

  Sampled run(const std::vector<float>& logits, const Sampling& sampling, uint64_t position) {
    put(logits_, logits);
    SampleRow row{};
    row.mode = static_cast<uint32_t>(sampling.mode);
    row.temperature = sampling.temperature;
    row.top_k = sampling.top_k;
    row.top_p = sampling.top_p;
    row.min_p = sampling.min_p;
    row.presence = sampling.presence_penalty;
    row.frequency = sampling.frequency_penalty;
    row.repetition = sampling.repetition_penalty;
    row.seed = sampling.seed;
    row.position = position;
    row.bias_count = static_cast<uint32_t>(sampling.bias.size());
    row.allowed = sampling.allowed.empty() ? ~0U : 0;
    row.prompt_bits = bits_.as<uint32_t>();
    row.counts = counts_.as<uint32_t>();
    row.sampled = out_.as<int32_t>() + 2;
    put(bias_, std::vector<LogitBias>(sampling.bias.begin(), sampling.bias.end()));
    put(allowed_, std::vector<uint32_t>(sampling.allowed.begin(), sampling.allowed.end()));
    EXPECT_TRUE(copy_to_device(out_.bytes() + 256, &row, sizeof(row), nullptr).has_value());
    const SampleArgs args{.logits = logits_.as<float>(),
                          .vocab = vocab_,
                          .rows = 1,
                          .table = reinterpret_cast<const SampleRow*>(out_.bytes() + 256),
                          .bias = bias_.as<BiasEntry>(),
                          .allowed = allowed_.as<uint32_t>(),
                          .adjusted = adjusted_.as<float>(),
                          .best = best_.as<SliceBest>(),
                          .tokens = out_.as<int32_t>(),
                          .finite = out_.as<uint32_t>() + 1,
                          .unwrite = {},
                          .report = {}};
    EXPECT_TRUE(check(launch_sample(args, nullptr), "sampling").has_value());
    std::array<int32_t, 3> found{};
    EXPECT_TRUE(copy_to_host(found.data(), out_.bytes(), sizeof(found), nullptr).has_value());
    EXPECT_TRUE(finish(nullptr).has_value());
    if (found[0] >= 0) {
      EXPECT_EQ(found[2], found[0]) << "the token that the next pass feeds";
    }
    return {.token = found[0], .finite = found[1] != 0};
  }

  TokenCounts counts;

 private:
  template <class T>
  static void put(const DeviceMemory& to, const std::vector<T>& from) {
    EXPECT_TRUE(copy_to_device(to.bytes(), from.data(), from.size() * sizeof(T), nullptr).has_value());
    EXPECT_TRUE(finish(nullptr).has_value());
  }
  uint32_t vocab_;
  Meter meter_;
  DeviceMemory logits_, adjusted_, best_, counts_, bits_, allowed_, bias_, out_;
};

std::vector<float> random_logits(uint32_t vocab, uint64_t seed, float scale) {
  std::vector<float> logits(vocab);
  for (uint32_t i = 0; i < vocab; ++i) {
    logits[i] = scale * lily::test::normal(seed, i);
  }
  return logits;
}

class CudaSample : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto device = CudaBackend::create(); !device) {
      GTEST_SKIP() << device.error().message;
    }
  }

  void compare(uint32_t vocab, float scale, const Sampling& base, int draws) {
    Row row(vocab);
    const std::vector<int32_t> prompt{1, 5, 9, 700, 701};
    const std::vector<int32_t> answer{5, 5, 5, 40, 41, 42, 42};
    SamplerScratch scratch;
    for (int i = 0; i < draws; ++i) {
      row.begin(prompt, answer);
      Sampling sampling = base;
      sampling.seed = 77 + static_cast<uint64_t>(i) * 0x123456789abcULL;
      const auto logits = random_logits(vocab, static_cast<uint64_t>(i), scale);
      const Sampled expected = sample(logits, sampling, row.counts, 1000 + static_cast<uint64_t>(i), scratch);
      const Sampled found = row.run(logits, sampling, 1000 + static_cast<uint64_t>(i));
      ASSERT_EQ(found.token, expected.token) << "draw " << i;
      ASSERT_EQ(found.finite, expected.finite);
    }
  }
};

TEST_F(CudaSample, Greedy) { compare(kQwen36.vocab, 3, {.mode = Sampling::Mode::greedy}, 5); }

TEST_F(CudaSample, AsTheModelCardSays) {
  compare(kQwen36.vocab, 3, {.mode = Sampling::Mode::random, .top_k = 20, .top_p = 0.95F}, 20);
  compare(kTiny.vocab, 3,
          {.mode = Sampling::Mode::random,
           .temperature = 0.7F,
           .top_k = 20,
           .top_p = 0.8F,
           .presence_penalty = 1.5F},
          20);
}

TEST_F(CudaSample, TheWholeDistribution) {
  compare(kTiny.vocab, 1, {.mode = Sampling::Mode::random}, 20);  // flat: most of the vocabulary is walked
  compare(kQwen36.vocab, 4, {.mode = Sampling::Mode::random, .temperature = 1.3F}, 5);
  compare(kTiny.vocab, 2, {.mode = Sampling::Mode::random, .top_p = 0.9F}, 20);
  compare(kTiny.vocab, 2, {.mode = Sampling::Mode::random, .min_p = 0.05F}, 20);
  compare(kTiny.vocab, 2, {.mode = Sampling::Mode::random, .top_k = 3000, .top_p = 0.99F}, 10);
}

TEST_F(CudaSample, PenaltiesBiasAndMask) {
  const std::vector<LogitBias> bias{{40, 4.0F}, {7, -100.0F}, {40, 3.0F}, {8191, 2.5F}};
  std::vector<uint32_t> allowed((kTiny.vocab + 31) / 32, 0xf0f0f0f3U);
  compare(kTiny.vocab, 1,
          {.mode = Sampling::Mode::greedy,
           .presence_penalty = 0.5F,
           .frequency_penalty = 0.7F,
           .repetition_penalty = 1.3F,
           .bias = bias},
          20);
  compare(kTiny.vocab, 1,
          {.mode = Sampling::Mode::random,
           .top_k = 50,
           .frequency_penalty = 0.7F,
           .repetition_penalty = 0.8F,
           .bias = bias,
           .allowed = allowed},
          20);
}

TEST_F(CudaSample, EqualLogitsAndUnusableOnes) {
  Row row(kTiny.vocab);
  row.begin({}, {});
  SamplerScratch scratch;
  std::vector<float> logits(kTiny.vocab, 1.25F);
  EXPECT_EQ(row.run(logits, {.mode = Sampling::Mode::greedy}, 3).token, 0);
  for (uint64_t position = 0; position < 10; ++position) {
    const Sampling sampling{.mode = Sampling::Mode::random, .top_k = 300};
    EXPECT_EQ(row.run(logits, sampling, position).token,
              sample(logits, sampling, row.counts, position, scratch).token);
    row.begin({}, {});
  }
  logits[4000] = std::numeric_limits<float>::quiet_NaN();
  const Sampled found = row.run(logits, {.mode = Sampling::Mode::greedy}, 3);
  EXPECT_FALSE(found.finite);
  EXPECT_EQ(found.token, -1);
}

}  // namespace
}  // namespace lily::cuda
