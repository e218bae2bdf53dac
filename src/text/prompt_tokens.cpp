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
PromptTokens tokenize(const RenderedPrompt& prompt, const Tokenizer& tokenizer, size_t limit) {
  constexpr size_t kFar = 4;  // as the tokenizer: so far beyond the limit it is no more of interest how far
  PromptTokens tokens;
  size_t done = 0;
  const auto encode_until = [&](size_t end) {
    const Tokenizer::Bounded piece = tokenizer.encode(part(prompt, done, end), limit);
    tokens.ids.insert(tokens.ids.end(), piece.ids.begin(), piece.ids.end());
    tokens.at_least += piece.at_least;
    tokens.whole = piece.whole && (tokens.at_least / kFar < limit || end == prompt.text.size());
    done = end;
    return tokens.whole;
  };
  for (const size_t mark : prompt.marks) {
    if (!encode_until(mark)) return tokens;
    tokens.marks.push_back(static_cast<uint32_t>(tokens.ids.size()));
  }
  encode_until(prompt.text.size());
  return tokens;
}

}  // namespace lily
