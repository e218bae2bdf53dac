// Weights in memory for any shape: random, and conditioned so that activations keep their size from layer to
// layer. For tests of blocks and backends; the bytes are those a mapped checkpoint would have.
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/aligned.h"
#include "base/check.h"
#include "model/tensors.h"

namespace lily::test {

struct RandomOptions {
  uint64_t seed = 1;
  uint32_t bits = 4;
  uint32_t group = 64;
  uint32_t router_bits = 8;  // of router and shared gate
  DType scale_type = DType::bf16;
  DType dense_type = DType::bf16;
  bool with_mtp = false;
  // Layers of a kind are views of the same bytes: a full-width model in the memory of one layer of each kind.
  bool share_layers = false;
};

// SplitMix64: a stateless hash is enough, and fills gigabytes quickly.
inline uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// Uniform in [low, high) for (seed, index).
inline float uniform(uint64_t seed, uint64_t index, float low, float high) {
  const double unit = static_cast<double>(mix(seed ^ mix(index)) >> 11) * 0x1p-53;
  return low + (high - low) * static_cast<float>(unit);
}

// Roughly normal with mean 0 and deviation 1 (a sum of four uniforms).
inline float normal(uint64_t seed, uint64_t index) {
  float sum = 0;
  for (uint64_t i = 0; i < 4; ++i) {
    sum += uniform(seed + i, index, -1.0F, 1.0F);
  }
  return sum * 0.866F;
}

class RandomWeights {
 public:
  explicit RandomWeights(const Shape& shape, const RandomOptions& options = {})
      : options_(options), weights_(empty_weights(shape, options.with_mtp)) {
    for (TensorSite& site : tensor_table(shape, weights_)) {
      if (auto* matrix = std::get_if<AffineMatrix*>(&site.view)) {
        make_matrix(site, **matrix);
      } else {
        make_dense(site, *std::get<DenseTensor*>(site.view));
      }
    }
  }
  const ModelWeights& get() const { return weights_; }
  ModelWeights& get() { return weights_; }

 private:
  // "model.layers.3.mlp.gate" is "mlp.gate" when layers share their bytes.
  std::string key_of(const std::string& name) const {
    if (options_.share_layers && name.starts_with("model.layers.")) {
      return name.substr(name.find('.', std::string_view("model.layers.").size()));
    }
    return name;
  }

  static uint64_t seed_of(uint64_t seed, std::string_view name) {
    for (const char c : name) {
      seed = mix(seed ^ static_cast<unsigned char>(c));
    }
    return seed;
  }

  // Bytes at an address that is even and no more, as in a mapped file.
  std::byte* allocate(size_t bytes) {
    auto memory = AlignedBytes::allocate(bytes + 2);
    LILY_CHECK(memory.has_value());
    storage_.push_back(*std::move(memory));
    return storage_.back().data() + 2;
  }

  static void store(std::byte* at, DType type, size_t index, float value) {
    if (type == DType::f32) {
      std::memcpy(at + index * 4, &value, 4);
    } else {
      const uint16_t bits = type == DType::bf16 ? float_to_bf16(value) : float_to_f16(value);
      std::memcpy(at + index * 2, &bits, 2);
    }
  }

  // Deviation of the weights times the square root of the inputs: 1 keeps the size of a normalised input.
  static float gain_of(const TensorSite& site) {
    const std::string_view name = site.name;
    if (name.ends_with("embed_tokens")) {
      return std::sqrt(static_cast<float>(site.cols));
    }
    if (name.ends_with("lm_head") || name.ends_with("mlp.gate")) {
      return 3.0F;
    }
    return name.ends_with("down_proj") || name.ends_with("out_proj") ? 1.5F : 1.0F;
  }

  void make_matrix(const TensorSite& site, AffineMatrix& matrix) {
    const std::string key = key_of(site.name);
    if (const auto known = matrices_.find(key); known != matrices_.end()) {
      matrix = known->second;
      return;
    }
    matrix.scale_type = options_.scale_type;
    matrix.rows = site.rows;
    matrix.cols = site.cols;
    matrix.experts = site.experts;
    matrix.bits = site.router_like ? options_.router_bits : options_.bits;
    matrix.group = site.cols % options_.group == 0 ? options_.group : 64;
    const uint64_t seed = seed_of(options_.seed, key);
    std::byte* codes = allocate(site.experts * matrix.code_bytes());
    for (size_t word = 0; word < site.experts * matrix.code_bytes() / 8; ++word) {
      const uint64_t value = mix(seed + word);
      std::memcpy(codes + word * 8, &value, 8);
    }
    const size_t groups = size_t{site.experts} * site.rows * (site.cols / matrix.group);
    std::byte* scales = allocate(site.experts * matrix.scale_bytes());
    std::byte* biases = allocate(site.experts * matrix.scale_bytes());
    const float top = static_cast<float>((1U << matrix.bits) - 1);
    const float deviation = gain_of(site) / std::sqrt(static_cast<float>(site.cols));
    const float unit = deviation * std::sqrt(12.0F) / (top + 1);
    for (size_t i = 0; i < groups; ++i) {
      const float scale = unit * uniform(seed + 1, i, 0.6F, 1.4F) * ((mix(seed + i) & 1) != 0 ? 1.0F : -1.0F);
      store(scales, matrix.scale_type, i, scale);
      store(biases, matrix.scale_type, i, -scale * top * uniform(seed + 2, i, 0.47F, 0.53F));
    }
    matrix.codes = codes;
    matrix.scales = scales;
    matrix.biases = biases;
    matrices_.emplace(key, matrix);
  }

  static float dense_value(std::string_view name, uint64_t seed, size_t i) {
    if (name.ends_with("A_log")) {
      return std::log(uniform(seed, i, 1.0F, 16.0F));
    }
    if (name.ends_with("dt_bias")) {  // softplus(dt_bias) between 0.001 and 0.1
      return std::log(std::expm1(std::exp(uniform(seed, i, std::log(0.001F), std::log(0.1F)))));
    }
    if (name.ends_with("conv1d")) {
      return 0.5F * normal(seed, i);
    }
    return 1.0F + 0.15F * normal(seed, i);  // norms
  }

  void make_dense(const TensorSite& site, DenseTensor& tensor) {
    const std::string key = key_of(site.name);
    if (const auto known = dense_.find(key); known != dense_.end()) {
      tensor = known->second;
      return;
    }
    tensor.type = options_.dense_type;
    tensor.rows = site.rows;
    tensor.cols = site.cols;
    const uint64_t seed = seed_of(options_.seed, key);
    std::byte* data = allocate(tensor.total_bytes());
    for (size_t i = 0; i < tensor.count(); ++i) {
      store(data, tensor.type, i, dense_value(site.name, seed, i));
    }
    tensor.data = data;
    dense_.emplace(key, tensor);
  }

  RandomOptions options_;
  ModelWeights weights_;
  std::vector<AlignedBytes> storage_;
  std::map<std::string, AffineMatrix> matrices_;
  std::map<std::string, DenseTensor> dense_;
};

}  // namespace lily::test
