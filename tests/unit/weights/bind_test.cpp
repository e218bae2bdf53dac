#include "weights/bind.h"

#include <gmock/gmock.h>

#include <functional>

#include "tests/support/checkpoint_builder.h"
#include "weights/formats/affine.h"

namespace lily {
namespace {

using test::BuilderOptions;
using test::CheckpointBuilder;
using test::TempFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kLayer = "language_model.model.layers.";

std::string fault_of(const CheckpointBuilder& builder) {
  const TempFolder folder;
  builder.write(folder.path());
  const auto file = WeightFile::open(folder.path());
  return file ? "no fault" : file.error().text();
}

TEST(Bind, FillsEveryView) {
  const TempFolder folder;
  const CheckpointBuilder builder;
  builder.write(folder.path(), 3);
  const auto file = WeightFile::open(folder.path());
  ASSERT_TRUE(file) << file.error().text();
  EXPECT_EQ((*file)->shape().layers, 4U);
  EXPECT_EQ((*file)->bound_bytes(), (*file)->container().total_bytes());
  ModelWeights weights = (*file)->weights();
  EXPECT_FALSE(weights.mtp.has_value());
  for (const TensorSite& site : tensor_table((*file)->shape(), weights)) {
    if (const auto* matrix = std::get_if<AffineMatrix*>(&site.view)) {
      EXPECT_NE((*matrix)->codes, nullptr) << site.name;
      EXPECT_EQ((*matrix)->rows, site.rows) << site.name;
      EXPECT_EQ((*matrix)->cols, site.cols) << site.name;
      EXPECT_EQ((*matrix)->experts, site.experts) << site.name;
      EXPECT_EQ((*matrix)->bits, site.router_like ? 8U : 4U) << site.name;
    } else {
      EXPECT_EQ(std::get<DenseTensor*>(site.view)->count(), size_t{site.rows} * site.cols) << site.name;
    }
  }
  const auto& stored = builder.tensors.at("language_model.model.layers.1.mlp.gate.weight");
  EXPECT_EQ(std::memcmp(weights.layers[1].moe.router.codes, stored.data.data(), stored.data.size()), 0);
}

TEST(Bind, PlainPrefixMtpVisionAndEveryFloatType) {
  for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
    BuilderOptions options;
    options.prefix = "";
    options.mtp = true;
    options.float_type = type;
    CheckpointBuilder builder(options);
    builder.tensors["vision_tower.pos_embed.weight"] = {"BF16", {1}, "vv"};
    builder.tensors["model.visual.blocks.0.norm1.bias"] = {"BF16", {1}, "vv"};
    builder.tensors["visual.blocks.0.norm1.bias"] = {"BF16", {1}, "vv"};
    const TempFolder folder;
    builder.write(folder.path());
    const auto file = WeightFile::open(folder.path());
    ASSERT_TRUE(file) << file.error().text();
    EXPECT_TRUE((*file)->weights().mtp.has_value());
    EXPECT_EQ((*file)->weights().embed.table.scale_type, type);
    EXPECT_EQ((*file)->bound_bytes() + 6, (*file)->container().total_bytes());
  }
}

TEST(Bind, MtpMayLackThePrefix) {
  BuilderOptions options;
  options.mtp = true;
  CheckpointBuilder builder(options);
  test::BuiltTensors renamed;
  for (auto& [name, tensor] : builder.tensors) {
    const bool mtp = name.starts_with("language_model.mtp.");
    renamed[mtp ? name.substr(15) : name] = std::move(tensor);
  }
  builder.tensors = std::move(renamed);
  EXPECT_EQ(fault_of(builder), "no fault");
}

TEST(Bind, AModuleMayHaveItsOwnFormat) {
  for (const uint32_t group : {32U, 64U, 128U}) {
    CheckpointBuilder builder;
    const std::string path = std::string(kLayer) + "0.linear_attn.in_proj_z";
    for (const char* key : {"quantization", "quantization_config"}) {
      builder.config[key].as_object()[path] = {{"group_size", group}, {"bits", 8}, {"mode", "affine"}};
    }
    const uint64_t rows = kTiny.value_width();
    builder.tensors[path + ".weight"] = {
        "U32", {rows, kTiny.hidden / 4}, std::string(rows * kTiny.hidden, 'q')};
    for (const char* part : {".scales", ".biases"}) {
      const uint64_t groups = kTiny.hidden / group;
      builder.tensors[path + part] = {"BF16", {rows, groups}, std::string(rows * groups * 2, 's')};
    }
    EXPECT_EQ(fault_of(builder), "no fault");
  }
}

struct Fault {
  const char* name;
  std::function<void(CheckpointBuilder&)> make;
  std::vector<std::string> messages;
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class FaultyCheckpoint : public ::testing::TestWithParam<Fault> {};
TEST_P(FaultyCheckpoint, IsRefusedWithItsOwnMessage) {
  CheckpointBuilder builder;
  ASSERT_EQ(fault_of(builder), "no fault");
  GetParam().make(builder);
  const std::string fault = fault_of(builder);
  for (const std::string& message : GetParam().messages) {
    EXPECT_THAT(fault, HasSubstr(message));
  }
}

std::vector<Fault> faults() {
  const std::string layer = kLayer;
  return {
      {"absent",
       [=](auto& b) { b.tensors.erase(layer + "0.linear_attn.A_log"); },
       {"'language_model.model.layers.0.linear_attn.A_log': expected BF16, F16 or F32 [8], found nothing"}},
      {"absent_scales",
       [=](auto& b) { b.tensors.erase("language_model.lm_head.scales"); },
       {"'language_model.lm_head.scales': expected BF16, F16 or F32 [8192,4], found nothing"}},
      {"extra",
       [=](auto& b) {
         b.tensors[layer + "4.input_layernorm.weight"] = {"BF16", {1}, "xx"};
       },
       {"'language_model.model.layers.4.input_layernorm.weight': unexpected, found 'BF16' [1]"}},
      {"extra_bias",
       [=](auto& b) {
         b.tensors[layer + "3.self_attn.q_proj.bias"] = {"BF16", {1}, "xx"};
       },
       {"q_proj.bias': unexpected"}},
      {"shape",
       [=](auto& b) {
         b.tensors[layer + "3.self_attn.q_norm.weight"] = {"BF16", {128}, std::string(256, 'x')};
       },
       {"q_norm.weight': expected BF16, F16 or F32 [256], found 'BF16' [128]"}},
      {"rank",
       [=](auto& b) {
         b.tensors[layer + "3.self_attn.q_norm.weight"].shape = {1, 256};
       },
       {"q_norm.weight': expected BF16, F16 or F32 [256], found 'BF16' [1,256]"}},
      {"dense_type",
       [=](auto& b) {
         b.tensors[layer + "0.linear_attn.dt_bias"] = {"I16", {8}, std::string(16, 'x')};
       },
       {"dt_bias': expected BF16, F16 or F32 [8], found 'I16' [8]"}},
      {"code_type",
       [=](auto& b) { b.tensors["language_model.lm_head.weight"].type = "I32"; },
       {"lm_head.weight': expected U32 [8192,32], found 'I32' [8192,32]"}},
      {"not_quantised",
       [=](auto& b) {
         b.tensors[layer + "0.mlp.shared_expert_gate.weight"] = {"BF16", {1, 256}, std::string(512, 'x')};
       },
       {"found 'BF16' [1,256] (not quantised: 'lily convert' quantises"}},
      {"scale_types_differ",
       [=](auto& b) { b.tensors[layer + "0.linear_attn.in_proj_a.biases"].type = "F16"; },
       {"in_proj_a': scales are BF16, biases F16: expected the same type"}},
      {"conv_published",
       [=](auto& b) {
         b.tensors[layer + "0.linear_attn.conv1d.weight"].shape = {2048, 1, 4};
       },
       {"conv1d.weight': expected BF16, F16 or F32 [2048,4,1], found 'BF16' [2048,1,4] (the published "
        "layout"}},
      {"override_missing",
       [=](auto& b) {
         for (const char* key : {"quantization", "quantization_config"}) {
           b.config[key].as_object().erase(layer + "0.mlp.gate");
         }
       },
       {"mlp.gate.weight': expected U32 [32,32], found 'U32' [32,64]"}},
      {"group_does_not_divide",
       [=](auto& b) {
         for (const char* key : {"quantization", "quantization_config"}) {
           b.config[key].as_object()[layer + "0.mlp.switch_mlp.down_proj"] = {{"group_size", 128},
                                                                              {"bits", 4}};
         }
       },
       {"down_proj': groups of 128 do not divide its 64 columns"}},
      {"several",
       [=](auto& b) {
         b.tensors.erase(layer + "0.linear_attn.A_log");
         b.tensors.erase(layer + "1.linear_attn.A_log");
         b.tensors["stray"] = {"U8", {1}, "x"};
       },
       {"3 faults", "layers.0.linear_attn.A_log", "layers.1.linear_attn.A_log", "'stray': unexpected"}},
      {"layer_kind_swapped",
       [=](auto& b) {
         auto node = b.tensors.extract(layer + "3.self_attn.k_norm.weight");
         node.key() = layer + "2.self_attn.k_norm.weight";
         b.tensors.insert(std::move(node));
       },
       {"layers.3.self_attn.k_norm.weight': expected", "layers.2.self_attn.k_norm.weight': unexpected"}},
      {"half_mtp",
       [=](auto& b) {
         b.tensors["language_model.mtp.norm.weight"] = {"BF16", {256}, std::string(512, 'x')};
       },
       {"'language_model.mtp.fc.weight': expected U32 [256,64], found nothing"}},
      {"fewer_layers_than_tensors",
       [=](auto& b) {
         b.text_config()["num_hidden_layers"] = 8;
         b.text_config().erase("layer_types");
       },
       {"layers.4.input_layernorm.weight': expected", "layers.7."}},
      {"no_quantization",
       [=](auto& b) {
         b.config.erase("quantization");
         b.config.erase("quantization_config");
       },
       {"config.json has no quantization entry", "lily convert"}},
      {"published_layout",
       [=](auto& b) {
         b.tensors["model.language_model.norm.weight"] = {"BF16", {1}, "xx"};
       },
       {"published layout", "lily convert"}},
      {"no_config", [=](auto& b) { b.config = {}; }, {"model_type: expected", "hidden_size: expected"}},
  };
}
INSTANTIATE_TEST_SUITE_P(All, FaultyCheckpoint, ::testing::ValuesIn(faults()),
                         [](const auto& param) { return param.param.name; });

TEST(Bind, AFolderWithoutAConfigurationIsNamed) {
  const TempFolder folder;
  const auto file = WeightFile::open(folder.path());
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error().message, AllOf(HasSubstr("config.json"), HasSubstr("No such file")));
  EXPECT_THAT(WeightFile::open(folder.path() / "x").error().message, HasSubstr("no such folder"));
}

}  // namespace
}  // namespace lily
