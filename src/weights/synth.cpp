#include "weights/synth.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cmath>
#include <mutex>
#include <vector>

#include "base/check.h"
#include "base/threads.h"
#include "model/tensors.h"
#include "weights/container.h"
#include "weights/faults.h"
#include "weights/json.h"
#include "weights/quantize.h"
#include "weights/staged_folder.h"
#include "weights/writer.h"

namespace lily {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

constexpr size_t kPieceBytes = size_t{4} << 20;

// Random numbers: docs/SYNTH.md.
constexpr uint64_t kStep = 0x9E3779B97F4A7C15;

constexpr uint64_t mix(uint64_t z) {
  z ^= z >> 30;
  z *= 0xBF58476D1CE4E5B9;
  z ^= z >> 27;
  z *= 0x94D049BB133111EB;
  return z ^ (z >> 31);
}
static_assert(mix(7) == 0x12AE30237B17DF14);

constexpr uint64_t fnv1a(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char character : name) {
    hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001B3;
  }
  return hash;
}

constexpr uint64_t key_of(std::string_view name, uint64_t seed) { return mix(fnv1a(name) ^ mix(seed)); }
static_assert(key_of("language_model.lm_head.weight", 7) == 0x4FE1F9AFFA04A3BC);

constexpr uint64_t draw(uint64_t key, uint64_t index) { return mix(key + (index + 1) * kStep); }
static_assert(draw(key_of("language_model.lm_head.weight", 7), 1) == 0x117E3F93682531C7);

enum class Fill : uint8_t { codes, scales, biases, norm, head_norm, conv1d, a_log, dt_bias };

// One tensor of the file and how its elements come about.
struct SynthTensor {
  TensorPlan plan;
  Fill fill;
  uint64_t key;
  float base = 0;     // scales and biases: middle of the magnitudes
  uint32_t bits = 4;  // scales and biases: of the module

  // Elements are bytes of `unit`; codes are made eight bytes at a time.
  size_t unit() const { return fill == Fill::codes ? 8 : size_of(plan.type); }
};

double gain_of(std::string_view module) {
  const std::string_view tail = module.substr(module.rfind('.') + 1);
  if (tail == "down_proj") {
    return module.find(".switch_mlp.") != std::string_view::npos ? 1.5 : 1.0;
  }
  struct Gain {
    std::string_view tail;
    double gain;
  };
  for (const Gain& known :
       {Gain{"lm_head", 4.0}, Gain{"o_proj", 1.5}, Gain{"out_proj", 0.75}, Gain{"gate", 2.0}}) {
    if (known.tail == tail) {
      return known.gain;
    }
  }
  return 1.0;
}

QuantFormat format_of(const TensorSite& site, QuantFormat format) {
  if (site.router_like) {
    return kRouterFormat;
  }
  while (site.cols % format.group != 0) {
    format.group /= 2;
  }
  return format;
}

float base_of(const TensorSite& site, uint32_t bits) {
  const double fan = site.name == "model.embed_tokens" ? 1.0 : site.cols;
  const double levels = 1U << bits;
  const double deviation = std::sqrt((levels * levels - 1) / 12.0);  // of a uniform code
  return static_cast<float>(gain_of(site.name) / (std::sqrt(fan) * deviation));
}

Fill fill_of(const TensorSite& site) {
  const std::string_view name = site.name;
  if (name.ends_with(".conv1d")) {
    return Fill::conv1d;
  }
  if (name.ends_with(".A_log")) {
    return Fill::a_log;
  }
  if (name.ends_with(".dt_bias")) {
    return Fill::dt_bias;
  }
  return name.ends_with(".q_norm") || name.ends_with(".k_norm") ? Fill::head_norm : Fill::norm;
}

