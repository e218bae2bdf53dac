// The tokens of a rendered prompt.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/rendered_prompt.h"
#include "text/tokenizer.h"

namespace lily {

struct PromptTokens {
  std::vector<int32_t> ids;     // as Tokenizer::encode(prompt)
  std::vector<uint32_t> marks;  // RenderedPrompt::marks, as lengths of ids
  struct Turn {
    uint32_t begin;  // in ids
    std::string_view role;
  };
  std::vector<Turn> turns;  // RenderedPrompt::turns
  struct Answer {
    uint32_t begin;  // in ids
    uint32_t end;
    size_t message;
  };
  std::vector<Answer> answers;  // RenderedPrompt::answers
  size_t at_least = 0;          // tokens of the prompt; exact when whole
  bool whole = true;            // otherwise it is beyond the limit, and the rest was left
};

// A prompt is of no use from `limit` tokens on: see Tokenizer::Bounded.
PromptTokens tokenize(const RenderedPrompt& prompt, const Tokenizer& tokenizer, size_t limit = SIZE_MAX);

}  // namespace lily
