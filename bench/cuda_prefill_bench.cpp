// Time of every prefill kernel of the CUDA backend at the full shape, on random weights: one line a kernel
// with its share of what limits it, then the time of 40 layers and the tokens per second that follow from it.
//
// Usage: cuda_prefill_bench [ROWS ...] [@POSITION]     default: 512 2048 8192 @0
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/kernels/prefill.h"
#include "backends/cuda/kernels/prefill_launch.h"
#include "model/rope.h"
#include "model/shape.h"

namespace {

using namespace lily;        // NOLINT(google-build-using-namespace): a program of one file
using namespace lily::cuda;  // NOLINT(google-build-using-namespace)

// Measured on an H200 (docs/BENCHMARKS.md): what a kernel can reach.
constexpr double kPeakFlops = 790e12;
constexpr double kPeakBytes = 4.3e12;
constexpr int kLayers = 4;  // different weights: three delta-net layers and one of attention, as in the model

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
  }
}

uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

template <typename T>
T* allocate(size_t count) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, count * sizeof(T)), "cudaMalloc");
  check(cudaMemset(memory, 0, count * sizeof(T)), "cudaMemset");
  return static_cast<T*>(memory);
}
template <typename T>
T* upload(const std::vector<T>& values) {
  T* memory = allocate<T>(values.size());
  check(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  return memory;
}
float* random_floats(size_t count, uint64_t seed, float low, float high) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = low + (high - low) * static_cast<float>(mix(seed + i) >> 40) * 0x1p-24F;
  }
  return upload(values);
}

// Random codes; scales that keep the size of the input.
PackedMatrix random_matrix(uint32_t matrices, uint32_t rows, uint32_t cols, uint32_t planes) {
  const uint32_t tile = tile_bytes_of(planes, 0);
  PackedMatrix m{};
  m.matrices = matrices;
  m.rows = rows;
  m.row_blocks = (rows + kTileRows - 1) / kTileRows;
  m.k_tiles = cols / kTileCols;
  m.planes = planes;
  m.tile_bytes = tile;
  m.matrix_bytes = uint64_t{m.row_blocks} * m.k_tiles * tile;
  static uint64_t seed = 0;
  std::vector<uint64_t> host(m.matrix_bytes * matrices / 8);
  for (uint64_t& word : host) {
    word = mix(++seed);
  }
  const float top = planes == 1 ? 15.0F : 255.0F;
  const float scale = std::sqrt(12.0F / static_cast<float>(cols)) / (top + 1);
  const auto bf16 = [](float x) {
    uint32_t bits = 0;
    std::memcpy(&bits, &x, 4);
    return bits >> 16;
  };
  const uint32_t pair = bf16(scale) | bf16(-scale * top / 2) << 16;
  auto* bytes = reinterpret_cast<uint8_t*>(host.data());
  for (uint64_t at = 0; at < m.matrix_bytes * matrices; at += tile) {
    for (uint32_t row = 0; row < kTileRows; ++row) {
      std::memcpy(bytes + at + planes * kPlaneBytes + 4 * row, &pair, 4);
    }
  }
  m.tiles = reinterpret_cast<uint8_t*>(upload(host));
  return m;
}

struct Step {
  std::string name;
  double flops;  // of tensor cores
  double bytes;  // the least to move
  std::function<void()> run;
  double seconds = 0;
};

struct Model {
  explicit Model(const Dims& d) : dims(d) {
    const uint32_t values = value_width(d);
    for (int i = 0; i < kLayers; ++i) {
      moe.push_back({random_matrix(1, d.experts + 1, d.hidden, 2),
                     random_matrix(d.experts + 1, 2 * d.ffn, d.hidden, 1),
                     random_matrix(d.experts + 1, d.hidden, d.ffn, 1), ones});
    }
    for (uint32_t i = 0; i < 3; ++i) {
      delta.push_back({random_matrix(1, conv_channels(d) + values + 2 * d.v_heads, d.hidden, 1),
                       random_matrix(1, d.hidden, values, 1), ones,
                       random_floats(size_t{kConvTaps} * conv_channels(d), 3, -0.5F, 0.5F),
                       random_floats(d.v_heads, 4, 1, 16), random_floats(d.v_heads, 5, -6, -2), ones, i});
    }
    attention = {random_matrix(1, 2 * q_width(d) + 2 * kv_width(d), d.hidden, 1),
                 random_matrix(1, d.hidden, q_width(d), 1),
                 ones,
                 ones,
                 ones,
                 0};
  }
  Dims dims;
  float* ones = random_floats(4096, 1, 0.9F, 1.1F);
  std::vector<MoeLayer> moe;
  std::vector<DeltaNetLayer> delta;
  AttentionLayer attention{};
};

