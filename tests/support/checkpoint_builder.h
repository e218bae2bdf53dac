// Builds small checkpoint folders for tests, valid or with a chosen fault: the tensors and the configuration
// are plain data until write(). It writes safetensors itself and shares only the table of tensors with the
// code under test.
#pragma once

#include <unistd.h>

#include <atomic>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "model/tensors.h"

namespace lily::test {

// A folder of its own, removed at the end.
class TempFolder {
 public:
  TempFolder() {
    static std::atomic<int> counter{0};
    path_ = std::filesystem::temp_directory_path() /
            ("lily-test-" + std::to_string(::getpid()) + "-" + std::to_string(counter++));
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, std::string_view content) {
  std::ofstream out(path, std::ios::binary);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  if (!out.flush()) {
    throw std::runtime_error("cannot write " + path.string());
  }
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

struct BuiltTensor {
  std::string type;  // as in the file: "U32", "BF16", ...
  std::vector<uint64_t> shape;
  std::string data;
};
using BuiltTensors = std::map<std::string, BuiltTensor>;

// One safetensors image; the tensors lie in the order of their names.
inline std::string safetensors_image(const BuiltTensors& tensors) {
  boost::json::object header;
  header["__metadata__"] = {{"format", "mlx"}};
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    boost::json::array shape(tensor.shape.begin(), tensor.shape.end());
    header[name] = {{"dtype", tensor.type},
                    {"shape", std::move(shape)},
                    {"data_offsets", {offset, offset + tensor.data.size()}}};
    offset += tensor.data.size();
  }
  std::string text = boost::json::serialize(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string image(8, '\0');
  const uint64_t length = text.size();
  std::memcpy(image.data(), &length, 8);
  image += text;
  for (const auto& [name, tensor] : tensors) {
    image += tensor.data;
  }
  return image;
}

struct BuilderOptions {
  Shape shape = kTiny.with_layers(4);
  bool mtp = false;
  uint64_t seed = 1;
  DType float_type = DType::bf16;  // of scales, biases and unquantised tensors
  std::string prefix = "language_model.";
};

// A valid checkpoint of random weights in the MLX layout: well-conditioned enough to compute with.
class CheckpointBuilder {
 public:
  explicit CheckpointBuilder(const BuilderOptions& options = {}) : options_(options), random_(options.seed) {
    config = make_config();
    ModelWeights weights = empty_weights(options.shape, options.mtp);
    for (const TensorSite& site : tensor_table(options.shape, weights)) {
      if (std::holds_alternative<DenseTensor*>(site.view)) {
        add_dense(site);
      } else {
        add_matrix(site);
      }
    }
  }

  boost::json::object config;
  std::string generation_config =
      R"({"eos_token_id": [2, 0], "temperature": 1.0, "top_p": 0.95, "top_k": 20})";
  BuiltTensors tensors;

  // The boost::json object that holds the sizes.
  boost::json::object& text_config() { return config["text_config"].as_object(); }

  // Writes config.json, generation_config.json and one file, or `shards` of them with an index, into
  // `folder`.
  void write(const std::filesystem::path& folder, uint32_t shards = 1) const {
    std::filesystem::create_directories(folder);
    write_file(folder / "config.json", boost::json::serialize(config));
    write_file(folder / "generation_config.json", generation_config);
    if (shards == 1) {
      write_file(folder / "model.safetensors", safetensors_image(tensors));
      return;
    }
    std::vector<BuiltTensors> parts(shards);
    boost::json::object map;
    size_t index = 0;
    for (const auto& [name, tensor] : tensors) {
      const size_t part = index++ * shards / tensors.size();
      parts[part].emplace(name, tensor);
      map[name] = shard_name(part, shards);
    }
    for (uint32_t part = 0; part < shards; ++part) {
      write_file(folder / shard_name(part, shards), safetensors_image(parts[part]));
    }
    const boost::json::object root{{"metadata", boost::json::object{}}, {"weight_map", std::move(map)}};
    write_file(folder / "model.safetensors.index.json", boost::json::serialize(root));
  }

  static std::string shard_name(size_t part, uint32_t shards) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05u.safetensors", part + 1, shards);
    return name;
  }

 private:
  boost::json::object make_config() const {
    const Shape& s = options_.shape;
    boost::json::array types;
    boost::json::object quantization{{"group_size", 64}, {"bits", 4}, {"mode", "affine"}};
    const auto add_overrides = [&](const std::string& layer) {
      for (const char* module : {".mlp.gate", ".mlp.shared_expert_gate"}) {
        quantization[options_.prefix + layer + module] = {{"group_size", 64}, {"bits", 8}};
      }
    };
    for (uint32_t layer = 0; layer < s.layers; ++layer) {
      types.emplace_back(s.is_attention(layer) ? "full_attention" : "linear_attention");
      add_overrides("model.layers." + std::to_string(layer));
    }
    if (options_.mtp) {
      add_overrides("mtp.layers.0");
    }
    boost::json::object text{
        {"model_type", "qwen3_5_moe_text"},
        {"vocab_size", s.vocab},
        {"hidden_size", s.hidden},
        {"num_hidden_layers", s.layers},
        {"num_attention_heads", s.q_heads},
        {"num_key_value_heads", s.kv_heads},
        {"head_dim", Shape::kHeadDim},
        {"linear_num_key_heads", s.k_heads},
        {"linear_num_value_heads", s.v_heads},
        {"linear_key_head_dim", Shape::kKeyDim},
        {"linear_value_head_dim", Shape::kValueDim},
        {"linear_conv_kernel_dim", Shape::kConvKernel},
        {"num_experts", s.experts},
        {"num_experts_per_tok", Shape::kTopK},
        {"moe_intermediate_size", s.expert_ffn},
        {"shared_expert_intermediate_size", s.shared_ffn},
        {"rms_norm_eps", 1e-6},
        {"hidden_act", "silu"},
        {"attention_bias", false},
        {"attn_output_gate", true},
        {"full_attention_interval", 4},
        {"layer_types", std::move(types)},
        {"tie_word_embeddings", false},
        {"rope_parameters",
         {{"rope_type", "default"}, {"rope_theta", 10000000}, {"partial_rotary_factor", 0.25}}}};
    return {{"model_type", "qwen3_5_moe"},
            {"tie_word_embeddings", false},
            {"text_config", std::move(text)},
            {"quantization", quantization},
            {"quantization_config", quantization}};
  }

  float uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(random_() >> 40) * 0x1p-24F;
  }