void add_tensors(const TensorSite& site, const SynthOptions& options, std::vector<SynthTensor>& out) {
  const std::string path = std::string(kModelPrefix) + site.name;
  if (std::holds_alternative<DenseTensor*>(site.view)) {
    std::vector<uint64_t> shape{site.rows};
    if (site.cols > 1) {
      shape = {site.rows, site.cols, 1};
    }
    const std::string name = path + site.suffix;
    out.push_back({{name, options.float_type, shape}, fill_of(site), key_of(name, options.seed)});
    return;
  }
  const QuantFormat format = format_of(site, options.format);
  const auto shape = [&](uint64_t cols) {
    return site.experts > 1 ? std::vector<uint64_t>{site.experts, site.rows, cols}
                            : std::vector<uint64_t>{site.rows, cols};
  };
  out.push_back({{path + ".weight", DType::u32, shape(site.cols * format.bits / 32)},
                 Fill::codes,
                 key_of(path + ".weight", options.seed)});
  for (const Fill fill : {Fill::scales, Fill::biases}) {  // both from the draws of the scales
    const char* suffix = fill == Fill::scales ? ".scales" : ".biases";
    out.push_back({{path + suffix, options.float_type, shape(site.cols / format.group)},
                   fill,
                   key_of(path + ".scales", options.seed),
                   base_of(site, format.bits),
                   format.bits});
  }
}

std::vector<SynthTensor> tensors_of(const std::vector<TensorSite>& sites, const SynthOptions& options) {
  std::vector<SynthTensor> tensors;
  for (const TensorSite& site : sites) {
    add_tensors(site, options, tensors);
  }
  return tensors;
}

// `value` as the stored type holds it.
float rounded(float value, DType type) {
  if (type == DType::bf16) {
    return bf16_to_float(float_to_bf16(value));
  }
  return type == DType::f16 ? f16_to_float(float_to_f16(value)) : value;
}

float group_value(const SynthTensor& tensor, uint64_t r) {
  const float m = 0.75F + static_cast<float>(r >> 48) * 0x1p-17F;
  const float magnitude = rounded(tensor.base * m, tensor.plan.type);
  const float scale = (r >> 47 & 1) != 0 ? -magnitude : magnitude;
  if (tensor.fill == Fill::scales) {
    return scale;
  }
  const float v = static_cast<float>(r >> 32 & 0xff) - 128.0F;
  const float middle = tensor.bits == 4 ? 7.5F + v * 0x1p-8F : 127.5F + v * 0x1p-4F;
  return -(scale * middle);
}

float dense_value(Fill fill, uint64_t index, float u) {
  switch (fill) {
    case Fill::conv1d:
      return (u - 32768.0F) * 0x1p-16F + (index % Shape::kConvKernel == 3 ? 0.75F : 0.0F);
    case Fill::a_log:
      return -4.5F + u * 7.25F * 0x1p-16F;
    case Fill::dt_bias:
      return -4.0F + u * 5.0F * 0x1p-16F;
    case Fill::head_norm:
      return 1.125F + u * 1.5F * 0x1p-17F;
    default:
      return 0.75F + u * 0x1p-17F;
  }
}

// The bytes of elements [begin, begin + out.size() / unit).
void fill_elements(const SynthTensor& tensor, uint64_t begin, std::span<std::byte> out) {
  const size_t count = out.size() / tensor.unit();
  if (tensor.fill == Fill::codes) {
    for (size_t i = 0; i < count; ++i) {
      const uint64_t r = draw(tensor.key, begin + i);
      std::memcpy(out.data() + i * 8, &r, 8);
    }
    return;
  }
  const bool grouped = tensor.fill == Fill::scales || tensor.fill == Fill::biases;
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t r = draw(tensor.key, begin + i);
    values[i] =
        grouped ? group_value(tensor, r) : dense_value(tensor.fill, begin + i, static_cast<float>(r >> 48));
  }
  store_floats(values, tensor.plan.type, out);
}

struct Piece {
  size_t tensor;
  uint64_t begin;  // element
  size_t bytes;
};

std::vector<Piece> cut(const std::vector<SynthTensor>& tensors) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t bytes = tensors[i].plan.bytes();
    LILY_CHECK(bytes % tensors[i].unit() == 0);
    for (uint64_t at = 0; at < bytes; at += kPieceBytes) {
      pieces.push_back({i, at / tensors[i].unit(), std::min<uint64_t>(kPieceBytes, bytes - at)});
    }
  }
  return pieces;
}

