#include "engine/generation.h"

#include <algorithm>

#include "sampling/sampler.h"

namespace lily {

Generation::Generation(const Tokenizer& tokenizer, const GenerationRequest& request, uint32_t max_tokens)
    : tokenizer_(tokenizer),
      request_(request),
      max_tokens_(max_tokens),
      detokenizer_(tokenizer, /*skip_special=*/true),
      splitter_(request.starts_in_think, request.continues_text),
      stops_(request.stop) {}

Generation::Step Generation::push(int32_t token, std::span<const float> logits) {
  Step step;
  ++tokens_;
  const bool was_thinking = splitter_.in_think();
  if (std::ranges::find(request_.stop_ids, token) != request_.stop_ids.end()) {
    if (was_thinking) ++reasoning_tokens_;
    flush(step.deltas);
    step.end = FinishReason::stop;
    return step;
  }
  const AddedToken* added = tokenizer_.added(token);
  const bool has_text = !tokenizer_.bytes_of(token).empty() && (added == nullptr || !added->special);
  const std::string text = detokenizer_.push(token);
  if (request_.logprobs && has_text) {
    // A token that only begins a character has no text yet; it reaches into the text that follows.
    const size_t end = text_bytes_ + std::max<size_t>(text.size(), 1);
    pending_.push_back({.info = describe(token, logits), .begin = text_bytes_, .end = end});
  }
  route(text, step.deltas);
  // The tokens that open and close the think block belong to it.
  if (was_thinking || splitter_.in_think()) ++reasoning_tokens_;
  if (!stopped_ && tokens_ >= max_tokens_) {
    flush(step.deltas);
    step.end = FinishReason::length;
  }
  if (stopped_) step.end = FinishReason::stop;
  return step;
}

TokenInfo Generation::describe(int32_t token, std::span<const float> logits) const {
  const auto choice = [&](int32_t id, double logprob) {
    return TokenInfo::Choice{id, std::string(tokenizer_.bytes_of(id)), logprob};
  };
  TokenInfo info{.chosen = choice(token, log_softmax_at(logits, token)), .top = {}};
  if (*request_.logprobs > 0) {
    for (const TokenLogprob& top : top_logprobs(logits, *request_.logprobs)) {
      info.top.push_back(choice(top.token, top.logprob));
    }
  }
  return info;
}

void Generation::route(std::string_view text, std::vector<Delta>& deltas) {
  if (text.empty()) return;
  text_bytes_ += text.size();
  take(splitter_.push(text), deltas);
}

void Generation::flush(std::vector<Delta>& deltas) {
  route(detokenizer_.flush(), deltas);
  if (!stopped_) take(splitter_.flush(), deltas);
  if (!stopped_) send_content(stops_.flush(), deltas);
}

void Generation::take(const ReasoningSplitter::Delta& piece, std::vector<Delta>& deltas) {
  const size_t before = split_bytes_;
  split_bytes_ = text_bytes_ - splitter_.held();
  if (!piece.reasoning.empty()) {
    if (!reasoning_begin_) {
      reasoning_begin_ = piece.content.empty() ? split_bytes_ - piece.reasoning.size() : before;
    }
    reasoning_sent_ += piece.reasoning.size();
    Delta& delta = deltas.emplace_back();
    delta.reasoning = piece.reasoning;
    delta.logprobs = infos_until(*reasoning_begin_, *reasoning_begin_ + reasoning_sent_);
  }
  if (!piece.content.empty()) {
    if (!content_begin_) content_begin_ = split_bytes_ - piece.content.size();
    take_content(piece.content, deltas);
  }
}

// The tool-call parser belongs here: it takes content apart, and what it leaves as text goes on.
void Generation::take_content(std::string_view content, std::vector<Delta>& deltas) {
  StopStrings::Piece piece = stops_.push(content);
  send_content(std::move(piece.text), deltas);
  if (piece.stopped) {
    stopped_ = true;
    stop_string_ = std::move(piece.matched);
  }
}

void Generation::send_content(std::string text, std::vector<Delta>& deltas) {
  if (text.empty()) return;
  content_sent_ += text.size();
  Delta& delta = deltas.emplace_back();
  delta.content = std::move(text);
  delta.logprobs = infos_until(*content_begin_, *content_begin_ + content_sent_);
}

// The tokens whose text begins before `end` and reaches beyond `begin`. Those that lie wholly before it gave
// no text (the marker, blank lines around it) and are dropped.
std::vector<TokenInfo> Generation::infos_until(size_t begin, size_t end) {
  std::vector<TokenInfo> infos;
  while (!pending_.empty() && pending_.front().begin < end) {
    if (pending_.front().end > begin) infos.push_back(std::move(pending_.front().info));
    pending_.pop_front();
  }
  return infos;
}

}  // namespace lily
