#include "weights/config.h"

#include <gmock/gmock.h>

#include <functional>

#include "tests/support/checkpoint_builder.h"

namespace lily {
namespace {

using test::CheckpointBuilder;
using test::TempFolder;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace json = boost::json;

std::string fault_of(const json::object& config) {
  const auto parsed = parse_model_config(json::serialize(config));
  return parsed ? "no fault" : parsed.error().text();
}

json::object tiny_config() { return CheckpointBuilder().config; }

// The published configuration, cut to what matters here (facts: 1.1).
json::object published_config() {
  test::BuilderOptions options;
  options.shape = kTiny;
  json::object config = tiny_config();
  json::object& text = config["text_config"].as_object();
  text["vocab_size"] = 248320;
  text["hidden_size"] = 2048;
  text["num_attention_heads"] = 16;
  text["num_key_value_heads"] = 2;
  text["linear_num_key_heads"] = 16;
  text["linear_num_value_heads"] = 32;
  text["num_experts"] = 256;
  text["moe_intermediate_size"] = 512;
  text["shared_expert_intermediate_size"] = 512;
  return config;
}

TEST(ModelConfig, Tiny) {
  const auto config = parse_model_config(json::serialize(tiny_config()));
  ASSERT_TRUE(config) << config.error().text();
  EXPECT_EQ(config->shape.id, ShapeId::tiny);
  EXPECT_EQ(config->shape.layers, 4U);
  EXPECT_TRUE(config->quantized);
  EXPECT_EQ(config->format, (QuantFormat{4, 64}));
  EXPECT_EQ(config->format_of("language_model.model.layers.0.mlp.gate"), (QuantFormat{8, 64}));
  EXPECT_EQ(config->format_of("model.layers.0.mlp.gate"), (QuantFormat{8, 64}));
  EXPECT_EQ(config->format_of("language_model.lm_head"), (QuantFormat{4, 64}));
}

TEST(ModelConfig, FullShapeAndLayerCount) {
  for (const uint32_t layers : {4U, 8U, 40U}) {
    json::object config = published_config();
    config["text_config"].as_object()["num_hidden_layers"] = layers;
    config["text_config"].as_object().erase("layer_types");
    const auto parsed = parse_model_config(json::serialize(config));
    ASSERT_TRUE(parsed) << parsed.error().text();
    EXPECT_EQ(parsed->shape.id, ShapeId::qwen36);
    EXPECT_EQ(parsed->shape.layers, layers);
  }
}

TEST(ModelConfig, FlatUnquantisedAndUnknownKeys) {
  json::object config = tiny_config()["text_config"].as_object();
  config["surprise"] = {{"nested", {1, 2, 3}}};
  config["dtype"] = "bfloat16";
  config["vision_config"] = nullptr;
  const auto parsed = parse_model_config(json::serialize(config));
  ASSERT_TRUE(parsed) << parsed.error().text();
  EXPECT_FALSE(parsed->quantized);
}

TEST(ModelConfig, OlderRopeKeysBesideTheSizes) {
  json::object config = tiny_config();
  json::object& text = config["text_config"].as_object();
  text.erase("rope_parameters");
  text["rope_theta"] = 1e7;
  text["partial_rotary_factor"] = 0.25;
  text["rope_scaling"] = nullptr;
  EXPECT_EQ(fault_of(config), "no fault");
}

TEST(ModelConfig, EveryModuleMayBeOverridden) {
  json::object config = tiny_config();
  config.erase("quantization_config");
  json::object& quantization = config["quantization"].as_object();
  quantization["group_size"] = 32;
  quantization["bits"] = 8;
  quantization.erase("mode");
  quantization["lm_head"] = {{"group_size", 128}, {"bits", 4}, {"mode", "affine"}};
  quantization["vision_tower.blocks.0.attn.qkv"] = false;
  quantization["language_model.model.embed_tokens"] = true;
  const auto parsed = parse_model_config(json::serialize(config));
  ASSERT_TRUE(parsed) << parsed.error().text();
  EXPECT_EQ(parsed->format, (QuantFormat{8, 32}));
  EXPECT_EQ(parsed->format_of("language_model.lm_head"), (QuantFormat{4, 128}));
  EXPECT_EQ(parsed->format_of("language_model.model.embed_tokens"), (QuantFormat{8, 32}));
}

TEST(ModelConfig, AnotherShapeIsRefusedWithEveryDifference) {
  json::object config = published_config();
  json::object& text = config["text_config"].as_object();
  text["hidden_size"] = 4096;
  text["num_experts"] = 512;
  text["head_dim"] = nullptr;
  const auto parsed = parse_model_config(json::serialize(config));
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().kind, ErrorKind::unsupported);
  EXPECT_THAT(parsed.error().message, HasSubstr("not a shape that lily runs (the closest is qwen36)"));
  EXPECT_THAT(parsed.error().details,
              ElementsAre("hidden_size: expected 2048, found 4096", "head_dim: expected 256, found nothing",
                          "num_experts: expected 256, found 512"));
}

struct Fault {
  const char* name;
  std::function<void(json::object& root, json::object& text)> make;
  const char* message;
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class FaultyConfig : public ::testing::TestWithParam<Fault> {};
TEST_P(FaultyConfig, IsRefusedWithItsOwnMessage) {
  json::object config = tiny_config();
  ASSERT_EQ(fault_of(config), "no fault");
  GetParam().make(config, config["text_config"].as_object());
  EXPECT_THAT(fault_of(config), HasSubstr(GetParam().message));
}

std::vector<Fault> shape_faults() {
  return {
      {"model_type", [](auto& root, auto&) { root["model_type"] = "llama"; },
       "model_type: expected \"qwen3_5_moe\", found \"llama\""},
      {"text_config", [](auto& root, auto&) { root["text_config"] = 3; },
       "text_config: expected an object, found 3"},
      {"size_is_text", [](auto&, auto& text) { text["hidden_size"] = "256"; },
       "hidden_size: expected 256, found \"256\""},
      {"layers_absent", [](auto&, auto& text) { text.erase("num_hidden_layers"); },
       "num_hidden_layers: expected a number, found nothing"},
      {"layers_not_multiple", [](auto&, auto& text) { text["num_hidden_layers"] = 6; },
       "expected a multiple of 4 from 4 to 40, found 6"},
      {"layers_too_many", [](auto&, auto& text) { text["num_hidden_layers"] = 44; }, "found 44"},
      {"layers_overflow", [](auto&, auto& text) { text["num_hidden_layers"] = 4294967300; },
       "num_hidden_layers: expected a number, found 4294967300"},
      {"layer_types_length", [](auto&, auto& text) { text["layer_types"].as_array().pop_back(); },
       "layer_types: expected 4 entries, found 3"},
      {"layer_types_order", [](auto&, auto& text) { text["layer_types"].as_array()[1] = "full_attention"; },
       "layer_types[1]: expected \"linear_attention\", found \"full_attention\""},
      {"interval", [](auto&, auto& text) { text["full_attention_interval"] = 2; },
       "full_attention_interval: expected 4, found 2"},
      {"eps", [](auto&, auto& text) { text["rms_norm_eps"] = 1e-5; },
       "rms_norm_eps: expected 1e-06, found 1E-5"},
      {"act", [](auto&, auto& text) { text["hidden_act"] = "gelu"; },
       "hidden_act: expected \"silu\", found \"gelu\""},
      {"attention_bias", [](auto&, auto& text) { text["attention_bias"] = true; },
       "attention_bias: expected false, found true"},
      {"output_gate", [](auto&, auto& text) { text["attn_output_gate"] = false; },
       "attn_output_gate: expected true, found false"},
      {"tied", [](auto& root, auto&) { root["tie_word_embeddings"] = true; },
       "tie_word_embeddings: expected false, found true"},
      {"theta", [](auto&, auto& text) { text["rope_parameters"].as_object()["rope_theta"] = 10000; },
       "rope_theta: expected 10000000, found 10000"},
      {"theta_absent", [](auto&, auto& text) { text.erase("rope_parameters"); },
       "rope_theta: expected 10000000, found nothing"},
      {"rotary", [](auto&, auto& text) { text["rope_parameters"].as_object()["partial_rotary_factor"] = 1; },
       "partial_rotary_factor: expected 0.25, found 1"},
      {"yarn", [](auto&, auto& text) { text["rope_parameters"].as_object()["rope_type"] = "yarn"; },
       "rope_type: expected \"default\" (lily runs the model's native context), found \"yarn\""},
      {"rope_not_object", [](auto&, auto& text) { text["rope_parameters"] = 1; },
       "rope_parameters: expected an object, found 1"},
      {"dense_layers", [](auto&, auto& text) { text["mlp_only_layers"] = json::array{0}; },
       "mlp_only_layers: expected [], found [0]"},
      {"topk_not_normalised", [](auto&, auto& text) { text["norm_topk_prob"] = false; },
       "norm_topk_prob: expected true, found false"},
      {"two_mtp_layers", [](auto&, auto& text) { text["mtp_num_hidden_layers"] = 2; },
       "mtp_num_hidden_layers: expected 0 or 1, found 2"},
  };
}
std::vector<Fault> quantization_faults() {
  const auto set = [](json::object& root, const char* key, json::value value) {
    for (const char* copy : {"quantization", "quantization_config"}) {
      root[copy].as_object()[key] = value;
    }
  };
  return {
      {"bits", [=](auto& root, auto&) { set(root, "bits", 3); },
       "quantization.bits: expected 4 or 8, found 3"},
      {"group", [=](auto& root, auto&) { set(root, "group_size", 16); },
       "quantization.group_size: expected 32, 64 or 128, found 16"},
      {"mode", [=](auto& root, auto&) { set(root, "mode", "mxfp4"); },
       "quantization.mode: expected \"affine\", found \"mxfp4\""},
      {"no_group", [=](auto& root, auto&) { set(root, "group_size", nullptr); },
       "quantization.group_size: expected 32, 64 or 128, found nothing"},
      {"not_object", [](auto& root, auto&) { root["quantization"] = "4bit"; },
       "quantization: expected an object, found \"4bit\""},
      {"override_bits",
       [=](auto& root, auto&) {
         set(root, "lm_head", {{"group_size", 64}, {"bits", 6}});
       },
       "quantization.lm_head.bits: expected 4 or 8, found 6"},
      {"override_off", [=](auto& root, auto&) { set(root, "language_model.model.layers.0.mlp.gate", false); },
       "'language_model.model.layers.0.mlp.gate': the module is left unquantised"},
      {"fp8",
       [](auto& root, auto&) {
         root.erase("quantization");
         root["quantization_config"] = {{"quant_method", "fp8"}, {"fmt", "e4m3"}};
       },
       "quantization_config.quant_method: \"fp8\" is not read"},
      {"disagree", [](auto& root, auto&) { root["quantization_config"].as_object()["group_size"] = 32; },
       "quantization and quantization_config differ"},
  };
}
INSTANTIATE_TEST_SUITE_P(Shape, FaultyConfig, ::testing::ValuesIn(shape_faults()),
                         [](const auto& param) { return param.param.name; });
INSTANTIATE_TEST_SUITE_P(Quantization, FaultyConfig, ::testing::ValuesIn(quantization_faults()),
                         [](const auto& param) { return param.param.name; });

TEST(ModelConfig, WhatIsNotJson) {
  EXPECT_THAT(parse_model_config("").error().message, HasSubstr("config.json: not valid JSON at byte 0"));
  EXPECT_THAT(parse_model_config("[1]").error().message,
              HasSubstr("config.json: expected a JSON object, found [1]"));
  EXPECT_THAT(parse_model_config("{\"a\":1,\"a\":2}").error().message,
              HasSubstr("the key 'a' is there twice"));
  EXPECT_THAT(parse_model_config(std::string(size_t{17} << 20, ' ')).error().message, HasSubstr("at most"));
  std::string many = "{\"a\":[0";
  for (int i = 0; i < 1'000'001; ++i) {
    many += ",0";
  }
  EXPECT_THAT(parse_model_config(many + "]}").error().message, HasSubstr("more than 1000000 values"));
}

TEST(GenerationConfig, AsPublished) {
  const auto config = parse_generation_config(
      R"({"bos_token_id":248044,"do_sample":true,"eos_token_id":[248046,248044],"pad_token_id":248044,
          "temperature":1.0,"top_k":20,"top_p":0.95,"transformers_version":"4.57.0.dev0"})");
  ASSERT_TRUE(config) << config.error().text();
  EXPECT_THAT(config->stop_ids, ElementsAre(248046, 248044));
  EXPECT_EQ(config->temperature, 1.0F);
  EXPECT_EQ(config->top_p, 0.95F);
  EXPECT_EQ(config->top_k, 20U);
  EXPECT_TRUE(config->do_sample);
  EXPECT_FALSE(config->min_p.has_value());
  EXPECT_FALSE(config->presence_penalty.has_value());
}

TEST(GenerationConfig, OneStopIdNullsAndRepeats) {
  const auto config = parse_generation_config(
      R"({"eos_token_id":7,"temperature":null,"do_sample":false,"min_p":0.05,"presence_penalty":1.5,"repetition_penalty":1})");
  ASSERT_TRUE(config) << config.error().text();
  EXPECT_THAT(config->stop_ids, ElementsAre(7));
  EXPECT_FALSE(config->temperature.has_value());
  EXPECT_FALSE(config->do_sample);
  EXPECT_EQ(config->min_p, 0.05F);
  EXPECT_THAT(parse_generation_config(R"({"eos_token_id":[7,7,3]})")->stop_ids, ElementsAre(7, 3));
}

TEST(GenerationConfig, Faults) {
  const auto fault = [](std::string_view text) {
    const auto config = parse_generation_config(text);
    return config ? "no fault" : config.error().text();
  };
  EXPECT_THAT(fault("{}"), HasSubstr("eos_token_id: expected a token id or a list of them, found nothing"));
  EXPECT_THAT(fault(R"({"eos_token_id":[]})"), HasSubstr("expected 1 to 64 token ids, found 0"));
  EXPECT_THAT(fault(R"({"eos_token_id":-1})"), HasSubstr("eos_token_id: -1 is not a token id"));
  EXPECT_THAT(fault(R"({"eos_token_id":2147483648})"), HasSubstr("2147483648 is not a token id"));
  EXPECT_THAT(fault(R"({"eos_token_id":["a"]})"), HasSubstr("\"a\" is not a token id"));
  EXPECT_THAT(fault(R"({"eos_token_id":1,"temperature":-1})"),
              HasSubstr("temperature: expected a number from 0 to 100"));
  EXPECT_THAT(fault(R"({"eos_token_id":1,"top_p":1.5})"),
              HasSubstr("top_p: expected a number from 0 to 1, found 1.5"));
  EXPECT_THAT(fault(R"({"eos_token_id":1,"top_k":-1})"),
              HasSubstr("top_k: expected a whole number, found -1"));
  EXPECT_THAT(fault(R"({"eos_token_id":1,"repetition_penalty":0})"),
              HasSubstr("repetition_penalty: expected"));
  EXPECT_THAT(fault(R"({"eos_token_id":1,"do_sample":"yes"})"),
              HasSubstr("do_sample: expected true or false"));
  EXPECT_THAT(fault(R"({"eos_token_id":1,)"), HasSubstr("generation_config.json: not valid JSON"));
}

TEST(GenerationConfig, FoldersWithoutTheFile) {
  const TempFolder folder;
  const auto full = read_generation_config(folder.path(), kQwen36);
  ASSERT_TRUE(full);
  EXPECT_THAT(full->stop_ids, ElementsAre(248046, 248044));
  const auto tiny = read_generation_config(folder.path(), kTiny);
  ASSERT_FALSE(tiny);
  EXPECT_THAT(tiny.error().message, HasSubstr("generation_config.json': missing"));
  write_file(folder.path() / "generation_config.json", R"({"eos_token_id":[8192]})");
  EXPECT_THAT(read_generation_config(folder.path(), kTiny).error().message,
              HasSubstr("eos_token_id 8192 is not below the vocabulary of 8192"));
  EXPECT_TRUE(read_generation_config(folder.path(), kQwen36));
}

}  // namespace
}  // namespace lily
