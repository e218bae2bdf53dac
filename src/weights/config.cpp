#include "weights/config.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>

#include "weights/container.h"
#include "weights/faults.h"
#include "weights/json.h"
#include "weights/published.h"

namespace lily {
namespace {

namespace json = boost::json;

// Sizes that tell the two shapes apart, and sizes that both share.
struct SizeField {
  std::string_view key;
  uint32_t (*expected)(const Shape&);
};
constexpr SizeField kSizes[] = {
    {"hidden_size", [](const Shape& s) { return s.hidden; }},
    {"vocab_size", [](const Shape& s) { return s.vocab; }},
    {"num_attention_heads", [](const Shape& s) { return s.q_heads; }},
    {"num_key_value_heads", [](const Shape& s) { return s.kv_heads; }},
    {"head_dim", [](const Shape&) { return Shape::kHeadDim; }},
    {"linear_num_key_heads", [](const Shape& s) { return s.k_heads; }},
    {"linear_num_value_heads", [](const Shape& s) { return s.v_heads; }},
    {"linear_key_head_dim", [](const Shape&) { return Shape::kKeyDim; }},
    {"linear_value_head_dim", [](const Shape&) { return Shape::kValueDim; }},
    {"linear_conv_kernel_dim", [](const Shape&) { return Shape::kConvKernel; }},
    {"num_experts", [](const Shape& s) { return s.experts; }},
    {"num_experts_per_tok", [](const Shape&) { return Shape::kTopK; }},
    {"moe_intermediate_size", [](const Shape& s) { return s.expert_ffn; }},
    {"shared_expert_intermediate_size", [](const Shape& s) { return s.shared_ffn; }},
};

// Every size of `text` that differs from `shape`.
void compare_sizes(const json::object& text, const Shape& shape, Faults& faults) {
  for (const SizeField& field : kSizes) {
    const json::value* value = json_find(text, field.key);
    const auto number = value == nullptr ? std::nullopt : json_unsigned(*value);
    if (!number || *number != field.expected(shape)) {
      faults.add("{}: expected {}, found {}", field.key, field.expected(shape), json_text(value));
    }
  }
}

// The shape with the fewest differences; those go to `faults`.
Shape choose_shape(const json::object& text, Faults& faults, bool& exact) {
  Faults big;
  Faults small;
  compare_sizes(text, kQwen36, big);
  compare_sizes(text, kTiny, small);
  const bool is_small = small.count() < big.count();
  const Faults& differences = is_small ? small : big;
  exact = differences.empty();
  if (!exact) {
    faults.add_all(differences.error(ErrorKind::unsupported, "sizes"));
  }
  return is_small ? kTiny : kQwen36;
}

uint32_t read_layers(const json::object& text, Faults& faults) {
  const json::value* value = json_find(text, "num_hidden_layers");
  const auto number = value == nullptr ? std::nullopt : json_unsigned(*value);
  if (!number || *number > UINT32_MAX) {
    faults.add("num_hidden_layers: expected a number, found {}", json_text(value));
    return 0;
  }
  const auto layers = static_cast<uint32_t>(*number);
  if (const auto checked = check_layers(layers); !checked) {
    faults.add("num_hidden_layers: {}", checked.error().message);
    return 0;
  }
  return layers;
}

// Properties that lily computes with as constants: checked where the file names them.
class Constants {
 public:
  Constants(const json::object& text, Faults& faults) : text_(text), faults_(faults) {}

  void boolean(std::string_view key, bool expected) {
    const json::value* value = json_find(text_, key);
    if (value != nullptr && !(value->is_bool() && value->get_bool() == expected)) {
      faults_.add("{}: expected {}, found {}", key, expected, json_text(*value));
    }
  }
  void text(std::string_view key, std::string_view expected) {
    const json::value* value = json_find(text_, key);
    if (value != nullptr && !(value->is_string() && std::string_view(value->get_string()) == expected)) {
      faults_.add("{}: expected \"{}\", found {}", key, expected, json_text(*value));
    }
  }
  void number(std::string_view key, double expected) { check(key, json_find(text_, key), expected); }

  void layer_types(uint32_t layers) {
    const json::value* value = json_find(text_, "layer_types");
    if (value == nullptr || layers == 0) {
      return;
    }
    const json::array* types = value->if_array();
    if (types == nullptr || types->size() != layers) {
      return faults_.add("layer_types: expected {} entries, found {}", layers,
                         types == nullptr ? json_text(*value) : std::to_string(types->size()));
    }
    for (uint32_t layer = 0; layer < layers; ++layer) {
      const json::value& type = (*types)[layer];
      const std::string_view expected = kQwen36.is_attention(layer) ? "full_attention" : "linear_attention";
      if (!type.is_string() || std::string_view(type.get_string()) != expected) {
        faults_.add("layer_types[{}]: expected \"{}\", found {}", layer, expected, json_text(type));
      }
    }
  }

