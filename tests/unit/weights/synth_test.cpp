#include "weights/synth.h"

#include <gmock/gmock.h>

#include "tests/support/checkpoint_builder.h"
#include "tests/support/sha256.h"
#include "weights/bind.h"
#include "weights/formats/affine.h"

namespace lily {
namespace {

namespace json = boost::json;
using test::TempFolder;
using ::testing::HasSubstr;

constexpr auto kNoProgress = [](uint64_t, uint64_t) {};

DType type_of(std::string_view name) {
  return name == "bf16" ? DType::bf16 : name == "f16" ? DType::f16 : DType::f32;
}

TEST(Sha256, KnownSums) {
  EXPECT_EQ(test::sha256({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  const std::string text = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  EXPECT_EQ(test::sha256(std::as_bytes(std::span(text))),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

// Sums of what the second implementation makes (tools/golden/synth.py).
TEST(Synth, SameBytesAsTheSecondImplementation) {
  const json::value golden =
      json::parse(test::read_file(std::string(LILY_SOURCE_DIR) + "/tests/golden/synth.json"));
  for (const json::value& entry : golden.at("cases").as_array()) {
    SynthOptions options;
    options.shape = *shape_by_name(std::string(entry.at("shape").as_string()));
    options.shape = options.shape.with_layers(entry.at("layers").to_number<uint32_t>());
    options.seed = entry.at("seed").to_number<uint64_t>();
    options.format = {entry.at("bits").to_number<uint32_t>(), entry.at("group").to_number<uint32_t>()};
    options.float_type = type_of(std::string(entry.at("scales").as_string()));
    options.mtp = entry.at("mtp").as_bool();
    const TempFolder folder;
    const auto report = synthesise(folder.path() / "out", options, kNoProgress);
    ASSERT_TRUE(report) << report.error().text();
    const auto file = WeightFile::open(folder.path() / "out");
    ASSERT_TRUE(file) << file.error().text();
    EXPECT_EQ((*file)->weights().mtp.has_value(), options.mtp);
    const json::object& sums = entry.at("tensors").as_object();
    EXPECT_EQ((*file)->container().tensors().size(), sums.size());
    for (const auto& [name, sum] : sums) {
      const StoredTensor* tensor = (*file)->container().find(std::string(name));
      ASSERT_NE(tensor, nullptr) << name;
      EXPECT_EQ(test::sha256(tensor->data), sum.as_string()) << name;
    }
  }
}

TEST(Synth, AFolderThatCanBeServed) {
  const TempFolder folder;
  SynthOptions options;
  options.shape = kTiny.with_layers(4);
  uint64_t last = 0;
  const auto report = synthesise(folder.path() / "a" / "b", options, [&](uint64_t done, uint64_t total) {
    EXPECT_GT(done, last);
    EXPECT_LE(done, total);
    last = done;
  });
  ASSERT_TRUE(report) << report.error().text();
  EXPECT_EQ(report->bytes, last);
  EXPECT_TRUE(report->has_tokenizer);
  const auto file = WeightFile::open(folder.path() / "a" / "b");
  ASSERT_TRUE(file) << file.error().text();
  const auto generation = read_generation_config(folder.path() / "a" / "b", (*file)->shape());
  ASSERT_TRUE(generation) << generation.error().text();
  EXPECT_THAT(generation->stop_ids, ::testing::ElementsAre(8161, 8159));
  // Nothing else is left beside it.
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path() / "a")) {
    ++entries;
  }
  EXPECT_EQ(entries, 1U);
}

TEST(Synth, WeightsAreWellConditioned) {
  const TempFolder folder;
  SynthOptions options;
  options.shape = kTiny.with_layers(4);
  ASSERT_TRUE(synthesise(folder.path() / "m", options, kNoProgress));
  const auto file = WeightFile::open(folder.path() / "m");
  ASSERT_TRUE(file);
  const AffineMatrix& matrix = std::get<AttentionWeights>((*file)->weights().layers[3].mixer).q_proj;
  std::vector<float> row(matrix.cols);
  double sum = 0;
  double squares = 0;
  for (uint32_t r = 0; r < matrix.rows; ++r) {
    dequantize_row(matrix, r, row);
    for (const float value : row) {
      sum += value;
      squares += double{value} * value;
    }
  }
  const auto count = static_cast<double>(size_t{matrix.rows} * matrix.cols);
  EXPECT_NEAR(sum / count * 16, 0.0, 0.02);                 // mean, in units of 1/sqrt(fan)
  EXPECT_NEAR(std::sqrt(squares / count) * 16, 1.0, 0.05);  // deviation
}

TEST(Synth, TokenizerFillsTheVocabulary) {
  for (const uint32_t vocab : {kTiny.vocab, kQwen36.vocab}) {
    const json::value root = json::parse(synth_tokenizer_json(vocab));
    std::vector<bool> used(vocab, false);
    for (const auto& [text, id] : root.at("model").at("vocab").as_object()) {
      used.at(id.to_number<size_t>()) = true;
    }
    for (const json::value& token : root.at("added_tokens").as_array()) {
      EXPECT_FALSE(used.at(token.at("id").to_number<size_t>()));
      used[token.at("id").to_number<size_t>()] = true;
    }
    EXPECT_EQ(std::ranges::count(used, false), 0) << vocab;
    EXPECT_EQ(root.at("model").at("vocab").at("!"), 0);
    EXPECT_EQ(root.at("model").at("merges").as_array().size(), vocab - 256U - 33U);
  }
}

TEST(Synth, CopiesATokenizerAndTakesItsStopIds) {
  const TempFolder folder;
  std::filesystem::create_directories(folder.path() / "tokenizer");
  const std::string text =
      R"({"added_tokens":[{"id":500,"content":"<|endoftext|>"},{"id":502,"content":"<|im_end|>"}]})";
  test::write_file(folder.path() / "tokenizer" / "tokenizer.json", text);
  SynthOptions options;
  options.shape = kTiny.with_layers(4);
  options.tokenizer = folder.path() / "tokenizer";
  const auto made = synthesise(folder.path() / "m", options, kNoProgress);
  ASSERT_TRUE(made) << made.error().text();
  EXPECT_EQ(test::read_file(folder.path() / "m" / "tokenizer.json"), text);
  EXPECT_THAT(read_generation_config(folder.path() / "m", kTiny)->stop_ids, ::testing::ElementsAre(502, 500));
}

TEST(Synth, Faults) {
  const TempFolder folder;
  SynthOptions options;
  options.shape = kTiny.with_layers(4);
  const auto fault = [&](const std::filesystem::path& destination) {
    const auto made = synthesise(destination, options, kNoProgress);
    return made ? "no fault" : made.error().text();
  };
  test::write_file(folder.path() / "file", "x");
  EXPECT_THAT(fault(folder.path() / "file"), HasSubstr("exists and is not a folder"));
  EXPECT_THAT(fault(folder.path()), HasSubstr("exists and is not empty"));
  EXPECT_THAT(fault(folder.path() / "file" / "m"), HasSubstr("cannot make the folder"));
  std::filesystem::create_directories(folder.path() / "empty");
  EXPECT_EQ(fault(folder.path() / "empty/"), "no fault");

  options.shape.layers = 6;
  EXPECT_THAT(fault(folder.path() / "m"), HasSubstr("expected a multiple of 4"));
  options.shape.layers = 4;
  options.tokenizer = folder.path() / "nowhere";
  EXPECT_THAT(fault(folder.path() / "m"), HasSubstr("nowhere/tokenizer.json"));
  test::write_file(folder.path() / "empty" / "x", "");
  options.tokenizer = folder.path() / "t";
  std::filesystem::create_directories(options.tokenizer);
  test::write_file(options.tokenizer / "tokenizer.json",
                   R"({"added_tokens":[{"id":9000,"content":"<|im_end|>"}]})");
  EXPECT_THAT(fault(folder.path() / "m"), HasSubstr("'<|im_end|>': expected an id below 8192, found 9000"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "m"));
}

TEST(Synth, CancelLeavesNothingBehind) {
  const TempFolder folder;
  const std::atomic<bool> cancel{true};
  SynthOptions options;
  options.cancel = &cancel;
  const auto made = synthesise(folder.path() / "m", options, kNoProgress);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().kind, ErrorKind::cancelled);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace lily
