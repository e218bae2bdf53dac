// A step whose kernels hand values on while they are at work against the same blocks one after the other, on
// the GPU: logits, states, keys and values to the bit, at depths where the splits of a context change, over
// and over.
#include <algorithm>
#include <bit>

#include "backends/cuda/model.h"
#include "backends/cuda/state.h"
#include "tests/cuda/rig.h"

namespace lily::cuda::test {
namespace {

void must(const Result<void>& result) { ASSERT_TRUE(result.has_value()) << result.error().message; }
template <class T>
T must(Result<T> result) {
  EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().message);
  return *std::move(result);
}

class CudaStep : public NeedsGpu {
 protected:
  void run(const Shape& shape, const std::vector<std::vector<uint32_t>>& depths, int repeats);
};

class Rig {
 public:
  Rig(const Shape& shape, const prefill::Device& device, uint32_t context)
      : plan_(must(make_plan(shape, {.context = context, .sequences = 8, .chunk = 64}))),
        traits_({.multiprocessors = device.processors,
                 .compute_capability = capability(),
                 .shared_bytes = device.shared_bytes}),
        model_(plan_, traits_, meter_, nullptr),
        context_(std::make_shared<StateContext>(plan_, meter_, nullptr)) {
    lily::test::RandomOptions options;
    options.share_layers = true;
    const lily::test::RandomWeights weights(shape, options);
    must(model_.load(weights.get(), [](double) {}));
    tables_ = must(DeviceMemory::allocate(4096, meter_, "tables"));
  }
  DeviceModel& model() { return model_; }

  // As if it had read `depth` tokens.
  std::unique_ptr<CudaState> pretend(uint32_t depth, uint64_t seed) {
    auto state = must(CudaState::create(context_, depth + 1));
    must(state->begin_rows(0, depth + 1, false));
    std::vector<float> recurrent(StateContext::recurrent_bytes(model_.dims()) / 4);
    for (size_t i = 0; i < recurrent.size(); ++i) {
      recurrent[i] = 0.1F * uniform(seed, i, -1, 1);
    }
    must(copy_to_device(state->recurrent(), recurrent.data(), recurrent.size() * 4, nullptr));
    std::vector<uint16_t> page(page_elements(model_.dims()));
    for (size_t i = 0; i < page.size(); ++i) {
      page[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(uniform(seed + 1, i, -1, 1)) >> 16);
    }
    for (uint16_t* to : pages(*state, depth)) {
      must(copy_to_device(to, page.data(), page.size() * 2, nullptr));
    }
    must(finish(nullptr));
    return state;
  }
  std::vector<uint16_t*> pages(const CudaState& state, uint32_t depth) {
    std::vector<uint16_t*> table(depth / kPageTokens + 1);
    must(copy_to_host(table.data(), state.segment(0, 1, 0).pages, table.size() * sizeof(uint16_t*), nullptr));
    must(finish(nullptr));
    return table;
  }

  std::vector<float> step(const std::vector<CudaState*>& states, const std::vector<uint32_t>& depths,
                          const std::vector<int32_t>& ids, bool relayed) {
    const auto rows = static_cast<uint32_t>(states.size());
    std::vector<Segment> segments;
    std::vector<uint32_t> row_segment;
    for (uint32_t i = 0; i < rows; ++i) {
      segments.push_back(states[i]->segment(i, 1, depths[i]));
      row_segment.push_back(i);
    }
    const auto* const at = tables_.as<Segment>();
    auto* const row_at = reinterpret_cast<uint32_t*>(tables_.bytes() + 2048);
    auto* const ids_at = reinterpret_cast<int32_t*>(tables_.bytes() + 3072);
    must(copy_to_device(tables_.bytes(), segments.data(), rows * sizeof(Segment), nullptr));
    must(copy_to_device(row_at, row_segment.data(), rows * 4, nullptr));
    must(copy_to_device(ids_at, ids.data(), rows * 4, nullptr));
    const Batch batch{.first_row = 0,
                      .rows = rows,
                      .segments = at,
                      .host_segments = nullptr,
                      .row_segment = row_at,
                      .segment_count = rows,
                      .single = true,
                      .prefill = false,
                      .relayed = false};
    if (relayed) {
      must(model_.step(ids_at, nullptr, batch));
      must(model_.unwrite(model_.relayed(rows)));
    } else {
      must(model_.embed(ids_at, nullptr, rows));
      for (uint32_t layer = 0; layer < plan_.shape.layers; ++layer) {
        must(plan_.shape.is_attention(layer) ? model_.attention(layer, batch)
                                             : model_.delta_net(layer, batch));
        must(model_.moe(layer, batch));
      }
      must(model_.head(nullptr, rows));
    }
    std::vector<float> logits(size_t{rows} * plan_.shape.vocab);
    must(copy_to_host(logits.data(), model_.logits(), logits.size() * 4, nullptr));
    must(finish(nullptr));
    return logits;
  }