// A pass of `rows` rows at `position` of one sequence.
class Pass {
 public:
  Pass(const Model& model, uint32_t rows, uint32_t position, const cudaDeviceProp& properties)
      : model_(model), rows_(rows), position_(position) {
    const Dims& d = model.dims;
    const uint32_t context = position + rows;
    const uint32_t pages = (context + kPageTokens - 1) / kPageTokens;
    std::vector<uint16_t> values(size_t{pages} * page_elements(d));
    for (size_t i = 0; i < values.size(); ++i) {  // bf16 of both signs, 0.5 to 2
      values[i] = static_cast<uint16_t>(0x3F00U + (mix(i) & 0x80FFU));
    }
    uint16_t* const memory = upload(values);
    std::vector<uint16_t*> table;
    for (uint32_t i = 0; i < pages; ++i) {
      table.push_back(memory + i * page_elements(d));
    }
    segment_ = {allocate<float>(4 * recurrent_stride(d)), upload(table), 0, rows, position, 0};
    std::vector<float> rotary;
    for (uint32_t i = 0; i < context; ++i) {
      const Rotation rotation = rotation_at(i);
      for (uint32_t j = 0; j < kRotaryPairs; ++j) {
        rotary.push_back(rotation.cosine[j]);
        rotary.push_back(rotation.sine[j]);
      }
    }
    batch_.dims = d;
    batch_.stream = random_floats(size_t{rows} * d.hidden, 10, -1, 1);
    batch_.segments = upload(std::vector<Segment>{segment_});
    batch_.host_segments = &segment_;
    batch_.segment_count = 1;
    batch_.rows = rows;
    batch_.rotary = upload(rotary);
    batch_.experts_used = allocate<uint32_t>(64);
    batch_.workspace_bytes = prefill_workspace_bytes(d, rows);
    batch_.workspace = allocate<uint8_t>(batch_.workspace_bytes);
    batch_.multiprocessors = static_cast<uint32_t>(properties.multiProcessorCount);
    batch_.compute_capability = static_cast<uint32_t>(properties.major * 10 + properties.minor);
  }

  // Seconds of kLayers layers through the blocks as the backend calls them.
  double time_blocks() {
    return time(3, [&] {
      for (const DeltaNetLayer& layer : model_.delta) {
        prefill_delta_net(layer, batch_);
        prefill_moe(model_.moe[layer.index], batch_);
      }
      prefill_attention(model_.attention, batch_);
      prefill_moe(model_.moe[3], batch_);
    });
  }

  // Seconds of every step, in the order of the model.
  std::vector<Step> time_steps() {
    std::vector<Step> steps;
    add_delta(steps);
    add_attention(steps);
    add_moe(steps);
    for (Step& step : steps) {
      step.seconds = time(4, step.run);
    }
    return steps;
  }

 private:
  template <typename Run>
  static double time(int repeats, const Run& run) {
    run();
    cudaEvent_t begin{};
    cudaEvent_t end{};
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    check(cudaEventRecord(begin), "record");
    for (int i = 0; i < repeats; ++i) {
      run();
    }
    check(cudaEventRecord(end), "record");
    check(cudaEventSynchronize(end), "kernel");
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    return static_cast<double>(milliseconds) * 1e-3 / repeats;
  }

  prefill::Device device() const { return {batch_.multiprocessors, 227 * 1024, nullptr}; }
  template <typename T>
  T* take(uint64_t count) {
    return allocate<T>(count);
  }
  static double matrix_flops(const PackedMatrix& m, double rows) {
    return 2.0 * m.rows * m.k_tiles * kTileCols * rows;
  }

  void add_delta(std::vector<Step>& steps);
  void add_attention(std::vector<Step>& steps);
  void add_moe(std::vector<Step>& steps);
  void add_norm(std::vector<Step>& steps, uint16_t* normed, uint16_t* rest);
  void add_leave(std::vector<Step>& steps, const char* name, const PackedMatrix& weights, const uint16_t* x);

  const Model& model_;
  uint32_t rows_;
  uint32_t position_;
  Segment segment_{};
  PrefillBatch batch_{};
  prefill::DenseArgs project_{}, attention_project_{};
  prefill::DeltaArgs delta_{};
  prefill::AttentionArgs attend_{};
  prefill::RouterArgs router_{};
  prefill::ExpertsArgs experts_{};
};

void Pass::add_norm(std::vector<Step>& steps, uint16_t* normed, uint16_t* rest) {
  const prefill::NormArgs args{batch_.stream, model_.ones, normed, rest, rows_, batch_.dims.hidden};
  steps.push_back(
      {"norm", 0, 6.0 * rows_ * batch_.dims.hidden, [this, args] { prefill::norm(args, device()); }});
}

