// The model's equations once more, in double precision and without any thought of speed: what the float32
// reference is measured against where no other implementation is at hand. It shares no arithmetic with it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <span>
#include <vector>

#include "model/tensors.h"

namespace lily::test {

using Row = std::vector<double>;

// What one sequence remembers: of every layer, by its index.
struct OracleState {
  explicit OracleState(const Shape& shape)
      : conv(shape.layers), delta(shape.layers), keys(shape.layers), values(shape.layers) {}
  std::vector<std::vector<Row>> conv;    // [layer][inputs so far]
  std::vector<std::vector<Row>> delta;   // [layer][head] of kKeyDim x kValueDim
  std::vector<std::vector<Row>> keys;    // [layer][token]
  std::vector<std::vector<Row>> values;  // [layer][token]
};

class Oracle {
 public:
  Oracle(const Shape& shape, const ModelWeights& weights) : shape_(shape), weights_(weights) {}

  Row embed(int32_t id) const { return weight_row(weights_.embed.table, static_cast<uint32_t>(id)); }

  // What the block adds to the stream for the next token of a sequence.
  Row delta_net(uint32_t layer, OracleState& state, const Row& stream) const {
    const auto& w = std::get<DeltaNetWeights>(weights_.layers[layer].mixer);
    const Row x = norm(stream, w.input_norm);
    std::vector<Row>& inputs = state.conv[layer];
    inputs.push_back(product(w.in_proj_qkv, x));
    const Row z = product(w.in_proj_z, x);
    const Row a = product(w.in_proj_a, x);
    const Row b = product(w.in_proj_b, x);
    Row mixed(shape_.conv_channels());
    for (size_t c = 0; c < mixed.size(); ++c) {
      double sum = 0;
      for (size_t back = 0; back < std::min<size_t>(4, inputs.size()); ++back) {
        sum += w.conv1d.at(c * 4 + 3 - back) * inputs[inputs.size() - 1 - back][c];
      }
      mixed[c] = sum * sigmoid(sum);
    }
    if (state.delta[layer].empty()) {
      state.delta[layer].assign(shape_.v_heads, Row(Shape::kKeyDim * Shape::kValueDim));
    }
    Row out(shape_.value_width());
    for (uint32_t h = 0; h < shape_.v_heads; ++h) {
      const double beta = sigmoid(b[h]);
      const double decay = std::exp(-std::exp(w.a_log.at(h)) * std::log1p(std::exp(a[h] + w.dt_bias.at(h))));
      const double* z_head = z.data() + size_t{h} * 128;
      const Row o = delta_head(state.delta[layer][h], mixed, h, {decay, beta});
      const Row n = norm(o, w.norm);
      for (size_t j = 0; j < 128; ++j) {
        out[size_t{h} * 128 + j] = n[j] * z_head[j] * sigmoid(z_head[j]);
      }
    }
    return product(w.out_proj, out);
  }

  Row attention(uint32_t layer, OracleState& state, const Row& stream) const {
    const auto& w = std::get<AttentionWeights>(weights_.layers[layer].mixer);
    const Row x = norm(stream, w.input_norm);
    const Row q = product(w.q_proj, x);
    Row k = product(w.k_proj, x);
    const auto position = static_cast<double>(state.keys[layer].size());
    for (uint32_t g = 0; g < shape_.kv_heads; ++g) {
      const Row turned = turn(norm({k.begin() + g * 256, k.begin() + g * 256 + 256}, w.k_norm), position);
      std::copy(turned.begin(), turned.end(), k.begin() + g * 256);
    }
    state.keys[layer].push_back(k);
    state.values[layer].push_back(product(w.v_proj, x));
    Row out;
    for (uint32_t h = 0; h < shape_.q_heads; ++h) {
      const auto begin = q.begin() + size_t{h} * 512;
      const Row query = turn(norm({begin, begin + 256}, w.q_norm), position);
      const size_t at = size_t{h / (shape_.q_heads / shape_.kv_heads)} * 256;
      Row scores;
      for (const Row& key : state.keys[layer]) {
        scores.push_back(
            std::inner_product(query.begin(), query.end(), key.begin() + static_cast<ptrdiff_t>(at), 0.0) /
            16);
      }
      const double top = *std::max_element(scores.begin(), scores.end());
      double total = 0;
      for (double& score : scores) {
        score = std::exp(score - top);
        total += score;
      }
      for (size_t d = 0; d < 256; ++d) {
        double sum = 0;
        for (size_t t = 0; t < scores.size(); ++t) {
          sum += scores[t] / total * state.values[layer][t][at + d];
        }
        out.push_back(sum * sigmoid(*(begin + 256 + static_cast<ptrdiff_t>(d))));
      }
    }
    return product(w.o_proj, out);
  }

  Row router_logits(uint32_t layer, const Row& stream) const {
    const MoeWeights& w = weights_.layers[layer].moe;
    return product(w.router, norm(stream, w.post_norm));
  }

