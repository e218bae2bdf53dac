// Gated DeltaNet, token by token (equations 10 to 17).
#include <algorithm>
#include <array>
#include <cstring>

#include "reference/blocks.h"
#include "reference/linear.h"

namespace lily::reference {
namespace {

constexpr uint32_t kKey = Shape::kKeyDim;
constexpr uint32_t kValue = Shape::kValueDim;
constexpr uint32_t kTaps = Shape::kConvKernel;

uint32_t rows_of(std::span<const host::Segment> segments) {
  return segments.back().first_row + segments.back().rows;
}

// Equation 14: x * rsqrt(sum(x^2) + eps) * scale. The eps is added to the sum, not to the mean.
std::array<float, kKey> unit(const float* x, float scale) {
  const float factor = scale / std::sqrt(dot(x, x, kKey) + Shape::kNormEps);
  std::array<float, kKey> out;
  for (uint32_t i = 0; i < kKey; ++i) {
    out[i] = x[i] * factor;
  }
  return out;
}

// One token of one head.
struct DeltaToken {
  const float* q;
  const float* k;
  const float* v;
  float decay;  // exp(g)
  float beta;
};

// Equation 15: state is [kKey][kValue], out is [kValue].
void delta_step(float* state, const DeltaToken& token, float* out) {
  std::array<float, kValue> change{};  // first S^T k of the decayed state
  std::array<float, kValue> sum{};     // S^T q
  const float decay = token.decay;
  for (uint32_t i = 0; i < kKey; ++i) {
    float* row = state + size_t{i} * kValue;
    const float k = token.k[i];
    for (uint32_t j = 0; j < kValue; ++j) {
      row[j] *= decay;
      change[j] += row[j] * k;
    }
  }
  for (uint32_t j = 0; j < kValue; ++j) {
    change[j] = token.beta * (token.v[j] - change[j]);
  }
  for (uint32_t i = 0; i < kKey; ++i) {
    float* row = state + size_t{i} * kValue;
    const float k = token.k[i];
    const float q = token.q[i];
    for (uint32_t j = 0; j < kValue; ++j) {
      row[j] += k * change[j];
      sum[j] += row[j] * q;
    }
  }
  std::copy(sum.begin(), sum.end(), out);
}

}  // namespace

void ReferenceBlocks::delta_net(uint32_t layer, std::span<const host::Segment> segments, float* stream) {
  const auto& weights = std::get<DeltaNetWeights>(weights_->layers[layer].mixer);
  const uint32_t rows = rows_of(segments);
  const uint32_t v_heads = plan_.shape.v_heads;
  norm_rows(dense_[layer].input_norm, rows, stream);
  // Equation 10.
  linear(pool_, weights.in_proj_qkv, normed_.data(), rows, mixed_.data());
  linear(pool_, weights.in_proj_z, normed_.data(), rows, gate_.data());
  linear(pool_, weights.in_proj_a, normed_.data(), rows, alpha_.data());
  linear(pool_, weights.in_proj_b, normed_.data(), rows, beta_.data());
  for (const host::Segment& segment : segments) {
    convolve(layer, segment);
  }
  pool_.for_each(segments.size() * v_heads, 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      delta_rule(layer, segments[i / v_heads], static_cast<uint32_t>(i % v_heads));
    }
  });
  gated_norm(layer, rows);
  linear(pool_, weights.out_proj, heads_.data(), rows, result_.data());
  add_to_stream(rows, stream);
}

// Equation 11: from mixed_ to wide_. The state holds the last three inputs of every channel.
void ReferenceBlocks::convolve(uint32_t layer, const host::Segment& segment) {
  const uint32_t channels = plan_.shape.conv_channels();
  const std::vector<float>& taps = dense_[layer].conv1d;
  float* state = segment.state->conv(layer);
  for (uint32_t r = 0; r < segment.rows; ++r) {
    const float* input = mixed_.data() + size_t{segment.first_row + r} * channels;
    float* output = wide_.data() + size_t{segment.first_row + r} * channels;
    for (uint32_t c = 0; c < channels; ++c) {
      float sum = 0;
      for (uint32_t tap = 0; tap < kTaps - 1; ++tap) {
        sum += taps[c * kTaps + tap] * state[size_t{tap} * channels + c];
      }
      sum += taps[c * kTaps + kTaps - 1] * input[c];
      output[c] = silu(sum);
    }
    std::memmove(state, state + channels, sizeof(float) * channels * (kTaps - 2));
    std::memcpy(state + size_t{kTaps - 2} * channels, input, sizeof(float) * channels);
    if (float* kept = segment.provisional ? segment.state->kept_conv(layer, r) : nullptr) {
      std::memcpy(kept, state, sizeof(float) * channels * (kTaps - 1));
    }
  }
}

// Equations 12 to 15 for one value head over the rows of a segment: from wide_ (q | k | v), alpha_ and beta_
// to heads_.
void ReferenceBlocks::delta_rule(uint32_t layer, const host::Segment& segment, uint32_t head) {
  const Shape& shape = plan_.shape;
  const uint32_t key_head = head / (shape.v_heads / shape.k_heads);
  const float rate = std::exp(dense_[layer].a_log[head]);
  const float scale = 1.0F / std::sqrt(static_cast<float>(kKey));
  float* state = segment.state->delta(layer) + size_t{head} * kKey * kValue;
  for (uint32_t r = 0; r < segment.rows; ++r) {
    const size_t row = segment.first_row + r;
    const float* qkv = wide_.data() + row * shape.conv_channels();
    const auto q = unit(qkv + size_t{key_head} * kKey, scale);
    const auto k = unit(qkv + shape.key_width() + size_t{key_head} * kKey, 1.0F);
    const float* v = qkv + 2 * shape.key_width() + size_t{head} * kValue;
    // Equation 13.
    const float beta = sigmoid(beta_[row * shape.v_heads + head]);
    const float g = -rate * softplus(alpha_[row * shape.v_heads + head] + dense_[layer].dt_bias[head]);
    const DeltaToken token{q.data(), k.data(), v, std::exp(g), beta};
    delta_step(state, token, heads_.data() + row * shape.value_width() + size_t{head} * kValue);
    if (float* kept = segment.provisional ? segment.state->kept_delta(layer, r) : nullptr) {
      std::memcpy(kept + size_t{head} * kKey * kValue, state, sizeof(float) * kKey * kValue);
    }
  }
}

// Equation 17, in place on heads_.
void ReferenceBlocks::gated_norm(uint32_t layer, uint32_t rows) {
  const size_t heads = size_t{rows} * plan_.shape.v_heads;
  for (size_t head = 0; head < heads; ++head) {
    float* values = heads_.data() + head * kValue;
    const float* z = gate_.data() + head * kValue;
    rms_norm(values, dense_[layer].norm.data(), kValue, values);
    for (uint32_t j = 0; j < kValue; ++j) {
      values[j] *= silu(z[j]);
    }
  }
}

}  // namespace lily::reference
