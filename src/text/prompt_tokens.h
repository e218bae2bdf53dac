// The tokens of a rendered prompt.
#pragma once

#include <cstdint>
#include <vector>

#include "text/rendered_prompt.h"
#include "text/tokenizer.h"

namespace lily {

struct PromptTokens {
  std::vector<int32_t> ids;     // as Tokenizer::encode(prompt)
  std::vector<uint32_t> marks;  // RenderedPrompt::marks, as lengths of ids
  size_t at_least = 0;          // tokens of the prompt; exact when whole
  bool whole = true;            // otherwise it is beyond the limit, and the rest was left
};

// A prompt is of no use from `limit` tokens on: see Tokenizer::Bounded.
PromptTokens tokenize(const RenderedPrompt& prompt, const Tokenizer& tokenizer, size_t limit = SIZE_MAX);

}  // namespace lily
