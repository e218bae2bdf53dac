#include "model/rope.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace lily::reference {
namespace {

// 1.0 / (10000000 ** (torch.arange(0, 64, 2).float() / 64)) by torch 2.15 on a CPU.
constexpr std::array<float, kRotaryPairs> kTorch{
    0x1.000000p+0F,  0x1.356656p-1F,  0x1.75f036p-2F,  0x1.c3f06ap-3F,  0x1.111aeep-3F,  0x1.4a12acp-4F,
    0x1.8eec7ep-5F,  0x1.e222eep-6F,  0x1.235a72p-6F,  0x1.6020a4p-7F,  0x1.a9942ap-8F,  0x1.012cfap-8F,
    0x1.36d21ap-9F,  0x1.77a7dap-10F, 0x1.c603c4p-11F, 0x1.125c04p-11F, 0x1.4b96c0p-12F, 0x1.90c182p-13F,
    0x1.e459c4p-14F, 0x1.24b0fcp-14F, 0x1.61bea4p-15F, 0x1.ab8882p-16F, 0x1.025b56p-16F, 0x1.383f88p-17F,
    0x1.796182p-18F, 0x1.c8198cp-19F, 0x1.139e94p-19F, 0x1.4d1c98p-20F, 0x1.9298aep-21F, 0x1.e6933ap-22F,
    0x1.26091cp-22F, 0x1.635e88p-23F};

TEST(Rope, FrequenciesAreThoseOfTransformersInFloat32) { EXPECT_EQ(rotary_frequencies(), kTorch); }

// Position 100,000 as torch has it: (inv_freq.float() @ position.float()).cos(), its last bit aside.
TEST(Rope, FarPositionsTurnAsInTransformers) {
  constexpr std::array<float, 6> kCosines{-0x1.ffac38p-1F, -0x1.cea1b6p-2F, 0x1.cb04d8p-1F,
                                          0x1.67427ap-1F,  -0x1.537560p-1F, -0x1.f1c7c2p-1F};
  const Rotation rotation = rotation_at(100'000);
  for (size_t j = 0; j < kCosines.size(); ++j) {
    EXPECT_NEAR(rotation.cosine[j], kCosines[j], 1.2e-7F) << j;
  }
}

TEST(Rope, TurnsPairsOfTheFirst64AndPassesTheRest) {
  std::array<float, Shape::kHeadDim> head{};
  for (size_t i = 0; i < head.size(); ++i) {
    head[i] = static_cast<float>(i) + 1;
  }
  const auto before = head;
  const Rotation rotation = rotation_at(3);
  rotate(rotation, head.data());
  for (uint32_t j = 0; j < kRotaryPairs; ++j) {
    const double angle = 3.0 * std::pow(1e7, -2.0 * j / 64);
    EXPECT_NEAR(head[j], before[j] * std::cos(angle) - before[j + 32] * std::sin(angle), 1e-4);
    EXPECT_NEAR(head[j + 32], before[j + 32] * std::cos(angle) + before[j] * std::sin(angle), 1e-4);
  }
  for (uint32_t i = Shape::kRotaryDim; i < Shape::kHeadDim; ++i) {
    EXPECT_EQ(head[i], before[i]);
  }
}

}  // namespace
}  // namespace lily::reference
