// The small trained model on the GPU beside the CPU backend: 512 tokens chosen greedily.
#include "tests/blocks/device/greedy.h"

namespace lily::test {
namespace {

constexpr float kTolerance = 0.1F;  // of a logit; the largest are about 20

TEST(CudaModel, GreedyTokensAreThoseOfTheCpuWhereverTheBestIsClear) {
  auto cuda = make_backend("cuda", {});
  if (!cuda) {
    GTEST_SKIP() << cuda.error().message;
  }
  auto file = WeightFile::open(std::string(LILY_SOURCE_DIR) + "/models/lily-tiny");
  if (!file) {
    file = WeightFile::open("models/lily-tiny");
  }
  ASSERT_TRUE(file.has_value()) << file.error().text();
  EXPECT_LE(follow_cpu(**cuda, **file, {1, 300, 2000, 41, 7}, 512, kTolerance), 25);
}

}  // namespace
}  // namespace lily::test