void Pass::add_leave(std::vector<Step>& steps, const char* name, const PackedMatrix& weights,
                     const uint16_t* x) {
  prefill::DenseArgs args{};
  args.weights = weights;
  args.ranges[0] = {batch_.stream, batch_.dims.hidden, weights.rows, prefill::Store::add_f32};
  args.x = x;
  args.tokens = rows_;
  steps.push_back({name, matrix_flops(weights, rows_), static_cast<double>(weights.matrix_bytes),
                   [this, args] { prefill::dense(args, device()); }});
}

void Pass::add_delta(std::vector<Step>& steps) {
  const Dims& d = batch_.dims;
  const DeltaNetLayer& layer = model_.delta[0];
  const uint64_t values = uint64_t{rows_} * value_width(d);
  const uint64_t keys = uint64_t{rows_} * d.k_heads * kDeltaDim;
  auto* normed = take<uint16_t>(uint64_t{rows_} * d.hidden);
  add_norm(steps, normed, nullptr);
  const uint32_t channels = conv_channels(d);
  project_.weights = layer.in_proj;
  auto* mixed = take<uint16_t>(uint64_t{rows_} * channels);
  auto* z = take<uint16_t>(values);
  auto* gates = take<float>(uint64_t{rows_} * 2 * d.v_heads);
  project_.ranges[0] = {mixed, channels, channels, prefill::Store::bf16};
  project_.ranges[1] = {z, value_width(d), channels + value_width(d), prefill::Store::bf16};
  project_.ranges[2] = {gates, 2 * d.v_heads, layer.in_proj.rows, prefill::Store::f32};
  project_.x = normed;
  project_.tokens = rows_;
  steps.push_back({"delta in_proj", matrix_flops(layer.in_proj, rows_),
                   static_cast<double>(layer.in_proj.matrix_bytes),
                   [this] { prefill::dense(project_, device()); }});
  delta_.dims = d;
  delta_.segments = batch_.segments;
  delta_.segment_count = 1;
  delta_.chunks = prefill::chunks_of(segment_);
  delta_.tokens = rows_;
  delta_.conv = layer.conv;
  delta_.decay_rate = layer.decay_rate;
  delta_.dt_bias = layer.dt_bias;
  delta_.norm = layer.norm;
  delta_.mixed = mixed;
  delta_.z = z;
  delta_.gates = gates;
  delta_.q = take<uint16_t>(keys);
  delta_.k = take<uint16_t>(keys);
  delta_.v = take<uint16_t>(values);
  delta_.u = take<uint16_t>(values);
  delta_.w = take<uint16_t>(values);
  delta_.scores = take<uint16_t>(uint64_t{rows_} * d.v_heads * prefill::kChunk);
  delta_.log_decays = take<float>(uint64_t{rows_} * d.v_heads);
  delta_.out = take<uint16_t>(values);
  const double chunk_heads = static_cast<double>(delta_.chunks) * d.v_heads;
  const double wide = static_cast<double>(values) * 2;
  steps.push_back(
      {"delta conv", 0, 2.0 * rows_ * channels * 2, [this] { prefill::delta_convolve(delta_, device()); }});
  steps.push_back({"delta prepare", chunk_heads * 2 * 64 * (64 * 256 + 64 * 256 * 2), 4 * wide,
                   [this] { prefill::delta_prepare(delta_, device()); }});
  steps.push_back({"delta states", chunk_heads * 2 * 64 * 128 * (128 * 3 + 64 + 128 * 2), 4 * wide,
                   [this] { prefill::delta_pass_states(delta_, device()); }});
  steps.push_back({"delta gated norm", 0, 3 * wide, [this] { prefill::delta_gated_norm(delta_, device()); }});
  add_leave(steps, "delta out_proj", layer.out_proj, delta_.out);
}

void Pass::add_attention(std::vector<Step>& steps) {
  const Dims& d = batch_.dims;
  const AttentionLayer& layer = model_.attention;
  auto* normed = take<uint16_t>(uint64_t{rows_} * d.hidden);
  add_norm(steps, normed, nullptr);
  auto* mixed = take<uint16_t>(uint64_t{rows_} * layer.in_proj.rows);
  attention_project_.weights = layer.in_proj;
  attention_project_.ranges[0] = {mixed, layer.in_proj.rows, layer.in_proj.rows, prefill::Store::bf16};
  attention_project_.x = normed;
  attention_project_.tokens = rows_;
  steps.push_back({"attention in_proj", matrix_flops(layer.in_proj, rows_),
                   static_cast<double>(layer.in_proj.matrix_bytes),
                   [this] { prefill::dense(attention_project_, device()); }});
  attend_ = {.dims = d,
             .layer = 0,
             .segments = batch_.segments,
             .host_segments = batch_.host_segments,
             .segment_count = 1,
             .tokens = rows_,
             .q_norm = layer.q_norm,
             .k_norm = layer.k_norm,
             .rotary = batch_.rotary,
             .mixed = mixed,
             .q = take<uint16_t>(uint64_t{rows_} * q_width(d)),
             .out = take<uint16_t>(uint64_t{rows_} * q_width(d))};
  const double pairs = static_cast<double>(rows_) * (position_ + (rows_ + 1) / 2.0);
  steps.push_back({"attention enter", 0, 3.0 * rows_ * q_width(d) * 2,
                   [this] { prefill::attention_enter(attend_, device()); }});
  steps.push_back({"attention", pairs * d.q_heads * kHeadDim * 4, 2.0 * kv_width(d) * 2 * (position_ + rows_),
                   [this] { prefill::attention_attend(attend_, device()); }});
  add_leave(steps, "attention out_proj", layer.out_proj, attend_.out);
}