  std::vector<float> recurrent(const CudaState& state) {
    std::vector<float> all(StateContext::recurrent_bytes(model_.dims()) / 4);
    must(copy_to_host(all.data(), state.recurrent(), all.size() * 4, nullptr));
    must(finish(nullptr));
    return all;
  }
  std::vector<uint16_t> last_page(const CudaState& state, uint32_t depth) {
    std::vector<uint16_t> page(page_elements(model_.dims()));
    must(copy_to_host(page.data(), pages(state, depth).back(), page.size() * 2, nullptr));
    must(finish(nullptr));
    return page;
  }
  std::vector<uint32_t> used() {
    std::vector<uint32_t> words(plan_.shape.layers * DeviceModel::kExpertWords);
    must(copy_to_host(words.data(), model_.experts_used(), words.size() * 4, nullptr));
    must(finish(nullptr));
    return words;
  }

 private:
  static uint32_t capability() {
    cudaDeviceProp properties{};
    return cudaGetDeviceProperties(&properties, 0) == cudaSuccess
               ? static_cast<uint32_t>(properties.major * 10 + properties.minor)
               : 0;
  }
  const Plan plan_;
  const DeviceTraits traits_;
  Meter meter_;
  DeviceModel model_;
  std::shared_ptr<StateContext> context_;
  DeviceMemory tables_;
};

size_t differences(const std::vector<float>& a, const std::vector<float>& b) {
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    count += std::memcmp(&a[i], &b[i], 4) != 0 ? 1 : 0;
  }
  return count;
}

void CudaStep::run(const Shape& shape, const std::vector<std::vector<uint32_t>>& depths, int repeats) {
  uint32_t deepest = 0;
  for (const auto& of : depths) {
    deepest = std::max(deepest, *std::max_element(of.begin(), of.end()));
  }
  Rig rig(shape, device_, std::max(deepest + 8, 128U));
  ASSERT_EQ(rig.model().relay_rows(), kRelayedStepRows);
  for (const std::vector<uint32_t>& of : depths) {
    std::vector<int32_t> ids;
    std::vector<std::unique_ptr<CudaState>> relayed;
    std::vector<std::unique_ptr<CudaState>> parts;
    std::vector<CudaState*> of_relayed;
    std::vector<CudaState*> of_parts;
    for (uint32_t i = 0; i < of.size(); ++i) {
      ids.push_back(static_cast<int32_t>(lily::test::mix(of[i] + i) % shape.vocab));
      relayed.push_back(rig.pretend(of[i], 10 * i));
      parts.push_back(rig.pretend(of[i], 10 * i));
      of_relayed.push_back(relayed.back().get());
      of_parts.push_back(parts.back().get());
    }
    for (int repeat = 0; repeat < repeats; ++repeat) {  // the states go on, the position does not
      const auto expected = rig.step(of_parts, of, ids, false);
      const auto used = rig.used();
      const auto found = rig.step(of_relayed, of, ids, true);
      ASSERT_EQ(differences(found, expected), 0U) << of.size() << " rows at " << of[0] << ", step " << repeat;
      EXPECT_EQ(rig.used(), used);
    }
    for (uint32_t i = 0; i < of.size(); ++i) {
      EXPECT_EQ(differences(rig.recurrent(*relayed[i]), rig.recurrent(*parts[i])), 0U) << "row " << i;
      EXPECT_EQ(rig.last_page(*relayed[i], of[i]), rig.last_page(*parts[i], of[i])) << "row " << i;
    }
  }
}

TEST_F(CudaStep, SmallShapeIsToTheBitItsParts) {
  run(kTiny,
      {{0},
       {1},
       {63},
       {64},
       {1000},
       {0, 0},
       {63, 64},
       {5, 1000},
       {1, 64, 300},
       {0, 1, 2, 63, 64, 65, 500, 1000}},
      20);
}
TEST_F(CudaStep, FullWidthIsToTheBitItsParts) {
  run(kQwen36.with_layers(4),
      {{0},
       {63},
       {64},
       {1000},
       {9000},
       {0, 1},
       {64, 9000},
       {0, 5, 64},
       {0, 1, 63, 64, 300, 1000, 5000, 9000}},
      20);
}

}  // namespace
}  // namespace lily::cuda::test
