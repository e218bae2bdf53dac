// The small trained model on the GPU beside the CPU backend: 512 tokens chosen greedily.
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/registry.h"
#include "weights/bind.h"

namespace lily::test {
namespace {

// The two best logits of a row.
struct Best {
  int32_t token;
  float gap;
};
Best best_of(std::span<const float> logits) {
  const auto first = std::max_element(logits.begin(), logits.end());
  float second = -INFINITY;
  for (auto at = logits.begin(); at != logits.end(); ++at) {
    second = at == first ? second : std::max(second, *at);
  }
  return {static_cast<int32_t>(first - logits.begin()), *first - second};
}

constexpr float kTolerance = 0.1F;  // of a logit; the largest are about 20

TEST(CudaModel, GreedyTokensAreThoseOfTheCpuWhereverTheBestIsClear) {
  auto cuda = make_backend("cuda", {});
  if (!cuda) {
    GTEST_SKIP() << cuda.error().message;
  }
  auto cpu = make_backend("cpu", {});
  ASSERT_TRUE(cpu.has_value());
  auto file = WeightFile::open(std::string(LILY_SOURCE_DIR) + "/models/lily-tiny");
  if (!file) {
    file = WeightFile::open("models/lily-tiny");
  }
  ASSERT_TRUE(file.has_value()) << file.error().text();
  const auto plan = make_plan((*file)->shape(), {.context = 1024, .sequences = 1, .chunk = 64});
  ASSERT_TRUE(plan.has_value());
  std::vector<std::unique_ptr<SequenceState>> states;
  const std::array<Backend*, 2> backends{cpu->get(), cuda->get()};
  for (Backend* backend : backends) {
    ASSERT_TRUE(backend->load(**file, *plan, [](double) {}).has_value());
    states.push_back(*backend->new_state(1024));
  }
  std::vector<int32_t> next{1, 300, 2000, 41, 7};
  int different = 0;
  for (int step = 0; step < 512; ++step) {
    std::array<Best, 2> best{};
    for (size_t i = 0; i < 2; ++i) {
      const std::array<Slice, 1> slices{Slice{.state = states[i].get(), .tokens = next, .logits_rows = 1}};
      const auto ticket = backends[i]->submit({.slices = slices});
      ASSERT_TRUE(ticket.has_value()) << ticket.error().message;
      const auto output = backends[i]->collect(*ticket);
      ASSERT_TRUE(output.has_value()) << output.error().message;
      best[i] = best_of(output->slices[0].logits);
    }
    if (best[0].token != best[1].token) {
      ++different;
      EXPECT_LT(best[0].gap, kTolerance) << "step " << step;
    }
    next = {best[0].token};
  }
  EXPECT_LE(different, 25);
  RecordProperty("different", different);
}

}  // namespace
}  // namespace lily::test
