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
};

PromptTokens tokenize(const RenderedPrompt& prompt, const Tokenizer& tokenizer);

}  // namespace lily
