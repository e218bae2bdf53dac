// A HostBackend over ToyBlocks, and shorthand for passes.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/host/host_backend.h"
#include "tests/unit/host/toy_blocks.h"

namespace lily::host {

inline const Shape kToyShape = kTiny.with_layers(4);

inline std::vector<int32_t> some_tokens(size_t count, int32_t salt = 0) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>((i * 7919 + static_cast<size_t>(salt) * 104'729 + 13) % 7000));
  }
  return tokens;
}

inline Sampling greedy() {
  Sampling sampling;
  sampling.mode = Sampling::Mode::greedy;
  return sampling;
}

class HostBackendTest : public ::testing::Test {
 protected:
  HostBackendTest() : weights(empty_weights(kToyShape, false)) {
    auto blocks = std::make_unique<ToyBlocks>();
    toy = blocks.get();
    backend = std::make_unique<HostBackend>(DeviceInfo{.name = "toy"}, std::move(blocks));
    const auto made = make_plan(kToyShape, {.context = 512, .sequences = 4, .chunk = 128});
    EXPECT_TRUE(made.has_value());
    plan = *made;
    for (LayerWeights& layer : weights.layers) {
      layer.moe.gate.experts = 32;
    }
    EXPECT_TRUE(backend->load(weights, plan, [](double) {}).has_value());
  }

  std::unique_ptr<SequenceState> state(uint32_t room = 400) {
    auto made = backend->new_state(room);
    EXPECT_TRUE(made.has_value());
    return *std::move(made);
  }

  Result<Output> run(std::vector<Slice> slices, const std::atomic<bool>* cancel = nullptr,
                     const Probe* probe = nullptr) {
    LILY_TRY(const Ticket ticket, backend->submit({.slices = slices, .cancel = cancel, .probe = probe}));
    return backend->collect(ticket);
  }

  // Feeds `tokens` and returns the token sampled greedily after them.
  int32_t feed(SequenceState& to, const std::vector<int32_t>& tokens) {
    const auto output = run({{.state = &to, .tokens = tokens, .sampling = greedy()}});
    EXPECT_TRUE(output.has_value()) << (output ? "" : output.error().message);
    return output ? output->slices[0].token : -2;
  }

  // `count` greedy steps from the token sampled last.
  std::vector<int32_t> decode(SequenceState& from, int count) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < count; ++i) {
      tokens.push_back(feed(from, {}));
    }
    return tokens;
  }

  // The logits after one more token.
  std::vector<float> look(SequenceState& at, int32_t token = 42) {
    const std::vector<int32_t> tokens{token};
    auto output = run({{.state = &at, .tokens = tokens, .logits_rows = 1}});
    EXPECT_TRUE(output.has_value());
    return std::move(output->slices[0].logits);
  }

  std::string refusal(std::vector<Slice> slices) {
    const auto ticket = backend->submit({.slices = slices});
    EXPECT_FALSE(ticket.has_value());
    return ticket ? "" : ticket.error().message;
  }

  ModelWeights weights;
  Plan plan{};
  ToyBlocks* toy = nullptr;
  std::unique_ptr<HostBackend> backend;
};

}  // namespace lily::host
