// Passes of the Metal backend under the emulator's checks (races, bounds, unwritten memory, missing
// barriers), in several orders of execution: none may fault, and none may change a bit. And blocks at the
// edges of their kernels.
#include <gtest/gtest.h>

#include "backends/metal/backend.h"
#include "tests/blocks/device/greedy.h"
#include "tests/blocks/device/metal_blocks.h"
#include "tests/blocks/device/metal_device.h"
#include "tests/support/oracle.h"
#include "tests/support/random_weights.h"
#include "weights/bind.h"

namespace lily::test {
namespace {

constexpr uint32_t kLayers = 4;

class NeedsMetal : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto device = metal_device({}); !device) {
      GTEST_SKIP() << device.error().message;
    }
  }
};
using MetalPasses = NeedsMetal;
using MetalBlock = NeedsMetal;
using MetalModel = NeedsMetal;

struct Seen {
  std::vector<int32_t> tokens;
  std::vector<float> logits;
};

std::vector<int32_t> prompt(size_t count, uint64_t seed) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(mix(seed * 1000 + i) % kTiny.vocab));
  }
  return tokens;
}

// Everything a pass can hold: long and short slices, decoding, drafts, sampling of all kinds, checkpoints.
class Scenario {
 public:
  explicit Scenario(std::unique_ptr<metal::Device> device) : backend_(std::move(device), kMetalName) {
    static const RandomWeights weights(kTiny.with_layers(kLayers), {.seed = 21});
    const auto plan = make_plan(kTiny.with_layers(kLayers), {.context = 512, .sequences = 4, .chunk = 96});
    EXPECT_TRUE(plan.has_value());
    const auto loaded = backend_.load(weights.get(), *plan, [](double) {});
    EXPECT_TRUE(loaded.has_value()) << (loaded ? "" : loaded.error().message);
  }

  void run() {
    const Sampling random{
        .mode = Sampling::Mode::random, .temperature = 0.8F, .top_k = 40, .top_p = 0.9F, .seed = 5};
    const std::vector<LogitBias> bias{{3, 1.5F}};
    const Sampling biased{.mode = Sampling::Mode::greedy, .repetition_penalty = 1.2F, .bias = bias};
    const auto one = *backend_.new_state(400);
    const auto two = *backend_.new_state(400);
    const auto three = *backend_.new_state(400);
    const auto long_prompt = prompt(70, 1);
    const auto short_prompt = prompt(5, 2);
    const auto draft = prompt(3, 3);
    ASSERT_TRUE(one->begin_answer(long_prompt).has_value());
    pass({{.state = one.get(), .tokens = long_prompt, .sampling = random, .logits_rows = 2},
          {.state = two.get(), .tokens = short_prompt, .sampling = biased}});
    const auto saved = one->save();
    ASSERT_TRUE(saved.has_value());
    pass({{.state = one.get(), .sampling = random},
          {.state = two.get(), .sampling = biased, .logits_rows = 1}});
    pass({{.state = three.get(), .tokens = std::span(long_prompt).first(1), .sampling = random},
          {.state = two.get(), .tokens = draft, .sampling = biased, .keep = Keep::until_accept}});
    ASSERT_TRUE(two->accept(2).has_value());
    ASSERT_TRUE(one->resume(**saved).has_value());
    pass({{.state = one.get(), .sampling = random},
          {.state = two.get(), .tokens = short_prompt, .logits_rows = 5}});
  }

  Seen seen;

 private:
  void pass(const std::vector<Slice>& slices) {
    const auto ticket = backend_.submit({.slices = slices});
    ASSERT_TRUE(ticket.has_value()) << ticket.error().message;
    const auto output = backend_.collect(*ticket);
    ASSERT_TRUE(output.has_value()) << output.error().message;
    for (const SliceOutput& slice : output->slices) {
      EXPECT_TRUE(slice.finite);
      seen.tokens.push_back(slice.token);
      seen.logits.insert(seen.logits.end(), slice.logits.begin(), slice.logits.end());
    }
  }
  metal::MetalBackend backend_;
};

TEST_F(MetalPasses, NoFaultAndTheSameBitsInAnyOrderOfExecution) {
  const auto run = [](uint64_t seed, bool checked) {
    Scenario scenario(*metal_device({.seed = seed, .checked = checked}));
    scenario.run();
    return scenario.seen;
  };
  const Seen expected = run(1, true);
  ASSERT_EQ(expected.logits.size(), size_t{8} * kTiny.vocab);
  for (const uint64_t seed : {2, 3}) {
    const Seen found = run(seed, seed == 2);
    EXPECT_EQ(found.tokens, expected.tokens) << seed;
    EXPECT_TRUE(found.logits == expected.logits) << seed;
  }
}

// ---- Blocks ---------------------------------------------------------------------------------------------
double distance(std::span<const float> found, const Row& expected) {
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    size += expected[i] * expected[i];
  }
  return std::sqrt(difference / size);
}

std::vector<float> random_stream(const Shape& shape, uint32_t rows, uint64_t seed) {
  std::vector<float> stream(size_t{rows} * shape.hidden);
  for (size_t i = 0; i < stream.size(); ++i) {
    stream[i] = normal(seed, i);
  }
  return stream;
}

