#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <utility>
#include <vector>

#include "base/check.h"
#include "weights/faults.h"
#include "weights/json.h"
#include "weights/synth.h"

namespace lily {
namespace {

namespace json = boost::json;

struct Added {
  std::string_view text;
  bool special;
};
// The added tokens of Qwen 3.5 and 3.6, in the order of their ids.
constexpr Added kAdded[] = {
    {"<|endoftext|>", true},      {"<|im_start|>", true},
    {"<|im_end|>", true},         {"<|object_ref_start|>", true},
    {"<|object_ref_end|>", true}, {"<|box_start|>", true},
    {"<|box_end|>", true},        {"<|quad_start|>", true},
    {"<|quad_end|>", true},       {"<|vision_start|>", true},
    {"<|vision_end|>", true},     {"<|vision_pad|>", true},
    {"<|image_pad|>", true},      {"<|video_pad|>", true},
    {"<tool_call>", false},       {"</tool_call>", false},
    {"<|fim_prefix|>", false},    {"<|fim_middle|>", false},
    {"<|fim_suffix|>", false},    {"<|fim_pad|>", false},
    {"<|repo_name|>", false},     {"<|file_sep|>", false},
    {"<tool_response>", false},   {"</tool_response>", false},
    {"<think>", false},           {"</think>", false},
    {"<|audio_start|>", true},    {"<|audio_end|>", true},
    {"<tts_pad>", true},          {"<tts_text_bos>", true},
    {"<tts_text_eod>", true},     {"<tts_text_bos_single>", true},
    {"<|audio_pad|>", true},
};

// The family's pre-tokeniser.
constexpr std::string_view kPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Printable ASCII, the frequent ones first: pairs of those become tokens before the rest.
constexpr std::string_view kPrintable =
    " etaoinshrdlcumwfgypbvkjxqz0123456789ETAOINSHRDLCUMWFGYPBVKJXQZ.,-_()'\"/:;=<>{}[]*#!?+&%$@|\\~^`";

// Byte-level BPE writes bytes as letters (GPT-2's table): printable Latin-1 as itself, the others from U+0100
// on.
bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

std::string utf8(uint32_t code_point) {  // below U+0800
  if (code_point < 0x80) {
    return std::string(1, static_cast<char>(code_point));
  }
  return {static_cast<char>(0xc0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3f))};
}

// The letter of each byte.
std::vector<std::string> byte_letters() {
  std::vector<std::string> letters;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    letters.push_back(utf8(stands_for_itself(byte) ? byte : next++));
  }
  return letters;
}

// All pairs of printable characters, pairs of frequent ones first: shell k has the pairs whose rarer half is
// k.
std::vector<std::pair<uint32_t, uint32_t>> printable_pairs() {
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  const auto byte = [](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(kPrintable[i])); };
  for (size_t k = 0; k < kPrintable.size(); ++k) {
    for (size_t i = 0; i <= k; ++i) {
      pairs.emplace_back(byte(i), byte(k));
    }
    for (size_t i = 0; i < k; ++i) {
      pairs.emplace_back(byte(k), byte(i));
    }
  }
  return pairs;
}

json::object byte_level() {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
}

json::object make_model(uint32_t ordinary) {
  const std::vector<std::string> letters = byte_letters();
  json::object vocab;
  json::array merges;
  // Ids in the order of the letters' code points, as in the published vocabulary.
  uint32_t id = 0;
  for (const bool itself : {true, false}) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      if (stands_for_itself(byte) == itself) {
        vocab[letters[byte]] = id++;
      }
    }
  }
  const auto add = [&](const std::string& left, const std::string& right) {
    if (id < ordinary) {
      vocab[left + right] = id++;
      merges.emplace_back(left + " " + right);
    }
  };
  const std::vector<std::pair<uint32_t, uint32_t>> pairs = printable_pairs();
  for (const auto& [left, right] : pairs) {
    add(letters[left], letters[right]);
  }
  // A large vocabulary goes on with the pairs and a third character.
  for (const char third : kPrintable) {
    for (const auto& [left, right] : pairs) {
      add(letters[left] + letters[right], letters[static_cast<unsigned char>(third)]);
    }
  }
  LILY_CHECK(id == ordinary);
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", ""},
          {"end_of_word_suffix", ""},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocab)},
          {"merges", std::move(merges)}};
}

}  // namespace

std::string synth_tokenizer_json(uint32_t vocab) {
  LILY_CHECK(vocab >= 256 + std::size(kAdded));
  const auto ordinary = static_cast<uint32_t>(vocab - std::size(kAdded));
  json::array added;
  for (const Added& token : kAdded) {
    added.push_back({{"id", ordinary + added.size()},
                     {"content", token.text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", token.special}});
  }
  const json::object split{
      {"type", "Split"}, {"pattern", {{"Regex", kPattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  const json::object root{
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", std::move(added)},
      {"normalizer", {{"type", "NFC"}}},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", json::array{split, byte_level()}}}},
      {"post_processor", byte_level()},
      {"decoder", byte_level()},
      {"model", make_model(ordinary)}};
  return json_pretty(root, /*sorted=*/false);
}

std::string synth_tokenizer_config_json() {
  const json::object root{{"add_bos_token", false},
                          {"add_prefix_space", false},
                          {"bos_token", nullptr},
                          {"clean_up_tokenization_spaces", false},
                          {"eos_token", "<|im_end|>"},
                          {"errors", "replace"},
                          {"model_max_length", 262144},
                          {"pad_token", "<|endoftext|>"},
                          {"tokenizer_class", "Qwen2Tokenizer"},
                          {"unk_token", nullptr}};
  return json_pretty(root, /*sorted=*/false);
}

Result<std::vector<int32_t>> stop_ids_of_tokenizer(std::string_view tokenizer_json, uint32_t vocab) {
  const JsonLimits limits{.bytes = size_t{128} << 20, .values = 8'000'000, .depth = 32};
  LILY_TRY(const json::object root, parse_json_object(tokenizer_json, "tokenizer.json", limits));
  const json::value* added = root.if_contains("added_tokens");
  std::vector<int32_t> ids;
  for (const std::string_view wanted : {"<|im_end|>", "<|endoftext|>"}) {
    std::optional<uint64_t> id;
    for (const json::value& token :
         added != nullptr && added->is_array() ? added->get_array() : json::array{}) {
      const json::object* fields = token.if_object();
      const json::value* content = fields == nullptr ? nullptr : fields->if_contains("content");
      const json::value* number = fields == nullptr ? nullptr : fields->if_contains("id");
      if (content != nullptr && number != nullptr && content->is_string() &&
          content->get_string() == wanted) {
        id = json_unsigned(*number);
      }
    }
    if (!id || *id >= vocab) {
      return fail(ErrorKind::invalid_input,
                  "tokenizer.json: added token {}: expected an id below {}, found {}", in_quotes(wanted),
                  vocab, id ? std::to_string(*id) : "nothing");
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

}  // namespace lily
