#include "weights/convert.h"

#include <gmock/gmock.h>

#include <functional>

#include "tests/support/checkpoint_builder.h"
#include "weights/bind.h"
#include "weights/formats/affine.h"
#include "weights/published.h"
#include "weights/quantize.h"

namespace lily {
namespace {

namespace json = boost::json;
using test::BuiltTensor;
using test::BuiltTensors;
using test::TempFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kNoProgress = [](uint64_t, uint64_t) {};

struct PublishedOptions {
  DType type = DType::bf16;
  bool nested = true;  // model.language_model.X, as in the multimodal checkpoint
  bool fused = true;   // experts of the layers
  bool mtp = true;
  bool mtp_fused = true;
};

// A small checkpoint in the published layout, and the weights it was made of by the names of the model's
// table.
class PublishedBuilder {
 public:
  explicit PublishedBuilder(const PublishedOptions& options = {}) : options_(options) {
    config = test::CheckpointBuilder().config;
    config.erase("quantization");
    config.erase("quantization_config");
    config["vision_config"] = {{"depth", 27}};
    config["image_token_id"] = 248056;
    ModelWeights model = empty_weights(kShape, options.mtp);
    for (const TensorSite& site : tensor_table(kShape, model)) {
      add(site);
    }
    tensors["model.visual.pos_embed.weight"] = {"BF16", {2, 1}, "vvvv"};
  }

  static constexpr Shape kShape = kTiny.with_layers(4);
  json::object config;
  BuiltTensors tensors;
  std::map<std::string, std::vector<float>> weights;  // as stored

  void write(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    test::write_file(folder / "config.json", json::serialize(config));
    test::write_file(folder / "model.safetensors", test::safetensors_image(tensors));
    test::write_file(folder / "generation_config.json", R"({"eos_token_id":[2,0]})");
    test::write_file(folder / "tokenizer.json", "{}");
    test::write_file(folder / "README.md", "not copied");
  }

  std::string name_of(const std::string& name) const {
    return options_.nested && name.starts_with("model.") ? "model.language_model." + name.substr(6) : name;
  }

 private:
  std::string stored(std::span<const float> values) const {
    std::string out(values.size() * size_of(options_.type), '\0');
    store_floats(values, options_.type, std::as_writable_bytes(std::span(out)));
    return out;
  }

  void put(const std::string& name, std::vector<uint64_t> shape, std::span<const float> values) {
    tensors[name] = {std::string(to_string(options_.type)), std::move(shape), stored(values)};
  }

  void add(const TensorSite& site) {
    std::vector<float> values(size_t{site.experts} * site.rows * site.cols);
    for (float& value : values) {
      state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
      value = static_cast<float>(static_cast<int64_t>(state_) >> 40) * 0x1p-25F;  // [-0.25, 0.25)
      if (options_.type != DType::f32) {
        value = bf16_to_float(float_to_bf16(value));
      }
    }
    const std::string path = name_of(site.name);
    if (std::holds_alternative<DenseTensor*>(site.view)) {
      const auto shape =
          site.cols > 1 ? std::vector<uint64_t>{site.rows, 1, site.cols} : std::vector<uint64_t>{site.rows};
      put(path + site.suffix, shape, values);
    } else if (site.experts == 1) {
      put(path + ".weight", {site.rows, site.cols}, values);
    } else {
      add_experts(site, path, values);
    }
    weights[site.name] = std::move(values);
  }

  void add_experts(const TensorSite& site, const std::string& path, const std::vector<float>& values) {
    const size_t at = path.find(".switch_mlp.");
    const std::string experts = path.substr(0, at) + ".experts";
    const std::string projection = path.substr(at + 12);
    const size_t each = size_t{site.rows} * site.cols;
    if (!(site.name.starts_with("mtp.") ? options_.mtp_fused : options_.fused)) {
      for (uint32_t e = 0; e < site.experts; ++e) {
        put(experts + "." + std::to_string(e) + "." + projection + ".weight", {site.rows, site.cols},
            std::span(values).subspan(e * each, each));
      }
    } else if (projection == "down_proj") {
      put(experts + ".down_proj", {site.experts, site.rows, site.cols}, values);
    } else if (projection == "gate_proj") {
      gate_ = values;
    } else {
      std::vector<float> both;
      for (uint32_t e = 0; e < site.experts; ++e) {
        for (const std::vector<float>* part : {static_cast<const std::vector<float>*>(&gate_), &values}) {
          both.insert(both.end(), part->begin() + static_cast<ptrdiff_t>(e * each),
                      part->begin() + static_cast<ptrdiff_t>((e + 1) * each));
        }
      }
      put(experts + ".gate_up_proj", {site.experts, 2 * site.rows, site.cols}, both);
    }
  }

