// What the Metal backend promises beyond blocks and numbers: passes in flight, failure of one slice and of a
// whole pass, memory as estimated, pages that are shared and a pool that grows.
#include <gtest/gtest.h>

#include <cstring>

#include "backends/metal/backend.h"
#include "tests/blocks/device/metal_device.h"
#include "tests/support/random_weights.h"

namespace lily::test {
namespace {

constexpr int32_t kPoisoned = 77;  // a token whose embedding is not a number

const RandomWeights& poisoned_weights() {
  static const RandomWeights made = [] {
    RandomWeights weights(kTiny.with_layers(4), {.seed = 31});
    const AffineMatrix& table = weights.get().embed.table;
    auto* scales = const_cast<std::byte*>(table.scales);  // of this test's own weights
    const uint16_t nan = 0x7fc0;
    std::memcpy(scales + size_t{kPoisoned} * (table.cols / table.group) * 2, &nan, 2);
    return weights;
  }();
  return made;
}

std::vector<int32_t> prompt(size_t count, uint64_t seed) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(1000 + mix(seed * 1000 + i) % 7000));
  }
  return tokens;
}

class MetalBackendTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = metal_device({});
    if (!device) {
      GTEST_SKIP() << device.error().message;
    }
    device_ = device->get();
    backend_ = std::make_unique<metal::MetalBackend>(*std::move(device), kMetalName);
    plan_ = *make_plan(kTiny.with_layers(4), {.context = 2048, .sequences = 4, .chunk = 300});
    const auto loaded = backend_->load(poisoned_weights().get(), plan_, [](double) {});
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  }

  std::unique_ptr<SequenceState> state() { return *backend_->new_state(2048); }
  Ticket submit(const std::vector<Slice>& slices) {
    const auto ticket = backend_->submit({.slices = slices});
    EXPECT_TRUE(ticket.has_value()) << (ticket ? "" : ticket.error().message);
    return ticket.value_or(0);
  }
  Output collect(Ticket ticket) {
    auto output = backend_->collect(ticket);
    EXPECT_TRUE(output.has_value()) << (output ? "" : output.error().message);
    return output ? *std::move(output) : Output{};
  }
  Output run(const std::vector<Slice>& slices) { return collect(submit(slices)); }

  const Sampling greedy_{.mode = Sampling::Mode::greedy};
  Plan plan_{};
  metal::Device* device_ = nullptr;
  std::unique_ptr<metal::MetalBackend> backend_;
};

TEST_F(MetalBackendTest, MemoryIsWhatWasEstimated) {
  const auto need = backend_->estimate(poisoned_weights().get(), plan_);
  ASSERT_TRUE(need.has_value());
  EXPECT_EQ(need->mapped, 0U);  // these weights are in no file
  EXPECT_EQ(device_->allocated_bytes(), need->weights + need->workspace);
  const uint64_t before = device_->allocated_bytes();
  const auto one = state();
  EXPECT_LE(backend_->state_bytes(), need->per_sequence);
  const auto tokens = prompt(100, 1);
  run({{.state = one.get(), .tokens = tokens}});
  EXPECT_GT(device_->allocated_bytes(), before);
  EXPECT_LE(backend_->state_bytes(), need->per_sequence);
}

TEST_F(MetalBackendTest, TheNextPassIsSubmittedBeforeTheLastIsCollected) {
  const auto tokens = prompt(20, 2);
  const auto waiting = state();
  std::vector<int32_t> expected{
      run({{.state = waiting.get(), .tokens = tokens, .sampling = greedy_}}).slices[0].token};
  for (int i = 0; i < 5; ++i) {
    expected.push_back(run({{.state = waiting.get(), .sampling = greedy_}}).slices[0].token);
  }
  const auto ahead = state();
  std::vector<int32_t> found;
  Ticket last = submit({{.state = ahead.get(), .tokens = tokens, .sampling = greedy_}});
  for (int i = 0; i < 5; ++i) {
    const Ticket next = submit({{.state = ahead.get(), .sampling = greedy_}});
    const auto third = backend_->submit({.slices = {}});
    EXPECT_FALSE(third.has_value());
    found.push_back(collect(last).slices[0].token);
    last = next;
  }
  found.push_back(collect(last).slices[0].token);
  EXPECT_EQ(found, expected);
}

