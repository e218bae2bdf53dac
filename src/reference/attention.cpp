// Gated grouped-query attention (equations 4 to 9).
#include <algorithm>
#include <array>
#include <cstring>

#include "model/rope.h"
#include "reference/blocks.h"
#include "reference/linear.h"

namespace lily::reference {
namespace {

constexpr uint32_t kDim = Shape::kHeadDim;

const float* as_floats(const std::byte* bytes) { return reinterpret_cast<const float*>(bytes); }

void copy_row(std::byte* block, uint32_t token, const float* row) {
  std::memcpy(block + size_t{token} * kDim * sizeof(float), row, kDim * sizeof(float));
}

}  // namespace

void ReferenceBlocks::attention(uint32_t layer, std::span<const host::Segment> segments, float* stream) {
  const auto& weights = std::get<AttentionWeights>(weights_->layers[layer].mixer);
  const Shape& shape = plan_.shape;
  const uint32_t rows = segments.back().first_row + segments.back().rows;
  norm_rows(dense_[layer].input_norm, rows, stream);
  // Equation 4: wide_ is [rows][q_heads][q | gate], mixed_ is keys [max_rows][kv_width], then values.
  linear(pool_, weights.q_proj, normed_.data(), rows, wide_.data());
  linear(pool_, weights.k_proj, normed_.data(), rows, mixed_.data());
  linear(pool_, weights.v_proj, normed_.data(), rows,
         mixed_.data() + size_t{plan_.max_rows} * shape.kv_width());
  for (const host::Segment& segment : segments) {
    turn_queries_and_keys(layer, segment);
    pool_.for_each(size_t{segment.rows} * shape.q_heads, 1, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        attend(layer, segment, static_cast<uint32_t>(i / shape.q_heads),
               static_cast<uint32_t>(i % shape.q_heads));
      }
    });
  }
  linear(pool_, weights.o_proj, heads_.data(), rows, result_.data());
  add_to_stream(rows, stream);
}

// Equations 5 and 6: norms and rotates queries (in wide_) and keys, and writes keys and values to the state.
void ReferenceBlocks::turn_queries_and_keys(uint32_t layer, const host::Segment& segment) {
  const Shape& shape = plan_.shape;
  for (uint32_t r = 0; r < segment.rows; ++r) {
    const size_t row = segment.first_row + r;
    const uint32_t position = segment.position + r;
    const Rotation rotation = rotation_at(position);
    for (uint32_t head = 0; head < shape.q_heads; ++head) {
      float* q = wide_.data() + (row * shape.q_heads + head) * 2 * kDim;
      rms_norm(q, dense_[layer].q_norm.data(), kDim, q);
      rotate(rotation, q);
    }
    for (uint32_t head = 0; head < shape.kv_heads; ++head) {
      float* k = mixed_.data() + row * shape.kv_width() + size_t{head} * kDim;
      const float* v = k + size_t{plan_.max_rows} * shape.kv_width();
      rms_norm(k, dense_[layer].k_norm.data(), kDim, k);
      rotate(rotation, k);
      copy_row(segment.state->keys(layer, head, position / host::kBlockTokens), position % host::kBlockTokens,
               k);
      copy_row(segment.state->values(layer, head, position / host::kBlockTokens),
               position % host::kBlockTokens, v);
    }
  }
}

// Equations 8 and 9 for one query head of one row: softmax over all positions up to its own, then the gate.
void ReferenceBlocks::attend(uint32_t layer, const host::Segment& segment, uint32_t row, uint32_t head) {
  const Shape& shape = plan_.shape;
  const uint32_t kv_head = head / (shape.q_heads / shape.kv_heads);
  const uint32_t context = segment.position + row + 1;
  const size_t stream_row = segment.first_row + row;
  const float* q = wide_.data() + (stream_row * shape.q_heads + head) * 2 * kDim;
  const float scale = 1.0F / std::sqrt(static_cast<float>(kDim));
  std::vector<float> weights(context);
  for (uint32_t t = 0; t < context; ++t) {
    const float* keys = as_floats(segment.state->keys(layer, kv_head, t / host::kBlockTokens));
    weights[t] = dot(q, keys + size_t{t % host::kBlockTokens} * kDim, kDim) * scale;
  }
  const float largest = *std::max_element(weights.begin(), weights.end());
  for (float& weight : weights) {
    weight = std::exp(weight - largest);
  }
  // The sum of the weights, and of the weighted values, in blocks of tokens: short sums keep the error of a
  // long context small.
  std::array<float, kDim> values{};
  float total = 0;
  for (uint32_t first = 0; first < context; first += host::kBlockTokens) {
    const uint32_t count = std::min(host::kBlockTokens, context - first);
    const float* v = as_floats(segment.state->values(layer, kv_head, first / host::kBlockTokens));
    std::array<float, kDim> part{};
    float part_total = 0;
    for (uint32_t t = 0; t < count; ++t) {
      part_total += weights[first + t];
      for (uint32_t d = 0; d < kDim; ++d) {
        part[d] += weights[first + t] * v[size_t{t} * kDim + d];
      }
    }
    total += part_total;
    for (uint32_t d = 0; d < kDim; ++d) {
      values[d] += part[d];
    }
  }
  const float* gate = q + kDim;
  float* out = heads_.data() + (stream_row * shape.q_heads + head) * kDim;
  for (uint32_t d = 0; d < kDim; ++d) {
    out[d] = values[d] / total * sigmoid(gate[d]);
  }
}

}  // namespace lily::reference
