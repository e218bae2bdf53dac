#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/small_tokenizer.h"
#include "text/detokenizer.h"

namespace lily {
namespace {

namespace json = boost::json;
using test::small_tokenizer;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

json::object sample() {
  return small_tokenizer({{"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {"Ġ", "hello"}, {"Ã", "©"}},
                         {{"<|end|>", true}, {"<|end|>>", true}, {"<tag>", false}});
}
constexpr int32_t kHello = 259, kSpaceHello = 260, kEAcute = 261, kEnd = 262, kLongEnd = 263, kTag = 264;

std::unique_ptr<Tokenizer> load(const json::object& file, std::string_view config = "") {
  auto loaded = Tokenizer::from_json(json::serialize(file), config);
  EXPECT_TRUE(loaded) << loaded.error().text();
  return loaded ? std::move(*loaded) : nullptr;
}

std::string refusal(const json::value& file, std::string_view config = "") {
  const auto loaded = Tokenizer::from_json(json::serialize(file), config);
  EXPECT_FALSE(loaded);
  return loaded ? "" : loaded.error().message;
}

TEST(Tokenizer, APromptFarBeyondItsLimitIsNotReadToItsEnd) {
  const auto tokenizer = load(sample());
  RenderedPrompt prompt;
  for (int i = 0; i < 1000; ++i) prompt.text += " hello";
  const Tokenizer::Bounded exact = tokenizer->encode(prompt, 300);
  EXPECT_TRUE(exact.whole) << "near the limit it is said how many there are";
  EXPECT_EQ(exact.at_least, 1000U);
  const Tokenizer::Bounded far = tokenizer->encode(prompt, 10);
  EXPECT_FALSE(far.whole);
  EXPECT_GE(far.at_least, 10U);
  EXPECT_LT(far.ids.size(), 100U);
  EXPECT_EQ(tokenizer->encode(prompt, 100'000).ids, tokenizer->encode(prompt));
}

TEST(Tokenizer, AWordThatAloneReachesTheLimitIsNotMerged) {
  const auto tokenizer = load(sample());
  RenderedPrompt prompt;
  while (prompt.text.size() < 100'000) prompt.text += "hello";
  const Tokenizer::Bounded refused = tokenizer->encode(prompt, 20'000);
  EXPECT_FALSE(refused.whole);
  EXPECT_TRUE(refused.ids.empty());
  EXPECT_EQ(refused.at_least, 20'000U) << "five bytes are the most that a token has";
  const Tokenizer::Bounded whole = tokenizer->encode(prompt, 20'001);
  EXPECT_TRUE(whole.whole);
  EXPECT_EQ(whole.ids.size(), 20'000U);
}

TEST(Tokenizer, MergesWordsAndFindsAddedTokens) {
  const auto tokenizer = load(sample());
  EXPECT_EQ(tokenizer->encode("hello hello"), (Ids{kHello, kSpaceHello}));
  EXPECT_EQ(tokenizer->encode("hello<|end|>\xC3\xA9"), (Ids{kHello, kEnd, kEAcute}));
  EXPECT_EQ(tokenizer->encode("e\xCC\x81"), Ids{kEAcute}) << "NFC";
  EXPECT_EQ(tokenizer->encode("<|end|>><tag>"), (Ids{kLongEnd, kTag})) << "the longest token";
  EXPECT_EQ(tokenizer->encode("<<|end|"), (Ids{'<', '<', '|', 'e', 'n', 'd', '|'}));
  EXPECT_EQ(tokenizer->encode(""), Ids{});
  EXPECT_EQ(tokenizer->size(), 265U);
}

TEST(Tokenizer, ReadsMergesAsPairs) {
  json::object file = sample();
  json::array pairs;
  for (const auto& merge : file["model"].at("merges").as_array()) {
    const std::string text(merge.as_string().data(), merge.as_string().size());
    const size_t space = text.find(' ');
    pairs.push_back(json::array{text.substr(0, space), text.substr(space + 1)});
  }
  file["model"].as_object()["merges"] = pairs;
  EXPECT_EQ(load(file)->encode("hello hello"), (Ids{kHello, kSpaceHello}));
}

TEST(Tokenizer, DoesNotRecogniseAddedTokensInLiteralText) {
  const auto tokenizer = load(sample());
  const Ids spelled = {'<', '|', 'e', 'n', 'd', '|', '>'};
  RenderedPrompt prompt{"<|end|><|end|>", {{0, 7}}};
  Ids expected = spelled;
  expected.push_back(kEnd);
  EXPECT_EQ(tokenizer->encode(prompt), expected);
  for (const RenderedPrompt::Range one_byte : {RenderedPrompt::Range{0, 1}, {3, 4}, {6, 7}})
    EXPECT_EQ(tokenizer->encode(RenderedPrompt{"<|end|>", {one_byte}}), spelled) << one_byte.begin;
  // The longer token touches literal text, the shorter one does not.
  EXPECT_EQ(tokenizer->encode(RenderedPrompt{"<|end|>>", {{7, 8}}}), (Ids{kEnd, '>'}));
  // Text merges across the border: only recognition of added tokens changes.
  EXPECT_EQ(tokenizer->encode(RenderedPrompt{"hello", {{2, 4}}}), Ids{kHello});
  // Ranges that no renderer makes must not read outside the text.
  EXPECT_EQ(tokenizer->encode(RenderedPrompt{"<tag>", {{3, 3}}}), Ids{kTag});
  EXPECT_EQ(tokenizer->encode(RenderedPrompt{"<tag>", {{5, 900}}}), Ids{kTag});
  EXPECT_EQ(tokenizer->encode(RenderedPrompt{"<tag>", {{4, 900}, {0, 2}}}).size(), 5U);
}

TEST(Tokenizer, ReadsInvalidUtf8AsReplacements) {
  const auto tokenizer = load(sample());
  const Ids replacement = tokenizer->encode("\xEF\xBF\xBD");
  EXPECT_EQ(tokenizer->encode("\xF0\x9F\x98"), replacement);
  Ids expected = replacement;
  expected.push_back(kEnd);
  EXPECT_EQ(tokenizer->encode("\x80<|end|>"), expected);
  // The literal range moves with the bytes that grew.
  EXPECT_EQ(tokenizer->encode(RenderedPrompt{"\x80<tag><tag>", {{0, 1}, {6, 11}}}).at(3), kTag);
  EXPECT_EQ(tokenizer->encode(RenderedPrompt{"\x80<tag><tag>", {{0, 6}}}).back(), kTag);
}

TEST(Tokenizer, DecodesAndSkipsSpecialTokens) {
  const auto tokenizer = load(sample());
  EXPECT_EQ(tokenizer->decode(Ids{kHello, kEnd, kTag, kSpaceHello}, false), "hello<|end|><tag> hello");
  EXPECT_EQ(tokenizer->decode(Ids{kHello, kEnd, kTag, kSpaceHello}, true), "hello<tag> hello");
  EXPECT_EQ(tokenizer->decode(Ids{0xC3, 0xA9, 0xC3}, false), "\xC3\xA9\xEF\xBF\xBD");
  EXPECT_EQ(tokenizer->decode(Ids{-1, 9999, 'x'}, false), "x");
  EXPECT_EQ(tokenizer->id_of("<tag>"), kTag);
  EXPECT_EQ(tokenizer->id_of("hello"), std::nullopt);
  ASSERT_NE(tokenizer->added(kEnd), nullptr);
  EXPECT_TRUE(tokenizer->added(kEnd)->special);
  EXPECT_FALSE(tokenizer->added(kTag)->special);
  EXPECT_EQ(tokenizer->added(kHello), nullptr);
}

TEST(Tokenizer, TakesFurtherAddedTokensFromTheConfiguration) {
  const auto tokenizer =
      load(sample(), R"({"added_tokens_decoder": {"262": {"content": "<|end|>", "special": true},
      "300": {"content": "<late>", "special": true, "normalized": false}}})");
  EXPECT_EQ(tokenizer->encode("a<late>"), (Ids{'a', 300}));
  EXPECT_EQ(tokenizer->size(), 301U);
  EXPECT_EQ(tokenizer->bytes_of(299), "");
}

TEST(Tokenizer, LoadsAFolder) {
  const auto folder = std::filesystem::temp_directory_path() / "lily_tokenizer_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  auto absent = Tokenizer::load(folder);
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().kind, ErrorKind::not_found);
  EXPECT_THAT(absent.error().message, HasSubstr("tokenizer.json"));
  std::ofstream(folder / "tokenizer.json") << json::serialize(sample());
  std::ofstream(folder / "tokenizer_config.json")
      << R"({"added_tokens_decoder": {"300": {"content": "<late>"}}})";
  auto loaded = Tokenizer::load(folder);
  ASSERT_TRUE(loaded) << loaded.error().text();
  EXPECT_EQ((*loaded)->id_of("<late>"), 300);
  std::filesystem::remove_all(folder);
}

TEST(Tokenizer, NeitherAFolderNorAPipeIsRead) {
  const auto folder = std::filesystem::temp_directory_path() / "lily_tokenizer_no_file_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder / "tokenizer_config.json");
  std::ofstream(folder / "tokenizer.json") << json::serialize(sample());
  const auto from_folder = Tokenizer::load(folder);
  ASSERT_FALSE(from_folder);
  EXPECT_THAT(from_folder.error().message, HasSubstr("tokenizer_config.json': not a regular file"));
  std::filesystem::remove(folder / "tokenizer.json");
  ASSERT_EQ(::mkfifo((folder / "tokenizer.json").c_str(), 0600), 0);
  const auto from_pipe = Tokenizer::load(folder);
  ASSERT_FALSE(from_pipe);
  EXPECT_THAT(from_pipe.error().message, HasSubstr("tokenizer.json': not a regular file"));
  std::filesystem::remove_all(folder);
}

TEST(Tokenizer, EncodesOnManyThreads) {
  const auto tokenizer = load(sample());
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "hello h\xC3\xA9llo <tag> hell\n";
  const Ids expected = tokenizer->encode(text);
  const auto fresh = load(sample());  // nothing remembered yet
  std::vector<Ids> found(8);
  std::vector<std::thread> threads;
  for (Ids& ids : found) threads.emplace_back([&] { ids = fresh->encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : found) EXPECT_EQ(ids, expected);
}

struct Spoiled {
  const char* pointer;  // JSON pointer of what is replaced
  const char* value;
  const char* message;
};
void PrintTo(const Spoiled& spoiled, std::ostream* out) { *out << spoiled.pointer << " = " << spoiled.value; }

class TokenizerRefusal : public testing::TestWithParam<Spoiled> {};

TEST_P(TokenizerRefusal, NamesTheDifference) {
  json::value file = sample();
  const Spoiled& spoiled = GetParam();
  file.at_pointer(spoiled.pointer) = json::parse(spoiled.value);
  EXPECT_THAT(refusal(file), HasSubstr(spoiled.message));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, TokenizerRefusal,
    testing::Values(
        Spoiled{"/normalizer", "null", "normalizer.type: expected \"NFC\", found nothing"},
        Spoiled{"/normalizer/type", "\"NFKC\"", "normalizer.type: expected \"NFC\", found \"NFKC\""},
        Spoiled{"/pre_tokenizer/type", "\"ByteLevel\"", "pre_tokenizer.type: expected \"Sequence\""},
        Spoiled{"/pre_tokenizer/pretokenizers", "[]", "expected Split, then ByteLevel"},
        Spoiled{"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\"\\\\p{N}{1,3}\"",
                "pattern.Regex: expected"},
        Spoiled{"/pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"", "behavior: expected \"Isolated\""},
        Spoiled{"/pre_tokenizer/pretokenizers/0/invert", "true", "invert: expected false, found true"},
        Spoiled{"/pre_tokenizer/pretokenizers/1/use_regex", "true", "use_regex: expected false"},
        Spoiled{"/pre_tokenizer/pretokenizers/1/add_prefix_space", "true",
                "add_prefix_space: expected false"},
        Spoiled{"/post_processor/type", "\"TemplateProcessing\"",
                "post_processor.type: expected \"ByteLevel\""},
        Spoiled{"/decoder/type", "\"WordPiece\"", "decoder.type: expected \"ByteLevel\""},
        Spoiled{"/model/type", "\"Unigram\"", "model.type: expected \"BPE\", found \"Unigram\""},
        Spoiled{"/model/dropout", "0.1", "model.dropout"},
        Spoiled{"/model/unk_token", "\"<unk>\"", "model.unk_token"},
        Spoiled{"/model/byte_fallback", "true", "model.byte_fallback: expected false, found true"},
        Spoiled{"/model/ignore_merges", "true", "model.ignore_merges: expected false, found true"},
        Spoiled{"/model/end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix"},
        Spoiled{"/model/continuing_subword_prefix", "\"##\"", "model.continuing_subword_prefix"},
        Spoiled{"/model/vocab", "[]", "model.vocab: expected an object"},
        Spoiled{"/model/vocab", "{\"a\": 0}", "expected all 256 bytes"},
        Spoiled{"/model/vocab/he", "-1", "model.vocab 'he': expected an id"},
        Spoiled{"/model/vocab/he", "2097151", "model.vocab 'he': expected an id"},
        Spoiled{"/model/vocab/he", "1.5", "model.vocab 'he': expected an id"},
        Spoiled{"/model/vocab/he", "97", "id 97 is given to"},
        Spoiled{"/model/merges", "{}", "model.merges: expected an array"},
        Spoiled{"/model/merges/0", "\"h  e\"", "model.merges[0]: expected two tokens"},
        Spoiled{"/model/merges/0", "[\"h\"]", "model.merges[0]: expected two tokens"},
        Spoiled{"/model/merges/1", "\"zz z\"", "model.merges[1]: 'zz' is not in model.vocab"},
        Spoiled{"/model/merges/1", "\"z z\"", "model.merges[1]: 'zz' is not in model.vocab"},
        Spoiled{"/added_tokens", "{}", "added_tokens: expected an array"},
        Spoiled{"/added_tokens/0/id", "\"x\"", "expected an id"},
        Spoiled{"/added_tokens/0/id", "5", "id 5 is given to"},
        Spoiled{"/added_tokens/0/content", "7", "added_tokens[0].content: expected a string"},
        Spoiled{"/added_tokens/0/content", "\"hello\"", "and 259 in model.vocab"},
        Spoiled{"/added_tokens/1/content", "\"<|end|>\"", "has id 263, and 262 elsewhere"},
        Spoiled{"/added_tokens/0/normalized", "true",
                "added_tokens[0].normalized: expected false, found true"},
        Spoiled{"/added_tokens/0/lstrip", "true", "added_tokens[0].lstrip"},
        Spoiled{"/added_tokens/0/rstrip", "true", "added_tokens[0].rstrip"},
        Spoiled{"/added_tokens/0/single_word", "true", "added_tokens[0].single_word"},
        Spoiled{"/added_tokens/0/special", "\"yes\"", "added_tokens[0].special: expected true or false"}));

TEST(Tokenizer, RefusesWhatIsNotJson) {
  EXPECT_THAT(Tokenizer::from_json("{").error().message, HasSubstr("tokenizer.json: not valid JSON"));
  EXPECT_THAT(Tokenizer::from_json("").error().message, HasSubstr("tokenizer.json: not valid JSON"));
  EXPECT_THAT(Tokenizer::from_json("[]").error().message, HasSubstr("normalizer"));
  EXPECT_THAT(Tokenizer::from_json(json::serialize(sample()), "{").error().message,
              HasSubstr("tokenizer_config.json: not valid JSON"));
  EXPECT_THAT(refusal(sample(), R"({"added_tokens_decoder": []})"), HasSubstr("added_tokens_decoder"));
  EXPECT_THAT(refusal(sample(), R"({"added_tokens_decoder": {"x": {"content": "y"}}})"),
              HasSubstr("not a token id"));
}

TEST(Detokenizer, NeverGivesHalfACharacter) {
  const auto tokenizer = load(sample());
  Detokenizer plain(*tokenizer, false), skipping(*tokenizer, true);
  EXPECT_EQ(plain.push(0xC3), "");
  EXPECT_EQ(plain.push(0xA9), "\xC3\xA9");
  EXPECT_EQ(plain.push(0xF0), "");
  EXPECT_EQ(plain.push(kHello), "\xEF\xBF\xBDhello");
  EXPECT_EQ(plain.push(kEnd), "<|end|>");
  EXPECT_EQ(skipping.push(kEnd), "");
  EXPECT_EQ(skipping.push(kTag), "<tag>");
  EXPECT_EQ(skipping.push(0xE2), "");
  EXPECT_EQ(skipping.flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(skipping.flush(), "");
}

}  // namespace
}  // namespace lily
