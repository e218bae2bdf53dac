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

// Every place of which the number of tokens before it is asked for; an added token follows each of them.
std::vector<size_t> places(const RenderedPrompt& prompt) {
  std::vector<size_t> places = prompt.marks;
  for (const auto& turn : prompt.turns) places.push_back(turn.begin);
  for (const auto& answer : prompt.answers) {
    places.push_back(answer.begin);
    places.push_back(answer.end);
  }
  std::ranges::sort(places);
  places.erase(std::unique(places.begin(), places.end()), places.end());
  return places;
}

}  // namespace

// Nothing is merged across an added token, so the tokens before such a place are those of the text before it.
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
  const std::vector<size_t> cuts = places(prompt);
  std::vector<uint32_t> before;
  for (const size_t cut : cuts) {
    if (!encode_until(cut)) return tokens;
    before.push_back(static_cast<uint32_t>(tokens.ids.size()));
  }
  encode_until(prompt.text.size());
  const auto at = [&](size_t place) {
    return before[static_cast<size_t>(std::ranges::lower_bound(cuts, place) - cuts.begin())];
  };
  for (const size_t mark : prompt.marks) tokens.marks.push_back(at(mark));
  for (const auto& turn : prompt.turns) tokens.turns.push_back({at(turn.begin), turn.role});
  for (const auto& answer : prompt.answers) {
    tokens.answers.push_back({at(answer.begin), at(answer.end), answer.message});
  }
  return tokens;
}

}  // namespace lily
