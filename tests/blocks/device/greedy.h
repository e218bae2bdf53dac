// A device beside the CPU backend: tokens chosen greedily, both fed with those of the CPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "backend/registry.h"
#include "weights/bind.h"

namespace lily::test {

// The best logit of a row and how far the second is below it.
struct Best {
  int32_t token;
  float gap;
};
inline Best best_of(std::span<const float> logits) {
  const auto first = std::max_element(logits.begin(), logits.end());
  float second = -INFINITY;
  for (auto at = logits.begin(); at != logits.end(); ++at) {
    second = at == first ? second : std::max(second, *at);
  }
  return {static_cast<int32_t>(first - logits.begin()), *first - second};
}

// Loads the model into `device` and a CPU backend, reads the prompt and takes `steps` tokens. Where the best
// tokens differ, those of the CPU must be closer than `near_tie`. Returns at how many steps they did.
inline int follow_cpu(Backend& device, const WeightFile& file, std::vector<int32_t> prompt, int steps,
                      float near_tie) {
  auto cpu = make_backend("cpu", {});
  const auto plan = make_plan(file.shape(), {.context = 1024, .sequences = 1, .chunk = 64});
  if (!cpu || !plan) {
    ADD_FAILURE() << (cpu ? plan.error().message : cpu.error().message);
    return steps;
  }
  const std::array<Backend*, 2> backends{cpu->get(), &device};
  std::vector<std::unique_ptr<SequenceState>> states;
  for (Backend* backend : backends) {
    const auto loaded = backend->load(file, *plan, [](double) {});
    if (!loaded) {
      ADD_FAILURE() << loaded.error().message;
      return steps;
    }
    states.push_back(*backend->new_state(1024));
  }
  int different = 0;
  for (int step = 0; step < steps; ++step) {
    std::array<Best, 2> best{};
    for (size_t i = 0; i < 2; ++i) {
      const std::array<Slice, 1> slices{Slice{.state = states[i].get(), .tokens = prompt, .logits_rows = 1}};
      const auto ticket = backends[i]->submit({.slices = slices});
      if (!ticket) {
        ADD_FAILURE() << ticket.error().message;
        return steps;
      }
      const auto output = backends[i]->collect(*ticket);
      if (!output) {
        ADD_FAILURE() << output.error().message;
        return steps;
      }
      best[i] = best_of(output->slices[0].logits);
    }
    if (best[0].token != best[1].token) {
      ++different;
      EXPECT_LT(best[0].gap, near_tie) << "step " << step;
    }
    prompt = {best[0].token};
  }
  ::testing::Test::RecordProperty("different", different);
  return different;
}

}  // namespace lily::test
