#include "model/tensors.h"

#include <fmt/format.h>

#include "base/check.h"

namespace lily {
namespace {

class Table {
 public:
  explicit Table(const Shape& shape) : shape_(shape) {}

  void matrix(std::string name, AffineMatrix& view, uint32_t rows, uint32_t cols, uint32_t experts = 1) {
    sites_.push_back({std::move(name), ".weight", &view, rows, cols, experts});
  }
  void router(std::string name, AffineMatrix& view, uint32_t rows) {
    matrix(std::move(name), view, rows, shape_.hidden);
    sites_.back().router_like = true;
  }
  void norm(std::string name, DenseTensor& view, uint32_t rows, bool zero_centred = true) {
    sites_.push_back({std::move(name), ".weight", &view, rows, 1, 1});
    sites_.back().zero_centred_norm = zero_centred;
  }
  void parameter(std::string name, DenseTensor& view, uint32_t rows) {
    sites_.push_back({std::move(name), "", &view, rows, 1, 1});
  }
  void convolution(std::string name, DenseTensor& view, uint32_t channels) {
    sites_.push_back({std::move(name), ".weight", &view, channels, Shape::kConvKernel, 1});
  }

  void delta_net(const std::string& layer, DeltaNetWeights& w) {
    const Shape& s = shape_;
    const std::string p = layer + ".linear_attn";
    norm(layer + ".input_layernorm", w.input_norm, s.hidden);
    matrix(p + ".in_proj_qkv", w.in_proj_qkv, s.conv_channels(), s.hidden);
    matrix(p + ".in_proj_z", w.in_proj_z, s.value_width(), s.hidden);
    matrix(p + ".in_proj_a", w.in_proj_a, s.v_heads, s.hidden);
    matrix(p + ".in_proj_b", w.in_proj_b, s.v_heads, s.hidden);
    convolution(p + ".conv1d", w.conv1d, s.conv_channels());
    parameter(p + ".A_log", w.a_log, s.v_heads);
    parameter(p + ".dt_bias", w.dt_bias, s.v_heads);
    norm(p + ".norm", w.norm, Shape::kValueDim, /*zero_centred=*/false);
    matrix(p + ".out_proj", w.out_proj, s.hidden, s.value_width());
  }

  void attention(const std::string& layer, AttentionWeights& w) {
    const Shape& s = shape_;
    const std::string p = layer + ".self_attn";
    norm(layer + ".input_layernorm", w.input_norm, s.hidden);
    matrix(p + ".q_proj", w.q_proj, 2 * s.q_width(), s.hidden);
    matrix(p + ".k_proj", w.k_proj, s.kv_width(), s.hidden);
    matrix(p + ".v_proj", w.v_proj, s.kv_width(), s.hidden);
    norm(p + ".q_norm", w.q_norm, Shape::kHeadDim);
    norm(p + ".k_norm", w.k_norm, Shape::kHeadDim);
    matrix(p + ".o_proj", w.o_proj, s.hidden, s.q_width());
  }

  void moe(const std::string& layer, MoeWeights& w) {
    const Shape& s = shape_;
    const std::string p = layer + ".mlp";
    norm(layer + ".post_attention_layernorm", w.post_norm, s.hidden);
    router(p + ".gate", w.router, s.experts);
    matrix(p + ".switch_mlp.gate_proj", w.gate, s.expert_ffn, s.hidden, s.experts);
    matrix(p + ".switch_mlp.up_proj", w.up, s.expert_ffn, s.hidden, s.experts);
    matrix(p + ".switch_mlp.down_proj", w.down, s.hidden, s.expert_ffn, s.experts);
    router(p + ".shared_expert_gate", w.shared_gate, 1);
    matrix(p + ".shared_expert.gate_proj", w.shared_gate_proj, s.shared_ffn, s.hidden);
    matrix(p + ".shared_expert.up_proj", w.shared_up_proj, s.shared_ffn, s.hidden);
    matrix(p + ".shared_expert.down_proj", w.shared_down_proj, s.hidden, s.shared_ffn);
  }

  std::vector<TensorSite> take() { return std::move(sites_); }

 private:
  const Shape& shape_;
  std::vector<TensorSite> sites_;
};

}  // namespace

AffineMatrix AffineMatrix::expert(uint32_t index) const {
  LILY_CHECK(index < experts);
  AffineMatrix one = *this;
  one.experts = 1;
  one.codes = codes + index * code_bytes();
  one.scales = scales + index * scale_bytes();
  one.biases = biases + index * scale_bytes();
  return one;
}

std::vector<float> DenseTensor::to_floats() const {
  std::vector<float> out(count());
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = at(i);
  }
  return out;
}

ModelWeights empty_weights(const Shape& shape, bool with_mtp) {
  ModelWeights weights;
  weights.layers.resize(shape.layers);
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    if (shape.is_attention(layer)) {
      weights.layers[layer].mixer = AttentionWeights{};
    } else {
      weights.layers[layer].mixer = DeltaNetWeights{};
    }
  }
  if (with_mtp) {
    weights.mtp.emplace();
  }
  return weights;
}

std::vector<TensorSite> tensor_table(const Shape& shape, ModelWeights& weights) {
  LILY_CHECK(weights.layers.size() == shape.layers);
  Table table(shape);
  table.matrix("model.embed_tokens", weights.embed.table, shape.vocab, shape.hidden);
  for (uint32_t index = 0; index < shape.layers; ++index) {
    const std::string layer = fmt::format("model.layers.{}", index);
    LayerWeights& w = weights.layers[index];
    if (auto* attention = std::get_if<AttentionWeights>(&w.mixer)) {
      table.attention(layer, *attention);
    } else {
      table.delta_net(layer, std::get<DeltaNetWeights>(w.mixer));
    }
    table.moe(layer, w.moe);
  }
  table.norm("model.norm", weights.head.norm, shape.hidden);
  table.matrix("lm_head", weights.head.lm_head, shape.vocab, shape.hidden);
  if (weights.mtp) {
    MtpWeights& mtp = *weights.mtp;
    table.norm("mtp.pre_fc_norm_embedding", mtp.norm_embedding, shape.hidden);
    table.norm("mtp.pre_fc_norm_hidden", mtp.norm_hidden, shape.hidden);
    table.matrix("mtp.fc", mtp.fc, shape.hidden, 2 * shape.hidden);
    table.attention("mtp.layers.0", mtp.attention);
    table.moe("mtp.layers.0", mtp.moe);
    table.norm("mtp.norm", mtp.norm, shape.hidden);
  }
  return table.take();
}

}  // namespace lily