void Pass::add_moe(std::vector<Step>& steps) {
  const Dims& d = batch_.dims;
  const MoeLayer& layer = model_.moe[0];
  auto* normed = take<uint16_t>(uint64_t{rows_} * d.hidden);
  auto* rest = take<uint16_t>(uint64_t{rows_} * d.hidden);
  add_norm(steps, normed, rest);
  router_ = {.router = layer.router,
             .x = normed,
             .rest = rest,
             .logits = take<float>(uint64_t{rows_} * prefill::logits_stride(d.experts)),
             .chosen = take<uint16_t>(uint64_t{rows_} * kTopK),
             .weights = take<float>(uint64_t{rows_} * kUses),
             .counts = take<uint32_t>(d.experts),
             .uses = take<uint32_t>(uint64_t{rows_} * d.experts),
             .used_bits = batch_.experts_used,
             .experts = d.experts,
             .tokens = rows_};
  steps.push_back({"router, group", 3 * matrix_flops(layer.router, rows_), 6.0 * rows_ * d.hidden,
                   [this] { prefill::route(router_, device()); }});
  experts_ = {.gate_up = layer.gate_up,
              .down = layer.down,
              .x = normed,
              .weights = router_.weights,
              .counts = router_.counts,
              .uses = router_.uses,
              .inner = take<uint16_t>(uint64_t{rows_} * kUses * d.ffn),
              .outer = take<uint16_t>(uint64_t{rows_} * kUses * d.hidden),
              .stream = batch_.stream,
              .experts = d.experts,
              .tokens = rows_};
  const double uses = static_cast<double>(rows_) * kUses;
  steps.push_back({"experts gate, up", matrix_flops(layer.gate_up, uses),
                   static_cast<double>(layer.gate_up.matrix_bytes) * (d.experts + 1),
                   [this] { prefill::experts_enter(experts_, device()); }});
  steps.push_back({"experts down", matrix_flops(layer.down, uses),
                   static_cast<double>(layer.down.matrix_bytes) * (d.experts + 1),
                   [this] { prefill::experts_leave(experts_, device()); }});
  steps.push_back({"experts combine", 0, uses * d.hidden * 2 + 8.0 * rows_ * d.hidden,
                   [this] { prefill::experts_combine(experts_, device()); }});
}

void print(uint32_t rows, uint32_t position, const std::vector<Step>& steps, double blocks) {
  std::printf("\n%u rows at position %u\n%-20s %9s %9s %8s %6s\n", rows, position, "kernel", "us", "TFLOP/s",
              "GB/s", "share");
  for (const Step& step : steps) {
    const double limit = std::max(step.flops / kPeakFlops, step.bytes / kPeakBytes);
    std::printf("%-20s %9.1f %9.1f %8.0f %5.1f%%\n", step.name.c_str(), step.seconds * 1e6,
                step.flops / step.seconds / 1e12, step.bytes / step.seconds / 1e9,
                100 * limit / step.seconds);
  }
  std::printf("40 layers: %.2f ms, %.0f tok/s without embedding and head\n", blocks * 1e4,
              rows / (blocks * 10));
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<uint32_t> sizes;
  uint32_t position = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with('@')) {
      position = static_cast<uint32_t>(std::stoul(argument.substr(1)));
    } else {
      sizes.push_back(static_cast<uint32_t>(std::stoul(argument)));
    }
  }
  if (sizes.empty()) {
    sizes = {512, 2048, 8192};
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "device");
  std::printf("%s, %d multiprocessors\n", properties.name, properties.multiProcessorCount);
  const Shape& s = kQwen36;
  const Model model(
      {s.hidden, kLayers, s.vocab, s.q_heads, s.kv_heads, s.k_heads, s.v_heads, s.experts, s.expert_ffn});
  for (const uint32_t rows : sizes) {
    const auto pass = std::make_unique<Pass>(model, rows, position, properties);
    const double blocks = pass->time_blocks();
    print(rows, position, pass->time_steps(), blocks);
    std::fflush(stdout);
  }
  check(cudaDeviceSynchronize(), "end");
  return 0;
}
