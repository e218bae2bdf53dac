// A tokenizer of the family with one token per byte (its id is the byte) and the control tokens of the
// template.
#pragma once

#include <boost/json/serialize.hpp>
#include <memory>
#include <stdexcept>
#include <string>

#include "tests/support/small_tokenizer.h"
#include "text/tokenizer.h"

namespace lily::test {

inline constexpr int32_t kImStart = 257, kImEnd = 258, kThink = 259, kEndThink = 260;

inline std::unique_ptr<Tokenizer> byte_tokenizer() {
  const boost::json::object file = small_tokenizer({}, {{"<|endoftext|>", true},
                                                        {"<|im_start|>", true},
                                                        {"<|im_end|>", true},
                                                        {"<think>", false},
                                                        {"</think>", false},
                                                        {"<tool_call>", false},
                                                        {"</tool_call>", false},
                                                        {"<tool_response>", false},
                                                        {"</tool_response>", false}});
  Result<std::unique_ptr<Tokenizer>> made = Tokenizer::from_json(boost::json::serialize(file));
  if (!made) {
    throw std::runtime_error(made.error().text());
  }
  return std::move(*made);
}

}  // namespace lily::test
