#include "reference/blocks.h"

#include <algorithm>
#include <new>

#include "backends/host/limits.h"
#include "reference/linear.h"

namespace lily::reference {
namespace {

uint64_t stored_bytes(const Shape& shape, const ModelWeights& weights) {
  ModelWeights copy = weights;  // views only
  uint64_t bytes = 0;
  for (const TensorSite& site : tensor_table(shape, copy)) {
    bytes += std::visit([](const auto* view) { return view->total_bytes(); }, site.view);
  }
  return bytes;
}

// Floats of the workspace for one row, in the order of the members.
struct RowFloats {
  size_t hidden, wide, mixed, value, heads, v_heads, router, ffn;
  explicit RowFloats(const Shape& s)
      : hidden(s.hidden),
        wide(std::max(s.conv_channels(), 2 * s.q_width())),
        mixed(std::max(s.conv_channels(), 2 * s.kv_width())),
        value(s.value_width()),
        heads(std::max(s.value_width(), s.q_width())),
        v_heads(s.v_heads),
        router(s.experts),
        ffn(std::max(Shape::kTopK * s.expert_ffn, 2 * s.shared_ffn)) {}
  size_t total() const { return 2 * hidden + wide + mixed + value + heads + 2 * v_heads + router + ffn; }
};

}  // namespace

MemoryNeed ReferenceBlocks::estimate(const ModelWeights& weights, const Plan& plan) const {
  return {.weights = 0,
          .mapped = stored_bytes(plan.shape, weights),
          .per_sequence = 0,
          .workspace = plan.max_rows * RowFloats(plan.shape).total() * sizeof(float)};
}

// The peak is that of dot() over rows in the nearest cache, which is what all products here are made of.
Result<DeviceLimits> ReferenceBlocks::measure_limits() {
  DeviceLimits limits{.multiply = "float32 multiply, then add"};
  LILY_TRY(limits.read_bytes_per_second, host::measure_read_bandwidth(pool_));
  limits.multiply_adds_per_second = host::measure_multiply_adds(pool_, [](uint64_t rounds) {
    constexpr uint32_t kCount = 2048;
    const std::vector<float> weights(kCount, 0.5F);
    std::vector<float> x(kCount, 1.0F);
    for (uint64_t round = 0; round < rounds; ++round) {
      x[round % kCount] =
          dot(weights.data(), x.data(), kCount) * 0x1p-10F;  // each product needs the one before
    }
    return rounds * kCount;
  });
  return limits;
}

Result<void> ReferenceBlocks::load(const ModelWeights& weights, const Plan& plan,
                                   FunctionRef<void(double)> progress) {
  weights_ = &weights;
  plan_ = plan;
  dense_.clear();
  for (const LayerWeights& layer : weights.layers) {
    DenseLayer& dense = dense_.emplace_back();
    dense.post_norm = layer.moe.post_norm.to_floats();
    if (const auto* delta = std::get_if<DeltaNetWeights>(&layer.mixer)) {
      dense.input_norm = delta->input_norm.to_floats();
      dense.conv1d = delta->conv1d.to_floats();
      dense.a_log = delta->a_log.to_floats();
      dense.dt_bias = delta->dt_bias.to_floats();
      dense.norm = delta->norm.to_floats();
    } else {
      const auto& attention = std::get<AttentionWeights>(layer.mixer);
      dense.input_norm = attention.input_norm.to_floats();
      dense.q_norm = attention.q_norm.to_floats();
      dense.k_norm = attention.k_norm.to_floats();
    }
    progress(static_cast<double>(dense_.size()) / static_cast<double>(weights.layers.size()));
  }
  final_norm_ = weights.head.norm.to_floats();
  const RowFloats row(plan.shape);
  const size_t rows = plan.max_rows;
  try {
    normed_.resize(rows * row.hidden);
    result_.resize(rows * row.hidden);
    wide_.resize(rows * row.wide);
    mixed_.resize(rows * row.mixed);
    gate_.resize(rows * row.value);
    heads_.resize(rows * row.heads);
    alpha_.resize(rows * row.v_heads);
    beta_.resize(rows * row.v_heads);
    router_.resize(rows * row.router);
    hidden_.resize(rows * row.ffn);
  } catch (const std::bad_alloc&) {
    return fail(ErrorKind::out_of_memory, "no memory for the workspace of {} rows", rows);
  }
  return {};
}

void ReferenceBlocks::norm_rows(const std::vector<float>& weight, uint32_t rows, const float* stream) {
  const uint32_t hidden = plan_.shape.hidden;
  for (size_t r = 0; r < rows; ++r) {
    rms_norm(stream + r * hidden, weight.data(), hidden, normed_.data() + r * hidden);
  }
}

void ReferenceBlocks::add_to_stream(uint32_t rows, float* stream) {
  const size_t count = size_t{rows} * plan_.shape.hidden;
  for (size_t i = 0; i < count; ++i) {
    stream[i] += result_[i];
  }
}

}  // namespace lily::reference