struct Blocks {
  Blocks(const Shape& shape, const ModelWeights& weights, const PlanOptions& options)
      : plan(*make_plan(shape, options)),
        blocks(std::make_unique<MetalBlocks>([](bool) { return metal_device({}); })) {
    const auto loaded = blocks->load(weights, plan, [](double) {});
    EXPECT_TRUE(loaded.has_value()) << (loaded ? "" : loaded.error().message);
  }
  std::unique_ptr<host::HostState> state() const {
    return *host::HostState::create({plan.shape, DType::bf16}, plan.context);
  }
  // What a mixer adds to the stream.
  std::vector<float> mixer(uint32_t layer, const host::Segment& segment,
                           const std::vector<float>& stream) const {
    EXPECT_TRUE(segment.state->begin_rows(segment.position, segment.rows, false).has_value());
    std::vector<float> out = stream;
    if (plan.shape.is_attention(layer)) {
      blocks->attention(layer, std::span(&segment, 1), out.data());
    } else {
      blocks->delta_net(layer, std::span(&segment, 1), out.data());
    }
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] -= stream[i];
    }
    return out;
  }
  Plan plan{};
  std::unique_ptr<MetalBlocks> blocks;
};

// Beyond kAttendTokens * kAttendParts positions a part has more than one step.
TEST_F(MetalBlock, AttentionOverMorePositionsThanStepsOfAllParts) {
  constexpr uint32_t kPosition = 17'000;
  constexpr uint32_t kLayer = 3;
  const Shape shape = kTiny.with_layers(kLayers);
  const RandomWeights weights(shape);
  const Blocks rig(shape, weights.get(), {.context = 20'000, .sequences = 1, .chunk = 16});
  const auto state = rig.state();
  ASSERT_TRUE(state->begin_rows(0, kPosition, false).has_value());
  OracleState expected(shape);
  for (uint32_t p = 0; p < kPosition; ++p) {
    Row keys(shape.kv_width());
    Row values(shape.kv_width());
    for (uint32_t d = 0; d < shape.kv_width(); ++d) {
      const auto place = [&](std::byte* block) {
        return reinterpret_cast<uint16_t*>(block) + p % host::kBlockTokens * Shape::kHeadDim + d;
      };
      const uint16_t key = float_to_bf16(normal(7, uint64_t{p} * 1000 + d));
      const uint16_t value = float_to_bf16(normal(8, uint64_t{p} * 1000 + d));
      *place(state->keys(kLayer, 0, p / host::kBlockTokens)) = key;
      *place(state->values(kLayer, 0, p / host::kBlockTokens)) = value;
      keys[d] = static_cast<double>(bf16_to_float(key));
      values[d] = static_cast<double>(bf16_to_float(value));
    }
    expected.keys[kLayer].push_back(std::move(keys));
    expected.values[kLayer].push_back(std::move(values));
  }
  const auto stream = random_stream(shape, 1, 3);
  const auto found = rig.mixer(kLayer, {state.get(), 0, 1, kPosition, false}, stream);
  const Oracle oracle(shape, weights.get());
  EXPECT_LE(distance(found, oracle.attention(kLayer, expected, Row(stream.begin(), stream.end()))), 4e-3);
}

// The kernels for many rows at the full width, cut into two passes at a position that is no multiple of a
// chunk.
TEST_F(MetalBlock, ManyRowsAtFullWidth) {
  const Shape shape = kQwen36.with_layers(kLayers);
  const RandomWeights weights(shape, {.share_layers = true});
  const Blocks rig(shape, weights.get(), {.context = 64, .sequences = 1, .chunk = 32});
  const Oracle oracle(shape, weights.get());
  for (const uint32_t layer : {1U, 3U}) {
    const auto state = rig.state();
    OracleState expected(shape);
    uint32_t position = 0;
    for (const uint32_t rows : {19U, 18U}) {
      const auto stream = random_stream(shape, rows, layer * 10 + position);
      const auto found = rig.mixer(layer, {state.get(), 0, rows, position, false}, stream);
      position += rows;
      for (uint32_t r = 0; r < rows; ++r) {
        const auto first = stream.begin() + static_cast<ptrdiff_t>(r * shape.hidden);
        const Row input(first, first + shape.hidden);
        const Row of_row = shape.is_attention(layer) ? oracle.attention(layer, expected, input)
                                                     : oracle.delta_net(layer, expected, input);
        ASSERT_LE(distance(std::span(found).subspan(r * shape.hidden, shape.hidden), of_row),
                  shape.is_attention(layer) ? 4e-3 : 2e-5)
            << "layer " << layer << " row " << r << " of " << rows;
      }
    }
  }
}

// ---- The small trained model ----------------------------------------------------------------------------
constexpr float kNearTie = 0.1F;  // of a logit; the largest are about 20

// The file's tensors are used where they are mapped.
TEST_F(MetalModel, GreedyTokensAreThoseOfTheCpuWhereverTheBestIsClear) {
  auto file = WeightFile::open(std::string(LILY_SOURCE_DIR) + "/models/lily-tiny");
  ASSERT_TRUE(file.has_value()) << file.error().text();
  const auto plan = make_plan((*file)->shape(), {.context = 1024, .sequences = 1, .chunk = 64});
  ASSERT_TRUE(plan.has_value());
  metal::MetalBackend emulated(*metal_device({}), kMetalName);
  const auto need = emulated.estimate(**file, *plan);
  ASSERT_TRUE(need.has_value());
  EXPECT_GT(need->mapped, (*file)->bound_bytes() / 2);
  EXPECT_LT(need->weights, (*file)->bound_bytes() / 4);
  EXPECT_LE(follow_cpu(emulated, **file, prompt(40, 4), 96, kNearTie), 4);
}

}  // namespace
}  // namespace lily::test
