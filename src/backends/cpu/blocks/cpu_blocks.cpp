#include "backends/cpu/blocks/cpu_blocks.h"

#include <algorithm>
#include <cmath>

#include "backends/cpu/blocks/batches.h"
#include "backends/host/limits.h"

namespace lily::cpu {
namespace {

DeltaNetDense dense_of(const DeltaNetWeights& w) {
  DeltaNetDense dense{.input_norm = w.input_norm.to_floats(),
                      .conv = std::vector<float>(w.conv1d.count()),
                      .decay_rate = w.a_log.to_floats(),
                      .dt_bias = w.dt_bias.to_floats(),
                      .norm = w.norm.to_floats()};
  const uint32_t channels = w.conv1d.rows;
  for (uint32_t channel = 0; channel < channels; ++channel) {
    for (uint32_t tap = 0; tap < Shape::kConvKernel; ++tap) {
      dense.conv[size_t{tap} * channels + channel] = w.conv1d.at(size_t{channel} * Shape::kConvKernel + tap);
    }
  }
  for (float& rate : dense.decay_rate) {
    rate = std::exp(rate);
  }
  return dense;
}

AttentionDense dense_of(const AttentionWeights& w) {
  return {
      .input_norm = w.input_norm.to_floats(), .q_norm = w.q_norm.to_floats(), .k_norm = w.k_norm.to_floats()};
}

uint64_t dense_floats(const Shape& shape) {
  const uint64_t delta = shape.hidden + uint64_t{shape.conv_channels()} * Shape::kConvKernel +
                         2 * shape.v_heads + Shape::kValueDim;
  const uint64_t attention = shape.hidden + 2 * Shape::kHeadDim;
  return shape.delta_net_layers() * delta + shape.attention_layers() * attention +
         uint64_t{shape.layers} * shape.hidden + shape.hidden;
}

// Bytes of every tensor that the blocks read: all but the MTP layer.
uint64_t mapped_bytes(const Shape& shape, const ModelWeights& weights) {
  ModelWeights copy = weights;  // views only
  uint64_t bytes = 0;
  for (const TensorSite& site : tensor_table(shape, copy)) {
    if (!site.name.starts_with("mtp.")) {
      bytes += std::visit([](const auto* view) { return uint64_t{view->total_bytes()}; }, site.view);
    }
  }
  return bytes;
}

}  // namespace

CpuBlocks::CpuBlocks(const Kernels& kernels, unsigned threads) : kernels_(kernels), pool_(threads) {}
CpuBlocks::~CpuBlocks() = default;

size_t CpuBlocks::workspace_floats(const ModelWeights& weights, const Plan& plan) const {
  const uint32_t rows = std::min(plan.max_rows, kBatchRows);
  const uint32_t partials = attention_partials(plan.shape, plan.context, rows);
  Carver head(nullptr);
  const PreparedRows head_input(kernels_, head, rows, {&weights.head.lm_head});
  size_t floats = head.used();
  for (const LayerWeights& layer : weights.layers) {
    size_t mixer = 0;
    if (const auto* delta = std::get_if<DeltaNetWeights>(&layer.mixer)) {
      mixer = DeltaNetBatch(kernels_, Carver(nullptr), plan.shape, *delta, rows).used;
    } else {
      const auto& weights_of = std::get<AttentionWeights>(layer.mixer);
      mixer = AttentionBatch(kernels_, Carver(nullptr), plan.shape, weights_of, rows, partials).used;
    }
    const size_t moe = MoeBatch(kernels_, Carver(nullptr), plan.shape, layer.moe, rows).used;
    floats = std::max({floats, mixer, moe});
  }
  return floats;
}

MemoryNeed CpuBlocks::estimate(const ModelWeights& weights, const Plan& plan) const {
  MemoryNeed need;
  need.weights = dense_floats(plan.shape) * sizeof(float);
  need.mapped = mapped_bytes(plan.shape, weights);
  need.workspace = workspace_floats(weights, plan) * sizeof(float);
  return need;
}

Result<void> CpuBlocks::load(const ModelWeights& weights, const Plan& plan,
                             FunctionRef<void(double)> progress) {
  weights_ = &weights;
  shape_ = plan.shape;
  max_rows_ = std::min(plan.max_rows, kBatchRows);
  max_partials_ = attention_partials(shape_, plan.context, max_rows_);
  dense_.clear();
  for (const LayerWeights& layer : weights.layers) {
    LayerDense dense;
    std::visit([&](const auto& mixer) { dense.mixer = dense_of(mixer); }, layer.mixer);
    dense.post_norm = layer.moe.post_norm.to_floats();
    dense_.push_back(std::move(dense));
    progress(static_cast<double>(dense_.size()) / static_cast<double>(weights.layers.size() + 1));
  }
  head_norm_ = weights.head.norm.to_floats();
  LILY_TRY(workspace_, AlignedArray<float>::allocate(workspace_floats(weights, plan)));
  pieces_.reserve(plan.max_rows);
  products_.reserve(2 * size_t{shape_.experts} + 1);
  items_.reserve(max_partials_);
  chosen_.assign(shape_.experts, 0);
  progress(1.0);
  return {};
}

Result<DeviceLimits> CpuBlocks::measure_limits() {
  DeviceLimits limits{.multiply = std::string(kernels_.multiply)};
  LILY_TRY(limits.read_bytes_per_second, host::measure_read_bandwidth(pool_));
  limits.multiply_adds_per_second = host::measure_multiply_adds(pool_, [&](uint64_t rounds) {
    float sink = 1.0F;
    return kernels_.multiply_add_peak(rounds, &sink);
  });
  return limits;
}

void CpuBlocks::prepare_normed(const float* stream, uint32_t rows, std::span<const float> norm,
                               const PreparedRows& to) {
  const uint32_t hidden = shape_.hidden;
  pool_.for_each(rows, 4, [&](size_t begin, size_t end) {
    alignas(64) float normed[kMaxHidden];
    for (size_t row = begin; row < end; ++row) {
      kernels_.rms_norm({.x = stream + row * hidden, .weight = norm.data(), .out = normed, .count = hidden});
      to.prepare(static_cast<uint32_t>(row), normed);
    }
  });
}

void for_batches(std::span<const host::Segment> segments, std::vector<Piece>& pieces,
                 FunctionRef<void(std::span<const Piece>, uint32_t, uint32_t)> body) {
  uint32_t first_row = 0;  // of the batch, in the stream
  uint32_t rows = 0;
  pieces.clear();
  const auto flush = [&] {
    if (rows > 0) {
      body(pieces, first_row, rows);
    }
    pieces.clear();
    rows = 0;
  };
  for (const host::Segment& segment : segments) {
    for (uint32_t done = 0; done < segment.rows;) {
      if (rows == 0) {
        first_row = segment.first_row + done;
      }
      const uint32_t take = std::min(segment.rows - done, kBatchRows - rows);
      pieces.push_back({.state = segment.state,
                        .first_row = rows,
                        .rows = take,
                        .position = segment.position + done,
                        .skipped = done,
                        .provisional = segment.provisional});
      rows += take;
      done += take;
      if (rows == kBatchRows) {
        flush();
      }
    }
  }
  flush();
}

}  // namespace lily::cpu