Result<void> write_tensors(const std::vector<SynthTensor>& tensors, const CheckpointWriter& writer,
                           const SynthOptions& options, FunctionRef<void(uint64_t, uint64_t)> progress) {
  const std::vector<Piece> pieces = cut(tensors);
  ThreadPool pool(options.threads);
  const size_t batch = size_t{16} * pool.size();
  std::mutex mutex;
  Result<void> outcome;
  uint64_t done = 0;
  for (size_t first = 0; first < pieces.size(); first += batch) {
    const size_t count = std::min(batch, pieces.size() - first);
    pool.for_each(count, 1, [&](size_t begin, size_t end) {
      std::vector<std::byte> buffer;
      for (size_t i = first + begin; i < first + end; ++i) {
        const Piece& piece = pieces[i];
        const SynthTensor& tensor = tensors[piece.tensor];
        buffer.resize(piece.bytes);
        fill_elements(tensor, piece.begin, buffer);
        auto written = writer.write(piece.tensor, piece.begin * tensor.unit(), buffer);
        if (!written) {
          const std::lock_guard lock(mutex);
          outcome = std::move(written);
        }
      }
    });
    if (!outcome) {
      return outcome;
    }
    if (options.cancel != nullptr && options.cancel->load()) {
      return fail(ErrorKind::cancelled, "cancelled: nothing is left behind");
    }
    for (size_t i = first; i < first + count; ++i) {
      done += pieces[i].bytes;
    }
    progress(done, writer.total_bytes());
  }
  return {};
}

json::object text_config(const SynthOptions& options, const std::vector<int32_t>& stop_ids) {
  const Shape& s = options.shape;
  json::array types;
  for (uint32_t layer = 0; layer < s.layers; ++layer) {
    types.emplace_back(s.is_attention(layer) ? "full_attention" : "linear_attention");
  }
  const char* type = options.float_type == DType::bf16  ? "bfloat16"
                     : options.float_type == DType::f16 ? "float16"
                                                        : "float32";
  const int32_t end_of_text = stop_ids.back();
  return {{"model_type", "qwen3_5_moe_text"},
          {"dtype", type},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"attn_output_gate", true},
          {"bos_token_id", end_of_text},
          {"eos_token_id", end_of_text},
          {"pad_token_id", nullptr},
          {"full_attention_interval", Shape::kAttentionInterval},
          {"head_dim", Shape::kHeadDim},
          {"hidden_act", "silu"},
          {"hidden_size", s.hidden},
          {"initializer_range", 0.02},
          {"layer_types", std::move(types)},
          {"linear_conv_kernel_dim", Shape::kConvKernel},
          {"linear_key_head_dim", Shape::kKeyDim},
          {"linear_num_key_heads", s.k_heads},
          {"linear_num_value_heads", s.v_heads},
          {"linear_value_head_dim", Shape::kValueDim},
          {"mamba_ssm_dtype", "float32"},
          {"max_position_embeddings", 262144},
          {"moe_intermediate_size", s.expert_ffn},
          {"mtp_num_hidden_layers", 1},
          {"mtp_use_dedicated_embeddings", false},
          {"num_attention_heads", s.q_heads},
          {"num_experts", s.experts},
          {"num_experts_per_tok", Shape::kTopK},
          {"num_hidden_layers", s.layers},
          {"num_key_value_heads", s.kv_heads},
          {"output_router_logits", false},
          {"partial_rotary_factor", double{Shape::kRotaryDim} / Shape::kHeadDim},
          {"rms_norm_eps", 1e-6},
          {"rope_parameters",
           {{"mrope_interleaved", true},
            {"mrope_section", {11, 11, 10}},
            {"partial_rotary_factor", double{Shape::kRotaryDim} / Shape::kHeadDim},
            {"rope_theta", static_cast<uint64_t>(Shape::kRopeTheta)},
            {"rope_type", "default"}}},
          {"router_aux_loss_coef", 0.001},
          {"shared_expert_intermediate_size", s.shared_ffn},
          {"tie_word_embeddings", false},
          {"use_cache", true},
          {"vocab_size", s.vocab}};
}