  Row moe(uint32_t layer, const Row& stream) const {
    const MoeWeights& w = weights_.layers[layer].moe;
    const Row x = norm(stream, w.post_norm);
    Row p = product(w.router, x);
    std::vector<uint32_t> order(p.size());
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t i, uint32_t j) { return p[i] > p[j]; });
    const double top = p[order[0]];
    for (double& value : p) {
      value = std::exp(value - top);
    }
    double chosen = 0;
    for (size_t i = 0; i < 8; ++i) {
      chosen += p[order[i]];
    }
    Row out(shape_.hidden);
    for (size_t i = 0; i < 8; ++i) {
      const uint32_t e = order[i];
      const Row y = mlp(w.gate.expert(e), w.up.expert(e), w.down.expert(e), x);
      for (size_t d = 0; d < out.size(); ++d) {
        out[d] += p[e] / chosen * y[d];
      }
    }
    const Row shared = mlp(w.shared_gate_proj, w.shared_up_proj, w.shared_down_proj, x);
    const double gate = sigmoid(product(w.shared_gate, x)[0]);
    for (size_t d = 0; d < out.size(); ++d) {
      out[d] += gate * shared[d];
    }
    return out;
  }

  Row head(const Row& stream) const {
    return product(weights_.head.lm_head, norm(stream, weights_.head.norm));
  }

  // One token through the whole model: its logits.
  Row step(OracleState& state, int32_t id) const {
    Row stream = embed(id);
    const auto add = [&](const Row& more) {
      std::transform(stream.begin(), stream.end(), more.begin(), stream.begin(), std::plus<>());
    };
    for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
      add(shape_.is_attention(layer) ? attention(layer, state, stream) : delta_net(layer, state, stream));
      add(moe(layer, stream));
    }
    return head(stream);
  }

 private:
  struct Gates {
    double decay, beta;
  };

  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

  // The definition of the format, element by element.
  static Row weight_row(const AffineMatrix& m, uint32_t row) {
    Row out(m.cols);
    for (size_t c = 0; c < m.cols; ++c) {
      const size_t element = size_t{row} * m.cols + c;
      const auto byte = static_cast<uint32_t>(m.codes[element * m.bits / 8]);
      const uint32_t code = m.bits == 8 ? byte : (byte >> (4 * (c % 2))) & 15U;
      const size_t group = size_t{row} * (m.cols / m.group) + c / m.group;
      const float scaled = load_float(m.scales, m.scale_type, group) * static_cast<float>(code);
      out[c] = scaled + load_float(m.biases, m.scale_type, group);
    }
    return out;
  }

  // All rows of a matrix as float32, kept unless they are many.
  const std::vector<float>& weights_of(const AffineMatrix& m) const {
    std::vector<float>& kept = cache_[m.codes];
    if (kept.empty()) {
      for (uint32_t r = 0; r < m.rows; ++r) {
        const Row row = weight_row(m, r);
        kept.insert(kept.end(), row.begin(), row.end());
      }
    }
    return kept;
  }

  Row product(const AffineMatrix& m, const Row& x) const {
    constexpr size_t kKeep = size_t{40} << 20;
    Row y(m.rows);
    if (size_t{m.rows} * m.cols > kKeep) {
      for (uint32_t r = 0; r < m.rows; ++r) {
        const Row w = weight_row(m, r);
        y[r] = std::inner_product(w.begin(), w.end(), x.begin(), 0.0);
      }
      return y;
    }
    const float* w = weights_of(m).data();
    for (uint32_t r = 0; r < m.rows; ++r, w += m.cols) {
      std::array<double, 8> sums{};
      for (size_t c = 0; c < m.cols; ++c) {
        sums[c % 8] += static_cast<double>(w[c]) * x[c];
      }
      y[r] = std::accumulate(sums.begin(), sums.end(), 0.0);
    }
    return y;
  }

  static Row norm(const Row& x, const DenseTensor& weight) {
    const double mean =
        std::inner_product(x.begin(), x.end(), x.begin(), 0.0) / static_cast<double>(x.size());
    Row y(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      y[i] = x[i] / std::sqrt(mean + 1e-6) * weight.at(i);
    }
    return y;
  }

  Row mlp(const AffineMatrix& gate, const AffineMatrix& up, const AffineMatrix& down, const Row& x) const {
    Row g = product(gate, x);
    const Row u = product(up, x);
    for (size_t i = 0; i < g.size(); ++i) {
      g[i] *= sigmoid(g[i]) * u[i];
    }
    return product(down, g);
  }

  // Angles in float32, as docs/NUMERICS.md defines them.
  static Row turn(Row head, double position) {
    for (size_t j = 0; j < 32; ++j) {
      const float frequency = 1.0F / static_cast<float>(std::pow(1e7, static_cast<float>(2 * j) / 64.0F));
      const auto angle = static_cast<double>(static_cast<float>(position) * frequency);
      const double a = head[j];
      const double b = head[j + 32];
      head[j] = a * std::cos(angle) - b * std::sin(angle);
      head[j + 32] = b * std::cos(angle) + a * std::sin(angle);
    }
    return head;
  }

  static Row unit(const double* x) {
    const double length = std::sqrt(std::inner_product(x, x + 128, x, 0.0) + 1e-6);
    Row y(x, x + 128);
    for (double& value : y) {
      value /= length;
    }
    return y;
  }

  // One token of the delta rule in one head; `mixed` is q | k | v of all heads.
  Row delta_head(Row& s, const Row& mixed, uint32_t head, Gates gates) const {
    const uint32_t key_head = head / (shape_.v_heads / shape_.k_heads);
    const Row q = unit(mixed.data() + size_t{key_head} * 128);
    const Row k = unit(mixed.data() + shape_.key_width() + size_t{key_head} * 128);
    const double* v = mixed.data() + 2 * shape_.key_width() + size_t{head} * 128;
    Row out(128);
    for (size_t j = 0; j < 128; ++j) {
      double memory = 0;
      for (size_t i = 0; i < 128; ++i) {
        s[i * 128 + j] *= gates.decay;
        memory += s[i * 128 + j] * k[i];
      }
      const double change = gates.beta * (v[j] - memory);
      for (size_t i = 0; i < 128; ++i) {
        s[i * 128 + j] += k[i] * change;
        out[j] += s[i * 128 + j] * q[i] / std::sqrt(128.0);
      }
    }
    return out;
  }

  const Shape shape_;
  const ModelWeights& weights_;
  mutable std::map<const std::byte*, std::vector<float>> cache_;
};

}  // namespace lily::test
