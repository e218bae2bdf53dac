// An implementation with random weights, its states, and the comparison of what a block adds to the stream.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <vector>

#include "backends/host/host_backend.h"
#include "tests/blocks/implementations.h"
#include "tests/support/random_weights.h"

namespace lily::test {

inline std::vector<float> random_stream(const Shape& shape, uint32_t rows, uint64_t seed) {
  std::vector<float> stream(size_t{rows} * shape.hidden);
  for (size_t i = 0; i < stream.size(); ++i) {
    // Rows of different sizes: what a norm must undo.
    stream[i] = normal(seed, i) * (0.3F + static_cast<float>(i / shape.hidden % 5));
  }
  return stream;
}

// Norm of the difference over the norm of what is expected.
template <class T>
double distance(std::span<const float> found, std::span<const T> expected) {
  EXPECT_EQ(found.size(), expected.size());
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(found[i]) - static_cast<double>(expected[i]), 2);
    size += std::pow(static_cast<double>(expected[i]), 2);
  }
  return size > 0 ? std::sqrt(difference / size) : std::sqrt(difference);
}

// Blocks with their weights loaded.
class Rig {
 public:
  Rig(const Implementation& implementation, const Shape& shape, const ModelWeights& weights,
      unsigned threads = 2) {
    const auto made_plan = make_plan(shape, {.context = 2048, .sequences = 4, .chunk = 128});
    EXPECT_TRUE(made_plan.has_value());
    plan = *made_plan;
    auto made = implementation.make(threads);
    EXPECT_TRUE(made.has_value()) << (made ? "" : made.error().message);
    blocks = *std::move(made);
    const auto loaded = blocks->load(weights, plan, [](double) {});
    EXPECT_TRUE(loaded.has_value()) << (loaded ? "" : loaded.error().message);
  }

  std::unique_ptr<host::HostState> state() const {
    auto made = host::HostState::create({plan.shape, blocks->kv_type()}, plan.context);
    EXPECT_TRUE(made.has_value());
    return *std::move(made);
  }

  // Runs one mixer block in place on a copy of the stream; returns what it added.
  std::vector<float> mixer(uint32_t layer, std::span<const host::Segment> segments,
                           const std::vector<float>& stream) {
    for (const host::Segment& segment : segments) {
      EXPECT_TRUE(segment.state->begin_rows(segment.position, segment.rows, segment.provisional).has_value());
    }
    std::vector<float> out = stream;
    if (plan.shape.is_attention(layer)) {
      blocks->attention(layer, segments, out.data());
    } else {
      blocks->delta_net(layer, segments, out.data());
    }
    return minus(out, stream);
  }

  // As rows of one sequence.
  std::vector<float> moe(uint32_t layer, const std::vector<float>& stream, uint32_t* experts = nullptr) {
    std::vector<float> out = stream;
    const auto rows = static_cast<uint32_t>(stream.size() / plan.shape.hidden);
    const host::Segment all{nullptr, 0, rows, 0, false};
    const uint32_t read = blocks->moe(layer, {&all, 1}, out.data());
    if (experts != nullptr) {
      *experts = read;
    }
    return minus(out, stream);
  }

  static std::vector<float> minus(std::vector<float> a, const std::vector<float>& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      a[i] -= b[i];
    }
    return a;
  }

  Plan plan{};
  std::unique_ptr<host::Blocks> blocks;
};

inline std::span<const float> row_of(const std::vector<float>& stream, size_t row, size_t width) {
  return std::span(stream).subspan(row * width, width);
}

struct ImplementationName {
  template <class ParamType>
  std::string operator()(const ::testing::TestParamInfo<ParamType>& info) const {
    std::string name = info.param.name;
    std::replace_if(
        name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; },
        '_');
    return name;
  }
};

}  // namespace lily::test