std::string config_json(const SynthOptions& options, const std::vector<TensorSite>& sites,
                        const std::vector<int32_t>& stop_ids) {
  json::object quantization{
      {"group_size", options.format.group}, {"bits", options.format.bits}, {"mode", "affine"}};
  for (const TensorSite& site : sites) {
    const QuantFormat format = format_of(site, options.format);
    if (std::holds_alternative<AffineMatrix*>(site.view) && format != options.format) {
      quantization[std::string(kModelPrefix) + site.name] = {{"group_size", format.group},
                                                             {"bits", format.bits}};
    }
  }
  const json::object root{{"architectures", json::array{"Qwen3_5MoeForConditionalGeneration"}},
                          {"model_type", "qwen3_5_moe"},
                          {"quantization", quantization},
                          {"quantization_config", quantization},
                          {"text_config", text_config(options, stop_ids)},
                          {"tie_word_embeddings", false}};
  return json_pretty(root, /*sorted=*/false);
}

// Copies or makes the tokenizer. Returns the stop ids it gives the checkpoint, those of the model without
// one.
Result<std::vector<int32_t>> write_tokenizer(const SynthOptions& options, const StagedFolder& folder) {
  std::string made;
  if (!options.tokenizer.empty()) {
    const fs::path path = options.tokenizer / "tokenizer.json";
    LILY_TRY_VOID(folder.copy_file(path, "tokenizer.json"));
    std::error_code error;
    if (const fs::path config = options.tokenizer / "tokenizer_config.json"; fs::exists(config, error)) {
      LILY_TRY_VOID(folder.copy_file(config, "tokenizer_config.json"));
    }
    LILY_TRY(const MappedFile file, MappedFile::open(path));
    return stop_ids_of_tokenizer({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                                 options.shape.vocab);
  }
  if (options.shape.id == ShapeId::qwen36) {
    return std::vector<int32_t>{248'046, 248'044};
  }
  made = synth_tokenizer_json(options.shape.vocab);
  LILY_TRY_VOID(folder.write_file("tokenizer.json", made));
  LILY_TRY_VOID(folder.write_file("tokenizer_config.json", synth_tokenizer_config_json()));
  return stop_ids_of_tokenizer(made, options.shape.vocab);
}

}  // namespace

uint64_t synth_bytes(const SynthOptions& options) {
  ModelWeights weights = empty_weights(options.shape, options.mtp);
  uint64_t bytes = 0;
  for (const SynthTensor& tensor : tensors_of(tensor_table(options.shape, weights), options)) {
    bytes += tensor.plan.bytes();
  }
  return bytes;
}

Result<SynthReport> synthesise(const fs::path& destination, const SynthOptions& options,
                               FunctionRef<void(uint64_t, uint64_t)> progress) {
  LILY_TRY_VOID(check_layers(options.shape.layers));
  ModelWeights weights = empty_weights(options.shape, options.mtp);
  const std::vector<TensorSite> sites = tensor_table(options.shape, weights);
  const std::vector<SynthTensor> tensors = tensors_of(sites, options);
  std::vector<TensorPlan> plans;
  plans.reserve(tensors.size());
  for (const SynthTensor& tensor : tensors) {
    plans.push_back(tensor.plan);
  }
  LILY_TRY(StagedFolder folder, StagedFolder::create(destination));
  LILY_TRY(const std::vector<int32_t> stop_ids, write_tokenizer(options, folder));
  LILY_TRY_VOID(folder.write_file("config.json", config_json(options, sites, stop_ids)));
  const json::object generation{{"bos_token_id", stop_ids.back()},
                                {"do_sample", true},
                                {"eos_token_id", json::array(stop_ids.begin(), stop_ids.end())},
                                {"pad_token_id", stop_ids.back()},
                                {"temperature", 1.0},
                                {"top_k", 20},
                                {"top_p", 0.95}};
  LILY_TRY_VOID(folder.write_file("generation_config.json", json_pretty(generation, /*sorted=*/false)));
  LILY_TRY(CheckpointWriter writer, CheckpointWriter::create(folder.path(), std::move(plans)));
  LILY_TRY_VOID(write_tensors(tensors, writer, options, progress));
  LILY_TRY_VOID(writer.finish());
  LILY_TRY_VOID(folder.commit());
  const bool has_tokenizer = !options.tokenizer.empty() || options.shape.id == ShapeId::tiny;
  return SynthReport{writer.total_bytes(), has_tokenizer};
}

}  // namespace lily