  void append_float(std::string& out, float value) const {
    const auto append = [&](auto bits) { out.append(reinterpret_cast<const char*>(&bits), sizeof bits); };
    switch (options_.float_type) {
      case DType::f32:
        return append(value);
      case DType::f16:
        return append(float_to_f16(value));
      default:
        return append(float_to_bf16(value));
    }
  }

  void add_dense(const TensorSite& site) {
    BuiltTensor tensor{std::string(to_string(options_.float_type)), {site.rows}, {}};
    if (site.cols > 1) {
      tensor.shape = {site.rows, site.cols, 1};
    }
    for (size_t i = 0; i < size_t{site.rows} * site.cols; ++i) {
      const bool parameter = site.suffix.empty() || site.cols > 1;  // A_log, dt_bias, conv1d
      append_float(tensor.data, parameter ? uniform(-1.0F, 1.0F) : uniform(0.75F, 1.25F));
    }
    tensors[options_.prefix + site.name + site.suffix] = std::move(tensor);
  }

  void add_matrix(const TensorSite& site) {
    const uint32_t bits = site.router_like ? 8 : 4;
    const auto shape = [&](uint32_t cols) {
      return site.experts > 1 ? std::vector<uint64_t>{site.experts, site.rows, cols}
                              : std::vector<uint64_t>{site.rows, cols};
    };
    const std::string type(to_string(options_.float_type));
    BuiltTensor codes{"U32", shape(site.cols * bits / 32), {}};
    BuiltTensor scales{type, shape(site.cols / 64), {}};
    BuiltTensor biases = scales;
    const size_t rows = size_t{site.experts} * site.rows;
    codes.data.resize(rows * site.cols * bits / 8);
    for (char& byte : codes.data) {
      byte = static_cast<char>(random_() >> 56);
    }
    const bool embedding = site.name == "model.embed_tokens";
    const float deviation = embedding ? 1.0F : 1.0F / std::sqrt(static_cast<float>(site.cols));
    const float middle = bits == 4 ? 7.5F : 127.5F;
    for (size_t i = 0; i < rows * (site.cols / 64); ++i) {
      const float scale = deviation / (bits == 4 ? 4.6F : 73.9F) * uniform(0.75F, 1.25F);
      append_float(scales.data, scale);
      append_float(biases.data, -middle * scale);
    }
    const std::string path = options_.prefix + site.name;
    tensors[path + ".weight"] = std::move(codes);
    tensors[path + ".scales"] = std::move(scales);
    tensors[path + ".biases"] = std::move(biases);
  }

  BuilderOptions options_;
  std::mt19937_64 random_;
};

}  // namespace lily::test
