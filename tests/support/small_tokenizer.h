// A tokenizer.json of the right kind, small enough to read, for tests to load and to spoil.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "text/pretokenizer.h"
#include "text/unicode.h"

namespace lily::test {

// GPT-2's spelling of a byte.
inline std::string byte_symbol(unsigned byte) {
  const auto printable = [](unsigned b) {
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
  };
  unsigned code_point = byte;
  if (!printable(byte)) {
    code_point = 256;
    for (unsigned b = 0; b < byte; ++b) code_point += printable(b) ? 0 : 1;
  }
  std::string out;
  append_utf8(out, code_point);
  return out;
}

// 256 bytes (id = byte), then one token per merge, then the added tokens.
inline boost::json::object small_tokenizer(const std::vector<std::pair<std::string, std::string>>& merges,
                                           const std::vector<std::pair<std::string, bool>>& added) {
  using boost::json::array;
  using boost::json::object;
  object vocab;
  for (unsigned byte = 0; byte < 256; ++byte) vocab[byte_symbol(byte)] = byte;
  array merge_list;
  for (const auto& [left, right] : merges) {
    if (!vocab.contains(left + right)) vocab[left + right] = vocab.size();
    merge_list.push_back(boost::json::string(left + " " + right));
  }
  array added_list;
  for (const auto& [text, special] : added)
    added_list.push_back(object{{"id", vocab.size() + added_list.size()},
                                {"content", text},
                                {"single_word", false},
                                {"lstrip", false},
                                {"rstrip", false},
                                {"normalized", false},
                                {"special", special}});
  const object split{{"type", "Split"},
                     {"pattern", {{"Regex", boost::json::string(kPretokenizerRegex)}}},
                     {"behavior", "Isolated"},
                     {"invert", false}};
  const object bytes{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  return object{{"version", "1.0"},
                {"added_tokens", added_list},
                {"normalizer", {{"type", "NFC"}}},
                {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", array{split, bytes}}}},
                {"post_processor", bytes},
                {"decoder", bytes},
                {"model",
                 {{"type", "BPE"},
                  {"dropout", nullptr},
                  {"unk_token", nullptr},
                  {"continuing_subword_prefix", ""},
                  {"end_of_word_suffix", ""},
                  {"fuse_unk", false},
                  {"byte_fallback", false},
                  {"ignore_merges", false},
                  {"vocab", vocab},
                  {"merges", merge_list}}}};
}

}  // namespace lily::test
