// Time of the blocks of the CUDA backend for few rows at the full shape, on random weights: each block over
// and over in one CUDA graph with dependent launches, as in a decoding step, and the step itself. Weights of
// eight layers are far more than the level-2 cache holds; a step of forty goes over them five times.
//
// Usage: cuda_decode_bench [ROWS ...] [@POSITION ...] [profile]     default: 1 8 32 @0
// profile: the kernels of a layer of each kind and of the head once, after a round that brings no weights of
// theirs into the cache, for `ncu --profile-from-start off`.
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/model.h"
#include "backends/cuda/state.h"
#include "tests/support/random_weights.h"

namespace {

using namespace lily;        // NOLINT(google-build-using-namespace): a program of one file
using namespace lily::cuda;  // NOLINT(google-build-using-namespace)

constexpr uint32_t kLayers = 8;
constexpr int kReplays = 20;
constexpr int kRuns = 5;

void must(const Result<void>& result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().message.c_str());
    std::exit(1);
  }
}
template <class T>
T must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().message.c_str());
    std::exit(1);
  }
  return *std::move(result);
}
void must(cudaError_t error) { must(cuda::check(error, "the bench")); }

DeviceTraits traits() {
  cudaDeviceProp properties{};
  must(cudaGetDeviceProperties(&properties, 0));
  return {.multiprocessors = static_cast<uint32_t>(properties.multiProcessorCount),
          .compute_capability = static_cast<uint32_t>(properties.major * 10 + properties.minor),
          .shared_bytes = static_cast<uint32_t>(properties.sharedMemPerBlockOptin)};
}

class Bench {
 public:
  Bench(const Plan& plan, Stream queue)
      : plan_(plan),
        queue_(queue),
        model_(plan, traits(), meter_, queue),
        context_(std::make_shared<StateContext>(plan, meter_, queue)) {
    test::RandomOptions options;
    options.share_layers = true;
    const test::RandomWeights weights(plan.shape, options);
    must(model_.load(weights.get(), [](double) {}));
    tables_ = must(DeviceMemory::allocate(4096, meter_, "tables"));
    std::vector<float> stream(size_t{kSmallRows} * model_.dims().hidden);
    for (size_t i = 0; i < stream.size(); ++i) {
      stream[i] = test::normal(7, i);
    }
    must(copy_to_device(model_.stream(), stream.data(), stream.size() * sizeof(float), queue));
    must(finish(queue));
  }