  // Older files have rope_theta and partial_rotary_factor beside the sizes, newer ones in rope_parameters.
  void rope() {
    const json::object* nested = nullptr;
    for (const std::string_view key : {"rope_parameters", "rope_scaling"}) {
      const json::value* value = json_find(text_, key);
      if (value != nullptr && !value->is_object()) {
        faults_.add("{}: expected an object, found {}", key, json_text(*value));
      } else if (value != nullptr && nested == nullptr) {
        nested = &value->get_object();
      }
    }
    const auto find_either = [&](std::string_view key) {
      const json::value* value = nested == nullptr ? nullptr : json_find(*nested, key);
      return value != nullptr ? value : json_find(text_, key);
    };
    const json::value* theta = find_either("rope_theta");
    if (theta == nullptr) {
      faults_.add("rope_theta: expected {}, found nothing", Shape::kRopeTheta);
    }
    check("rope_theta", theta, Shape::kRopeTheta);
    check("partial_rotary_factor", find_either("partial_rotary_factor"),
          double{Shape::kRotaryDim} / Shape::kHeadDim);
    for (const std::string_view key : {"rope_type", "type"}) {
      const json::value* type = nested == nullptr ? nullptr : json_find(*nested, key);
      const bool plain =
          type == nullptr ||
          (type->is_string() && (type->get_string() == "default" || type->get_string() == "mrope"));
      if (!plain) {
        faults_.add("{}: expected \"default\" (lily runs the model's native context), found {}", key,
                    json_text(*type));
      }
    }
  }

 private:
  void check(std::string_view key, const json::value* value, double expected) {
    if (value == nullptr) {
      return;
    }
    const auto number = json_number(*value);
    if (!number || std::abs(*number - expected) > 1e-9 * std::abs(expected)) {
      faults_.add("{}: expected {}, found {}", key, expected, json_text(*value));
    }
  }

