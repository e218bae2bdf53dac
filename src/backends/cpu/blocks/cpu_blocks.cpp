#include "backends/cpu/blocks/cpu_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "backends/cpu/blocks/batches.h"
#include "backends/cpu/packed_file.h"
#include "backends/host/limits.h"
#include "base/log.h"

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

}  // namespace

CpuBlocks::CpuBlocks(const Kernels& kernels, unsigned threads, std::filesystem::path packed_cache)
    : kernels_(kernels), pool_(threads), packed_cache_(std::move(packed_cache)) {}
CpuBlocks::~CpuBlocks() = default;

size_t CpuBlocks::workspace_floats(const PackedModel& forms, const Plan& plan) const {
  const uint32_t rows = std::min(plan.max_rows, kBatchRows);
  const uint32_t partials = attention_partials(plan.shape, plan.context, rows);
  Carver head(nullptr);
  const PreparedRows head_input(kernels_, head, {rows, false}, {&forms.head});
  size_t floats = head.used();
  for (const PackedLayer& layer : forms.layers) {
    for (const BatchRows batch : {BatchRows{rows, false}, BatchRows{rows, kernels_.halves}}) {
      size_t mixer = 0;
      if (const auto* delta = std::get_if<PackedDeltaNet>(&layer.mixer)) {
        mixer = DeltaNetBatch(kernels_, Carver(nullptr), plan.shape, *delta, batch).used;
      } else {
        const auto& attention = std::get<PackedAttention>(layer.mixer);
        mixer = AttentionBatch(kernels_, Carver(nullptr), plan.shape, attention, batch, partials).used;
      }
      const size_t moe = MoeBatch(kernels_, Carver(nullptr), plan.shape, layer.moe, batch).used;
      floats = std::max({floats, mixer, moe});
    }
  }
  return floats;
}

MemoryNeed CpuBlocks::estimate(const ModelWeights& weights, const Plan& plan) const {
  const PackedModel forms = packed_forms(weights);
  MemoryNeed need;
  need.weights = forms.total_bytes() + dense_floats(plan.shape) * sizeof(float);
  need.mapped = weights.embed.table.total_bytes();
  need.workspace = workspace_floats(forms, plan) * sizeof(float);
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
  }
  head_norm_ = weights.head.norm.to_floats();
  LILY_TRY(packed_, packed_model(progress));
  LILY_TRY(workspace_, AlignedArray<float>::allocate(workspace_floats(packed_, plan)));
  pieces_.reserve(plan.max_rows);
  const size_t runs = (size_t{max_rows_} + kRunRows - 1) / kRunRows;
  products_.reserve(shape_.experts + 4 * runs);
  swiglus_.reserve(shape_.experts + runs);  // products point to them
  items_.reserve(max_partials_);
  groups_.reserve(kernels_.attend_rows != nullptr ? max_partials_ : 0);
  chosen_.assign(shape_.experts, 0);
  return {};
}

// A file that cannot be used, read or written is no reason not to load.
Result<PackedModel> CpuBlocks::packed_model(FunctionRef<void(double)> progress) {
  if (packed_cache_.empty()) {
    return pack_model(*weights_, pool_, progress);
  }
  if (std::error_code ignored; std::filesystem::exists(packed_cache_, ignored)) {
    PackedModel model = packed_forms(*weights_);
    const auto mapped = map_packed(packed_cache_, *weights_, model);
    if (mapped) {
      progress(1.0);
      return model;
    }
    log_warn("the packed weights are ignored and made again: {}", mapped.error().text());
  }
  LILY_TRY(PackedModel model, pack_model(*weights_, pool_, progress));
  if (const auto written = write_packed(packed_cache_, *weights_, model); !written) {
    log_warn("the packed weights are not kept: {}", written.error().text());
  }
  return model;
}

Result<DeviceLimits> CpuBlocks::measure_limits() {
  DeviceLimits limits{.multiply = std::string(kernels_.multiply)};
  LILY_TRY(limits.read_bytes_per_second, host::measure_read_bandwidth(pool_));
  limits.multiply_adds_per_second = host::measure_multiply_adds(pool_, [&](uint64_t rounds) {
    std::array<std::byte, kPeakSink> sink{std::byte{1}};
    return kernels_.multiply_add_peak(rounds, sink.data());
  });
  return limits;
}

void CpuBlocks::prepare_normed(const float* stream, uint32_t rows, std::span<const float> norm,
                               const PreparedRows& to) {
  const uint32_t hidden = shape_.hidden;
  for_each_row(pool_, kernels_, rows, [&](uint32_t row) {
    alignas(64) float normed[kMaxHidden];
    kernels_.rms_norm(
        {.x = stream + size_t{row} * hidden, .weight = norm.data(), .out = normed, .count = hidden});
    const Run run = to.run_of(row);
    to.prepare(run, row - run.first, normed);
  });
}

void for_batches(std::span<const host::Segment> segments, bool has_halves, std::vector<Piece>& pieces,
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
    const bool is_long = segment.read_as == ReadAs::many ||
                         (segment.read_as == ReadAs::by_number && segment.rows >= kLongSegment);
    const bool halves = has_halves && is_long;
    if (!pieces.empty() && pieces[0].halves != halves) {
      flush();
    }
    for (uint32_t done = 0; done < segment.rows;) {
      if (rows == 0) {
        first_row = segment.first_row + done;
      }
      uint32_t take = std::min(segment.rows - done, kBatchRows - rows);
      if (halves && done + take < segment.rows) {
        const uint32_t past = (segment.position + done + take) % kDeltaChunk;
        if (past >= take) {  // no room up to where it may be cut
          flush();
          continue;
        }
        take -= past;
      }
      pieces.push_back({.state = segment.state,
                        .first_row = rows,
                        .rows = take,
                        .position = segment.position + done,
                        .skipped = done,
                        .provisional = segment.provisional,
                        .halves = halves});
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
