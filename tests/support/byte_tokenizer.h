// A tokenizer of the family with one token per byte and the control tokens of the template: as small as one
// can be. Ids 0 to 255 are not the bytes' own values, but their places in GPT-2's alphabet.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <memory>
#include <stdexcept>
#include <string>

#include "text/tokenizer.h"

namespace lily::test {

inline constexpr int32_t kImStart = 257, kImEnd = 258, kThink = 259, kEndThink = 260;

inline std::string byte_tokenizer_json() {
  namespace json = boost::json;
  json::value root = json::parse(R"json({
    "version": "1.0", "truncation": null, "padding": null, "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]},
    "post_processor": null,
    "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
    "model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []})json");
  json::object& object = root.as_object();
  object["pre_tokenizer"]
      .as_object()["pretokenizers"]
      .as_array()[0]
      .as_object()["pattern"]
      .as_object()["Regex"] =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  json::object& vocab = object["model"].as_object()["vocab"].as_object();
  unsigned extra = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const unsigned code = printable ? byte : extra++;
    std::string symbol;
    if (code < 0x80) {
      symbol += static_cast<char>(code);
    } else {
      symbol += static_cast<char>(0xC0 | (code >> 6));
      symbol += static_cast<char>(0x80 | (code & 0x3F));
    }
    vocab[symbol] = byte;
  }
  int32_t id = 256;
  for (const char* text : {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>",
                           "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"}) {
    json::object added;
    added["id"] = id++;
    added["content"] = text;
    added["special"] = text[1] == '|';
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) {
      added[flag] = false;
    }
    object["added_tokens"].as_array().emplace_back(std::move(added));
  }
  return json::serialize(root);
}

inline std::unique_ptr<Tokenizer> byte_tokenizer() {
  Result<std::unique_ptr<Tokenizer>> made = Tokenizer::from_json(byte_tokenizer_json());
  if (!made) {
    throw std::runtime_error(made.error().text());
  }
  return std::move(*made);
}

}  // namespace lily::test
