// Mixture of experts (equations 20 to 22).
#include <algorithm>
#include <array>
#include <numeric>

#include "reference/blocks.h"
#include "reference/linear.h"
#include "weights/formats/affine.h"

namespace lily::reference {
namespace {

// The kTopK largest of the router's logits, equal ones by lower index, in descending order.
std::array<uint32_t, Shape::kTopK> top_experts(std::span<const float> logits) {
  std::vector<uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0U);
  std::partial_sort(order.begin(), order.begin() + Shape::kTopK, order.end(), [&](uint32_t a, uint32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  std::array<uint32_t, Shape::kTopK> top{};
  std::copy_n(order.begin(), Shape::kTopK, top.begin());
  return top;
}

}  // namespace

uint32_t ReferenceBlocks::moe(uint32_t layer, std::span<const host::Segment> segments, float* stream) {
  const uint32_t rows = segments.back().first_row + segments.back().rows;
  const MoeWeights& weights = weights_->layers[layer].moe;
  norm_rows(dense_[layer].post_norm, rows, stream);
  const Routing routing = route(weights, rows);
  std::fill_n(result_.begin(), size_t{rows} * plan_.shape.hidden, 0.0F);
  enter_experts(weights, routing);
  leave_experts(weights, routing);
  shared_expert(weights, rows);
  add_to_stream(rows, stream);
  uint32_t read = 0;
  for (uint32_t expert = 0; expert < plan_.shape.experts; ++expert) {
    read += routing.begin[expert + 1] > routing.begin[expert] ? 1 : 0;
  }
  return read;
}

// Equation 20. The softmax over all experts cancels in the division by the sum over the chosen ones, so only
// these are looked at.
ReferenceBlocks::Routing ReferenceBlocks::route(const MoeWeights& weights, uint32_t rows) {
  const uint32_t experts = plan_.shape.experts;
  linear(pool_, weights.router, normed_.data(), rows, router_.data());
  std::vector<std::vector<Use>> uses(experts);
  for (uint32_t r = 0; r < rows; ++r) {
    const std::span<const float> logits(router_.data() + size_t{r} * experts, experts);
    const auto top = top_experts(logits);
    std::array<float, Shape::kTopK> mass{};
    float total = 0;
    for (uint32_t i = 0; i < Shape::kTopK; ++i) {
      mass[i] = std::exp(logits[top[i]] - logits[top[0]]);
      total += mass[i];
    }
    for (uint32_t i = 0; i < Shape::kTopK; ++i) {
      uses[top[i]].push_back({r, mass[i] / total});
    }
  }
  Routing routing;
  for (const std::vector<Use>& of_expert : uses) {
    routing.begin.push_back(static_cast<uint32_t>(routing.uses.size()));
    routing.uses.insert(routing.uses.end(), of_expert.begin(), of_expert.end());
  }
  routing.begin.push_back(static_cast<uint32_t>(routing.uses.size()));
  return routing;
}

// Equation 21, first half: hidden_[use] = silu(gate x) * (up x).
void ReferenceBlocks::enter_experts(const MoeWeights& weights, const Routing& routing) {
  const Shape& shape = plan_.shape;
  const uint32_t ffn = shape.expert_ffn;
  pool_.for_each(size_t{shape.experts} * ffn, 16, [&](size_t begin, size_t end) {
    std::vector<float> gate(shape.hidden);
    std::vector<float> up(shape.hidden);
    for (size_t i = begin; i < end; ++i) {
      const auto expert = static_cast<uint32_t>(i / ffn);
      const auto unit = static_cast<uint32_t>(i % ffn);
      const uint32_t first = routing.begin[expert];
      const uint32_t last = routing.begin[expert + 1];
      if (first == last) {
        continue;
      }
      dequantize_row(weights.gate.expert(expert), unit, gate);
      dequantize_row(weights.up.expert(expert), unit, up);
      for (size_t use = first; use < last; ++use) {
        const float* x = normed_.data() + size_t{routing.uses[use].row} * shape.hidden;
        hidden_[use * ffn + unit] = silu(dot(gate.data(), x, shape.hidden)) * dot(up.data(), x, shape.hidden);
      }
    }
  });
}

// Equation 21, second half: result_[row] += weight * down(hidden_[use]), experts in ascending order.
void ReferenceBlocks::leave_experts(const MoeWeights& weights, const Routing& routing) {
  const Shape& shape = plan_.shape;
  const uint32_t ffn = shape.expert_ffn;
  pool_.for_each(shape.hidden, 16, [&](size_t begin, size_t end) {
    std::vector<float> down(ffn);
    for (uint32_t expert = 0; expert < shape.experts; ++expert) {
      const uint32_t first = routing.begin[expert];
      const uint32_t last = routing.begin[expert + 1];
      for (size_t output = begin; first < last && output < end; ++output) {
        dequantize_row(weights.down.expert(expert), static_cast<uint32_t>(output), down);
        for (size_t use = first; use < last; ++use) {
          result_[size_t{routing.uses[use].row} * shape.hidden + output] +=
              routing.uses[use].weight * dot(down.data(), hidden_.data() + use * ffn, ffn);
        }
      }
    }
  });
}

// Equation 22: result_ += sigmoid(w_sg . x) * down(silu(gate x) * (up x)).
void ReferenceBlocks::shared_expert(const MoeWeights& weights, uint32_t rows) {
  const Shape& shape = plan_.shape;
  const size_t count = size_t{rows} * shape.shared_ffn;
  float* gate = hidden_.data();
  float* up = gate + count;
  linear(pool_, weights.shared_gate_proj, normed_.data(), rows, gate);
  linear(pool_, weights.shared_up_proj, normed_.data(), rows, up);
  for (size_t i = 0; i < count; ++i) {
    gate[i] = silu(gate[i]) * up[i];
  }
  float* scale = router_.data();
  linear(pool_, weights.shared_gate, normed_.data(), rows, scale);
  linear(pool_, weights.shared_down_proj, gate, rows, wide_.data());
  for (size_t r = 0; r < rows; ++r) {
    const float weight = sigmoid(scale[r]);
    for (size_t i = 0; i < shape.hidden; ++i) {
      result_[r * shape.hidden + i] += weight * wide_[r * shape.hidden + i];
    }
  }
}

}  // namespace lily::reference