TEST_F(MetalBackendTest, ASliceThatIsNotFiniteHurtsNobodyElse) {
  const auto tokens = prompt(10, 3);
  std::vector<int32_t> bad = prompt(30, 4);
  bad.back() = kPoisoned;
  const auto alone = state();
  const auto beside = state();
  const auto hurt = state();
  const auto saved = hurt->save();
  ASSERT_TRUE(saved.has_value());
  const Output single =
      run({{.state = alone.get(), .tokens = tokens, .sampling = greedy_, .logits_rows = 1}});
  const Ticket first =
      submit({{.state = hurt.get(), .tokens = bad, .sampling = greedy_},
              {.state = beside.get(), .tokens = tokens, .sampling = greedy_, .logits_rows = 1}});
  // Submitted before the failure is known.
  const Ticket second =
      submit({{.state = hurt.get(), .sampling = greedy_}, {.state = beside.get(), .sampling = greedy_}});
  const Output both = collect(first);
  EXPECT_FALSE(both.slices[0].finite);
  EXPECT_EQ(both.slices[0].token, -1);
  EXPECT_EQ(both.slices[1].token, single.slices[0].token);
  EXPECT_TRUE(both.slices[1].logits == single.slices[0].logits);
  const Output after = collect(second);
  EXPECT_FALSE(after.slices[0].finite);
  EXPECT_EQ(after.slices[1].token, run({{.state = alone.get(), .sampling = greedy_}}).slices[0].token);
  const std::vector<Slice> again{{.state = hurt.get(), .tokens = tokens, .sampling = greedy_}};
  EXPECT_FALSE(backend_->submit({.slices = again}).has_value());
  ASSERT_TRUE(hurt->resume(**saved).has_value());
  EXPECT_EQ(run(again).slices[0].token, single.slices[0].token);
}

TEST_F(MetalBackendTest, ACancelledPassFailsItsStates) {
  const auto tokens = prompt(10, 5);
  const auto one = state();
  const auto saved = one->save();
  ASSERT_TRUE(saved.has_value());
  const std::atomic<bool> cancel = true;
  const std::vector<Slice> slices{{.state = one.get(), .tokens = tokens, .sampling = greedy_}};
  const auto ticket = backend_->submit({.slices = slices, .cancel = &cancel});
  ASSERT_TRUE(ticket.has_value());
  const auto output = backend_->collect(*ticket);
  ASSERT_FALSE(output.has_value());
  EXPECT_EQ(output.error().kind, ErrorKind::cancelled);
  EXPECT_FALSE(backend_->submit({.slices = slices}).has_value());
  EXPECT_FALSE(one->save().has_value());
  ASSERT_TRUE(one->resume(**saved).has_value());
  EXPECT_TRUE(run(slices).slices[0].finite);
}

// The pool of pages is made larger while a pass is in flight, and nothing that it holds changes.
TEST_F(MetalBackendTest, PagesGrowUnderAPassInFlight) {
  const auto first_tokens = prompt(300, 6);
  const auto second_tokens = prompt(250, 7);
  const auto one = state();
  const Ticket first = submit({{.state = one.get(), .tokens = first_tokens, .sampling = greedy_}});
  const auto two = state();
  const Ticket second = submit({{.state = two.get(), .tokens = second_tokens, .sampling = greedy_}});
  collect(first);
  collect(second);
  const Output found = run({{.state = one.get(), .sampling = greedy_, .logits_rows = 1}});
  const auto alone = state();
  run({{.state = alone.get(), .tokens = first_tokens, .sampling = greedy_}});
  const Output expected = run({{.state = alone.get(), .sampling = greedy_, .logits_rows = 1}});
  EXPECT_TRUE(found.slices[0].logits == expected.slices[0].logits);
}

// A checkpoint shares the pages of its state; the last one is copied when the state goes on.
TEST_F(MetalBackendTest, ACheckpointCostsTheRecurrentStatesAndOnePage) {
  const auto tokens = prompt(300, 8);
  const auto one = state();
  run({{.state = one.get(), .tokens = tokens, .sampling = greedy_}});
  const uint64_t before = backend_->state_bytes();
  const auto saved = one->save();
  ASSERT_TRUE(saved.has_value());
  const uint64_t with = backend_->state_bytes();
  EXPECT_LT(with - before, plan_.recurrent_bytes() + (uint64_t{1} << 17));
  run({{.state = one.get(), .sampling = greedy_}});
  EXPECT_EQ(backend_->state_bytes() - with, uint64_t{64} * plan_.kv_bytes_per_token());
}

TEST_F(MetalBackendTest, LimitsAreMeasured) {
  const auto limits = backend_->measure_limits();
  ASSERT_TRUE(limits.has_value()) << limits.error().message;
  EXPECT_GT(limits->read_bytes_per_second, 0);
  EXPECT_GT(limits->multiply_adds_per_second, 0);
}

}  // namespace
}  // namespace lily::test