  void run(uint32_t rows, uint32_t position, bool profile) {
    std::vector<cuda::Segment> segments;
    std::vector<uint32_t> row_segment;
    std::vector<std::unique_ptr<CudaState>> states;
    for (uint32_t row = 0; row < rows; ++row) {
      states.push_back(must(CudaState::create(context_, position + 1)));
      must(states.back()->begin_rows(0, position + 1, false));
      segments.push_back(states.back()->segment(row, 1, position));
      row_segment.push_back(row);
    }
    must(copy_to_device(tables_.bytes(), segments.data(), rows * sizeof(cuda::Segment), queue_));
    must(copy_to_device(tables_.bytes() + 2048, row_segment.data(), rows * 4, queue_));
    must(finish(queue_));
    const Batch batch{.first_row = 0,
                      .rows = rows,
                      .segments = tables_.as<cuda::Segment>(),
                      .host_segments = nullptr,
                      .row_segment = reinterpret_cast<const uint32_t*>(tables_.bytes() + 2048),
                      .segment_count = rows,
                      .single = true,
                      .prefill = false};
    must(model_.prepare(0, Next::mixer, 0, rows));
    const auto delta = [&](uint32_t i) { return model_.delta_net(i % kLayers / 3 * 4 + i % 3, batch); };
    const auto attention = [&](uint32_t i) { return model_.attention(i % (kLayers / 4) * 4 + 3, batch); };
    const auto moe = [&](uint32_t i) { return model_.moe(i % kLayers, batch); };
    const auto layer = [&](uint32_t i) -> Result<void> {
      const uint32_t l = i % kLayers;
      LILY_TRY_VOID(l % 4 == 3 ? model_.attention(l, batch) : model_.delta_net(l, batch));
      return model_.moe(l, batch);
    };
    if (profile) {
      for (uint32_t i = 0; i <= kLayers + 3; ++i) {
        if (i == kLayers + 2) {
          must(finish(queue_));
          must(cudaProfilerStart());
        }
        must(layer(i));
      }
      must(model_.head(nullptr, rows));
      must(finish(queue_));
      must(cudaProfilerStop());
      return;
    }
    std::printf("%u rows at %u, us: delta net %.2f, ", rows, position,
                time(30, [&](uint32_t i) { return delta(i % 6); }));
    std::printf("attention %.2f, ", time(10, attention));
    std::printf("moe %.2f, ", time(40, moe));
    std::printf("head %.2f, ", time(4, [&](uint32_t) { return model_.head(nullptr, rows); }));
    const double layers = time(40, layer);
    std::printf("layer %.2f, 40 layers %.1f", layers, layers * 40);
    const std::vector<int32_t> ids(rows, 42);
    auto* const ids_at = reinterpret_cast<int32_t*>(tables_.bytes() + 3072);
    must(copy_to_device(ids_at, ids.data(), rows * 4, queue_));
    std::printf(", step of %u layers and head %.1f", kLayers, time(1, [&](uint32_t) -> Result<void> {
                  LILY_TRY_VOID(model_.step(ids_at, nullptr, batch));
                  return model_.unwrite(model_.relayed(rows));
                }));
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  // Microseconds of one call in a graph of `count`.
  double time(uint32_t count, const std::function<Result<void>(uint32_t)>& call) {
    must(cudaStreamBeginCapture(queue_, cudaStreamCaptureModeThreadLocal));
    for (uint32_t i = 0; i < count; ++i) {
      must(call(i));
    }
    cudaGraph_t graph = nullptr;
    must(cudaStreamEndCapture(queue_, &graph));
    cudaGraphExec_t exec = nullptr;
    must(cudaGraphInstantiate(&exec, graph, 0));
    Event start = must(Event::create());
    Event end = must(Event::create());
    std::vector<double> seconds;
    for (int run = 0; run <= kRuns; ++run) {
      must(start.record(queue_));
      for (int i = 0; i < kReplays; ++i) {
        must(cudaGraphLaunch(exec, queue_));
      }
      must(end.record(queue_));
      must(end.wait());
      if (run > 0) {
        seconds.push_back(must(end.seconds_since(start)) / (kReplays * count));
      }
    }
    std::sort(seconds.begin(), seconds.end());
    must(cudaGraphExecDestroy(exec));
    must(cudaGraphDestroy(graph));
    return seconds[seconds.size() / 2] * 1e6;
  }

  const Plan plan_;
  Meter meter_;
  const Stream queue_;
  DeviceModel model_;
  std::shared_ptr<StateContext> context_;
  DeviceMemory tables_;
};

}  // namespace

int main(int count, char** arguments) {
  std::vector<uint32_t> rows;
  std::vector<uint32_t> positions;
  bool profile = false;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    if (argument == "profile") {
      profile = true;
    } else if (argument[0] == '@') {
      positions.push_back(static_cast<uint32_t>(std::stoul(argument.substr(1))));
    } else {
      rows.push_back(static_cast<uint32_t>(std::stoul(argument)));
    }
  }
  if (rows.empty()) {
    rows = {1, 8, 32};
  }
  if (positions.empty()) {
    positions = {0};
  }
  Shape shape = kQwen36;
  shape.layers = kLayers;
  const uint32_t context = *std::max_element(positions.begin(), positions.end()) + 64;
  const Plan plan =
      must(make_plan(shape, {.context = std::max(context, 512U), .sequences = 32, .chunk = 256}));
  Stream queue = nullptr;
  must(cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking));
  Bench bench(plan, queue);
  for (const uint32_t position : positions) {
    for (const uint32_t r : rows) {
      bench.run(r, position, profile);
    }
  }
  return 0;
}