  PublishedOptions options_;
  std::vector<float> gate_;
  uint64_t state_ = 1;
};

// What the converter has to make of the weights of `site`.
void expect_matrix(const TensorSite& site, const AffineMatrix& made, std::vector<float> weights,
                   DType stored) {
  const QuantFormat format = site.router_like ? QuantFormat{8, 64} : QuantFormat{4, 64};
  ASSERT_EQ(made.bits, format.bits) << site.name;
  ASSERT_EQ(made.group, format.group) << site.name;
  ASSERT_EQ(made.scale_type, stored) << site.name;
  const size_t groups = weights.size() / format.group;
  std::vector<std::byte> codes(weights.size() * format.bits / 8);
  std::vector<float> scales(groups);
  std::vector<float> biases(groups);
  quantize_groups(weights, format, codes, scales, biases);
  EXPECT_EQ(std::memcmp(made.codes, codes.data(), codes.size()), 0) << site.name;
  std::vector<std::byte> bytes(groups * size_of(stored));
  store_floats(scales, stored, bytes);
  EXPECT_EQ(std::memcmp(made.scales, bytes.data(), bytes.size()), 0) << site.name;
  store_floats(biases, stored, bytes);
  EXPECT_EQ(std::memcmp(made.biases, bytes.data(), bytes.size()), 0) << site.name;
}

float rounded(float value, DType type) {
  std::byte bytes[4];
  store_floats({&value, 1}, type, std::span(bytes).first(size_of(type)));
  return load_float(bytes, type, 0);
}

void expect_converted(const PublishedBuilder& builder, const std::filesystem::path& folder, DType source,
                      DType stored) {
  const auto file = WeightFile::open(folder);
  ASSERT_TRUE(file) << file.error().text();
  ModelWeights weights = (*file)->weights();
  for (const TensorSite& site : tensor_table((*file)->shape(), weights)) {
    std::vector<float> expected = builder.weights.at(site.name);
    const DType type = site.name.ends_with(".A_log") ? source : stored;
    for (float& value : expected) {
      value = rounded(site.zero_centred_norm ? rounded(value + 1.0F, source) : value, type);
    }
    if (const auto* dense = std::get_if<DenseTensor*>(&site.view)) {
      EXPECT_EQ((*dense)->type, type) << site.name;
      EXPECT_EQ((*dense)->to_floats(), expected) << site.name;
    } else {
      expect_matrix(site, *std::get<AffineMatrix*>(site.view), std::move(expected), stored);
    }
  }
}

TEST(Convert, EveryFormOfThePublishedLayout) {
  for (const PublishedOptions& options : {PublishedOptions{}, PublishedOptions{.mtp_fused = false},
                                          PublishedOptions{.nested = false, .fused = false, .mtp = false},
                                          PublishedOptions{.fused = false, .mtp_fused = true}}) {
    const PublishedBuilder builder(options);
    const TempFolder folder;
    builder.write(folder.path() / "in");
    const auto report = convert_checkpoint(folder.path() / "in", folder.path() / "out", {}, kNoProgress);
    ASSERT_TRUE(report) << report.error().text();
    EXPECT_EQ(report->mtp, options.mtp);
    EXPECT_EQ(report->ignored_bytes, 4U);
    expect_converted(builder, folder.path() / "out", DType::bf16, DType::bf16);
  }
}

TEST(Convert, FloatTypesAndCasts) {
  struct Case {
    DType source;
    const char* dtype;
    DType stored;
  };
  for (const Case& c : {Case{DType::f32, "bfloat16", DType::bf16}, Case{DType::f32, "float32", DType::f32},
                        Case{DType::f32, "", DType::f32}, Case{DType::f16, "float16", DType::f16}}) {
    PublishedBuilder builder(PublishedOptions{.type = c.source});
    builder.config["text_config"].as_object()["dtype"] = c.dtype;
    const TempFolder folder;
    builder.write(folder.path() / "in");
    const auto report = convert_checkpoint(folder.path() / "in", folder.path() / "out", {}, kNoProgress);
    ASSERT_TRUE(report) << report.error().text();
    expect_converted(builder, folder.path() / "out", c.source, c.stored);
  }
}

TEST(Convert, ConfigurationAndOtherFiles) {
  const PublishedBuilder builder;
  const TempFolder folder;
  builder.write(folder.path() / "in");
  uint64_t last = 0;
  const auto report =
      convert_checkpoint(folder.path() / "in", folder.path() / "out", {}, [&](uint64_t done, uint64_t total) {
        EXPECT_LE(done, total);
        last = done;
      });
  ASSERT_TRUE(report) << report.error().text();
  EXPECT_EQ(last, report->read_bytes);
  const json::object config = json::parse(test::read_file(folder.path() / "out" / "config.json")).as_object();
  EXPECT_EQ(config.at("text_config"), builder.config.at("text_config"));
  EXPECT_EQ(config.at("image_token_id"), 248056);
  EXPECT_FALSE(config.contains("vision_config"));
  EXPECT_EQ(config.at("quantization"), config.at("quantization_config"));
  const json::object& quantization = config.at("quantization").as_object();
  EXPECT_EQ(quantization.size(), 3U + 2 * (4 + 1));
  EXPECT_EQ(quantization.at("language_model.model.layers.3.mlp.gate"),
            (json::object{{"group_size", 64}, {"bits", 8}}));
  EXPECT_TRUE(quantization.contains("language_model.mtp.layers.0.mlp.shared_expert_gate"));
  EXPECT_EQ(test::read_file(folder.path() / "out" / "tokenizer.json"), "{}");
  EXPECT_TRUE(read_generation_config(folder.path() / "out", kTiny));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out" / "README.md"));
}

TEST(Convert, TheNumberOfThreadsChangesNothing) {
  const PublishedBuilder builder;
  const TempFolder folder;
  builder.write(folder.path() / "in");
  for (const unsigned threads : {1U, 4U}) {
    const auto out = folder.path() / std::to_string(threads);
    ASSERT_TRUE(convert_checkpoint(folder.path() / "in", out, ConvertOptions{{8, 32}, threads, nullptr},
                                   kNoProgress));
  }
  EXPECT_EQ(test::read_file(folder.path() / "1" / "model.safetensors"),
            test::read_file(folder.path() / "4" / "model.safetensors"));
  EXPECT_TRUE(WeightFile::open(folder.path() / "1"));
}

struct Fault {
  const char* name;
  std::function<void(PublishedBuilder&)> make;
  const char* message;
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class FaultyPublished : public ::testing::TestWithParam<Fault> {};
TEST_P(FaultyPublished, IsRefusedAndLeavesNothing) {
  PublishedBuilder builder;
  GetParam().make(builder);
  const TempFolder folder;
  builder.write(folder.path() / "in");
  const auto report = convert_checkpoint(folder.path() / "in", folder.path() / "out", {}, kNoProgress);
  ASSERT_FALSE(report);
  EXPECT_THAT(report.error().text(), HasSubstr(GetParam().message));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

std::vector<Fault> faults() {
  const std::string layer = "model.language_model.layers.0.";
  const auto poke = [=](PublishedBuilder& b, const std::string& name, size_t index, uint16_t bits) {
    std::memcpy(b.tensors.at(name).data.data() + 2 * index, &bits, 2);
  };
  return {
      {"absent", [=](auto& b) { b.tensors.erase(layer + "mlp.gate.weight"); },
       "'model.language_model.layers.0.mlp.gate.weight': expected BF16, F16 or F32 [32,256], found nothing"},
      {"absent_experts", [=](auto& b) { b.tensors.erase(layer + "mlp.experts.gate_up_proj"); },
       "'model.language_model.layers.0.mlp.experts.gate_up_proj': expected BF16, F16 or F32 [32,128,256], "
       "found nothing"},
      {"extra",
       [=](auto& b) {
         b.tensors[layer + "mlp.gate.bias"] = {"BF16", {1}, "xx"};
       },
       "'model.language_model.layers.0.mlp.gate.bias': unexpected, found 'BF16' [1]"},
      {"shape",
       [=](auto& b) {
         b.tensors[layer + "mlp.experts.down_proj"].shape = {32, 64, 256};
       },
       "expected BF16, F16 or F32 [32,256,64], found 'BF16' [32,64,256]"},
      {"type", [=](auto& b) { b.tensors[layer + "mlp.gate.weight"].type = "I16"; }, "found 'I16' [32,256]"},
      {"conv_moved",
       [=](auto& b) {
         b.tensors[layer + "linear_attn.conv1d.weight"].shape = {2048, 4, 1};
       },
       "expected BF16, F16 or F32 [2048,1,4], found 'BF16' [2048,4,1]"},
      {"quantised",
       [=](auto& b) {
         b.config["quantization"] = {{"group_size", 64}, {"bits", 4}};
       },
       "quantised already"},
      {"other_layout",
       [=](auto& b) {
         b.tensors.clear();
         b.tensors["language_model.lm_head.weight"] = {"BF16", {1}, "xx"};
       },
       "not named as in the published layout"},
      {"not_a_number",
       [=](auto& b) { poke(b, layer + "mlp.experts.gate_up_proj", 256 * 128 + 256 * 70 + 3, 0x7fc0); },
       "'model.language_model.layers.0.mlp.experts.gate_up_proj': the value at expert 1, row 70, column 3 is "
       "not finite"},
      {"infinite", [=](auto& b) { poke(b, layer + "input_layernorm.weight", 5, 0xff80); },
       "'model.language_model.layers.0.input_layernorm.weight': the value at expert 0, row 5, column 0 is "
       "not finite"},
      {"too_large",
       [=](auto& b) {
         poke(b, "lm_head.weight", 0, 0x7f7f);
         poke(b, "lm_head.weight", 1, 0xff7f);
       },
       "'lm_head.weight': values of expert 0, row 0 or after it are too large for BF16 scales"},
      {"other_shape", [=](auto& b) { b.config["text_config"].as_object()["num_experts"] = 64; },
       "num_experts: expected 32, found 64"},
  };
}
INSTANTIATE_TEST_SUITE_P(All, FaultyPublished, ::testing::ValuesIn(faults()),
                         [](const auto& param) { return param.param.name; });

TEST(Convert, MixedExpertTypes) {
  PublishedBuilder builder(PublishedOptions{.fused = false});
  const std::string name = "model.language_model.layers.1.mlp.experts.3.up_proj.weight";
  builder.tensors.at(name).type = "F16";
  const TempFolder folder;
  builder.write(folder.path() / "in");
  const auto report = convert_checkpoint(folder.path() / "in", folder.path() / "out", {}, kNoProgress);
  ASSERT_FALSE(report);
  EXPECT_THAT(report.error().text(), HasSubstr("its experts are BF16 and F16: expected one type"));
}

TEST(Convert, DestinationAndOptionFaults) {
  const PublishedBuilder builder;
  const TempFolder folder;
  builder.write(folder.path() / "in");
  const auto fault = [&](const std::filesystem::path& to, const ConvertOptions& options) {
    const auto report = convert_checkpoint(folder.path() / "in", to, options, kNoProgress);
    return report ? "no fault" : report.error().text();
  };
  EXPECT_THAT(fault(folder.path() / "in", {}), HasSubstr("exists and is not empty"));
  EXPECT_THAT(fault(folder.path() / "out", ConvertOptions{{4, 128}, 0, nullptr}),
              HasSubstr("groups of 128 do not divide the 64 columns"));
  const std::atomic<bool> cancel{true};
  ConvertOptions cancelled;
  cancelled.cancel = &cancel;
  EXPECT_THAT(fault(folder.path() / "out", cancelled), HasSubstr("cancelled"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  EXPECT_THAT(
      convert_checkpoint(folder.path() / "no", folder.path() / "out", {}, kNoProgress).error().message,
      HasSubstr("config.json"));
}

}  // namespace
}  // namespace lily
