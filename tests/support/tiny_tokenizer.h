// A tokenizer of the family with a token for every byte (its id is the byte) and a few whole words.
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace lily::test {

inline constexpr int32_t kThinkEnd = 256;   // </think>
inline constexpr int32_t kEnd = 257;        // <|im_end|>, special
inline constexpr int32_t kFirstWord = 258;  // the words given, in their order

// The printable stand-in of a byte in tokenizer.json, UTF-8.
inline std::string byte_symbol(int byte) {
  const auto printable = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

inline std::unique_ptr<Tokenizer> make_tiny_tokenizer(const std::vector<std::string>& words = {}) {
  namespace json = boost::json;
  json::object vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[byte_symbol(byte)] = byte;
  json::array added;
  const auto add = [&](const std::string& text, bool special) {
    added.push_back(json::object{{"id", kThinkEnd + static_cast<int>(added.size())},
                                 {"content", text},
                                 {"single_word", false},
                                 {"lstrip", false},
                                 {"rstrip", false},
                                 {"normalized", false},
                                 {"special", special}});
  };
  add("</think>", false);
  add("<|im_end|>", true);
  for (const std::string& word : words) add(word, false);
  const json::object byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  const json::object split{
      {"type", "Split"},
      {"pattern",
       {{"Regex", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
                  R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}}},
      {"behavior", "Isolated"},
      {"invert", false}};
  const json::object file{{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", added},
                          {"normalizer", {{"type", "NFC"}}},
                          {"pre_tokenizer", json::object{{"type", "Sequence"},
                                                         {"pretokenizers", json::array{split, byte_level}}}},
                          {"post_processor", byte_level},
                          {"decoder", byte_level},
                          {"model", json::object{{"type", "BPE"},
                                                 {"dropout", nullptr},
                                                 {"unk_token", nullptr},
                                                 {"continuing_subword_prefix", ""},
                                                 {"end_of_word_suffix", ""},
                                                 {"fuse_unk", false},
                                                 {"byte_fallback", false},
                                                 {"ignore_merges", false},
                                                 {"vocab", vocab},
                                                 {"merges", json::array{}}}}};
  auto tokenizer = Tokenizer::from_json(json::serialize(file));
  if (!tokenizer) {
    ADD_FAILURE() << tokenizer.error().text();
    return nullptr;
  }
  return *std::move(tokenizer);
}

}  // namespace lily::test