  const json::object& text_;
  Faults& faults_;
};

void check_model_type(const json::object& root, const json::object& text, Faults& faults) {
  const json::value* value = json_find(root, "model_type");
  if (value == nullptr) {
    value = json_find(text, "model_type");
  }
  const bool known = value != nullptr && value->is_string() &&
                     (value->get_string() == "qwen3_5_moe" || value->get_string() == "qwen3_5_moe_text");
  if (!known) {
    faults.add("model_type: expected \"qwen3_5_moe\", found {}", json_text(value));
  }
}

void check_constants(const json::object& root, const json::object& text, uint32_t layers, Faults& faults) {
  Constants constants(text, faults);
  constants.number("rms_norm_eps", 1e-6);
  constants.text("hidden_act", "silu");
  constants.boolean("attention_bias", false);
  constants.boolean("attn_output_gate", true);
  constants.boolean("norm_topk_prob", true);
  constants.boolean("tie_word_embeddings", false);
  constants.boolean("mtp_use_dedicated_embeddings", false);
  constants.number("full_attention_interval", Shape::kAttentionInterval);
  constants.number("decoder_sparse_step", 1);
  constants.layer_types(layers);
  constants.rope();
  if (&root != &text) {
    Constants(root, faults).boolean("tie_word_embeddings", false);
  }
  if (const json::value* dense = json_find(text, "mlp_only_layers");
      dense != nullptr && !(dense->is_array() && dense->get_array().empty())) {
    faults.add("mlp_only_layers: expected [], found {}", json_text(*dense));
  }
  if (const json::value* mtp = json_find(text, "mtp_num_hidden_layers");
      mtp != nullptr && json_unsigned(*mtp).value_or(2) > 1) {
    faults.add("mtp_num_hidden_layers: expected 0 or 1, found {}", json_text(*mtp));
  }
}

struct Quantization {
  QuantFormat format;
  std::map<std::string, QuantFormat, std::less<>> overrides;
  bool operator==(const Quantization&) const = default;
};

QuantFormat read_format(const json::object& object, std::string_view where, Faults& faults) {
  QuantFormat format;
  const json::value* bits = json_find(object, "bits");
  const auto bit_count = bits == nullptr ? std::nullopt : json_unsigned(*bits);
  if (!bit_count || (*bit_count != 4 && *bit_count != 8)) {
    faults.add("{}.bits: expected 4 or 8, found {}", where, json_text(bits));
  } else {
    format.bits = static_cast<uint32_t>(*bit_count);
  }
  const json::value* group = json_find(object, "group_size");
  const auto size = group == nullptr ? std::nullopt : json_unsigned(*group);
  if (!size || (*size != 32 && *size != 64 && *size != 128)) {
    faults.add("{}.group_size: expected 32, 64 or 128, found {}", where, json_text(group));
  } else {
    format.group = static_cast<uint32_t>(*size);
  }
  if (const json::value* mode = json_find(object, "mode");
      mode != nullptr && !(mode->is_string() && mode->get_string() == "affine")) {
    faults.add("{}.mode: expected \"affine\", found {}", where, json_text(*mode));
  }
  return format;
}

Quantization read_quantization(const json::value& value, std::string_view where, Faults& faults) {
  Quantization out;
  const json::object* object = value.if_object();
  if (object == nullptr) {
    faults.add("{}: expected an object, found {}", where, json_text(value));
    return out;
  }
  if (const json::value* method = json_find(*object, "quant_method"); method != nullptr) {
    faults.add(
        "{}.quant_method: {} is not read: lily reads MLX affine groups, and converts the bf16 checkpoint",
        where, json_text(*method));
    return out;
  }
  out.format = read_format(*object, where, faults);
  for (const auto& [key, entry] : *object) {
    const std::string path(key);
    if (is_vision(path)) {
      continue;
    }
    if (entry.is_object()) {
      out.overrides.emplace(path, read_format(entry.get_object(), fmt::format("{}.{}", where, path), faults));
    } else if (entry.is_bool() && !entry.get_bool() && path.find('.') != std::string::npos) {
      faults.add("{}.{}: the module is left unquantised, lily needs 4 or 8 bits", where, in_quotes(path));
    }
  }
  return out;
}

void read_quantizations(const json::object& root, const json::object& text, ModelConfig& config,
                        Faults& faults) {
  std::optional<Quantization> first;
  std::string_view first_key;
  for (const json::object* object : {&root, &text}) {
    for (const std::string_view key : {"quantization", "quantization_config"}) {
      const json::value* value = json_find(*object, key);
      if (value == nullptr || (object == &text && &root == &text)) {
        continue;
      }
      Quantization next = read_quantization(*value, key, faults);
      if (first && *first != next && faults.empty()) {
        faults.add("{} and {} differ: they must say the same", first_key, key);
      }
      if (!first) {
        first = std::move(next);
        first_key = key;
      }
    }
  }
  config.quantized = first.has_value();
  if (first) {
    config.format = first->format;
    config.overrides = std::move(first->overrides);
  }
}

}  // namespace

QuantFormat ModelConfig::format_of(std::string_view path) const {
  auto at = overrides.find(path);
  if (at == overrides.end()) {  // the same module, written with or without the prefix of the MLX layout
    at = path.starts_with(kModelPrefix) ? overrides.find(path.substr(kModelPrefix.size()))
                                        : overrides.find(std::string(kModelPrefix) + std::string(path));
  }
  return at == overrides.end() ? format : at->second;
}

Result<ModelConfig> parse_model_config(std::string_view text) {
  LILY_TRY(const json::object root, parse_json_object(text, "config.json"));
  Faults faults;
  const json::object* sizes = &root;
  if (const json::value* nested = json_find(root, "text_config"); nested != nullptr) {
    if (!nested->is_object()) {
      return fail(ErrorKind::invalid_input, "config.json: text_config: expected an object, found {}",
                  json_text(*nested));
    }
    sizes = &nested->get_object();
  }
  check_model_type(root, *sizes, faults);
  ModelConfig config{};
  bool exact = false;
  const Shape shape = choose_shape(*sizes, faults, exact);
  const uint32_t layers = read_layers(*sizes, faults);
  config.shape = shape.with_layers(layers);
  check_constants(root, *sizes, layers, faults);
  read_quantizations(root, *sizes, config, faults);
  if (!faults.empty()) {
    const std::string thing =
        exact ? "config.json"
              : fmt::format("config.json: not a shape that lily runs (the closest is {})", shape.name);
    return fail(faults.error(exact ? ErrorKind::invalid_input : ErrorKind::unsupported, thing));
  }
  return config;
}

Result<ModelConfig> read_model_config(const std::filesystem::path& folder) {
  LILY_TRY(const MappedFile file, MappedFile::open(folder / "config.json"));
  auto config = parse_model_config({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
  if (!config) {
    Error error = std::move(config).error();
    error.message = fmt::format("{}: {}", in_quotes(folder.string()), error.message);
    return fail(std::move(error));
  }
  return config;
}

}  // namespace lily
