// A tokenizer of the family with a token for every byte (its id is the byte) and a few whole words.
#pragma once

#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/small_tokenizer.h"
#include "text/tokenizer.h"

namespace lily::test {

inline constexpr int32_t kThinkEnd = 256;   // </think>
inline constexpr int32_t kEnd = 257;        // <|im_end|>, special
inline constexpr int32_t kFirstWord = 258;  // the words given, in their order

inline std::unique_ptr<Tokenizer> make_tiny_tokenizer(const std::vector<std::string>& words = {}) {
  std::vector<std::pair<std::string, bool>> added{{"</think>", false}, {"<|im_end|>", true}};
  for (const std::string& word : words) added.emplace_back(word, false);
  auto tokenizer = Tokenizer::from_json(boost::json::serialize(small_tokenizer({}, added)));
  if (!tokenizer) {
    ADD_FAILURE() << tokenizer.error().text();
    return nullptr;
  }
  return *std::move(tokenizer);
}

}  // namespace lily::test
