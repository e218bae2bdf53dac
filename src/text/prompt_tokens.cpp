#include "text/prompt_tokens.h"

#include <algorithm>

namespace lily {
namespace {

// Bytes [begin, end) of `prompt` as a prompt of their own.
RenderedPrompt part(const RenderedPrompt& prompt, size_t begin, size_t end) {
  RenderedPrompt piece;
  piece.text = prompt.text.substr(begin, end - begin);
  const auto first = std::ranges::upper_bound(prompt.literal, begin, {},
                                              [](const RenderedPrompt::Range& r) { return r.end; });
  for (auto range = first; range != prompt.literal.end() && range->begin < end; ++range) {
    piece.literal.push_back({std::max(range->begin, begin) - begin, std::min(range->end, end) - begin});
  }
  return piece;
}

}  // namespace

// Nothing is merged across an added token, so the tokens before a mark are those of the text before it.
PromptTokens tokenize(const RenderedPrompt& prompt, const Tokenizer& tokenizer) {
  PromptTokens tokens;
  size_t done = 0;
  const auto encode_until = [&](size_t end) {
    const std::vector<int32_t> ids = tokenizer.encode(part(prompt, done, end));
    tokens.ids.insert(tokens.ids.end(), ids.begin(), ids.end());
    done = end;
  };
  for (const size_t mark : prompt.marks) {
    encode_until(mark);
    tokens.marks.push_back(static_cast<uint32_t>(tokens.ids.size()));
  }
  encode_until(prompt.text.size());
  return tokens;
}

}  // namespace lily
