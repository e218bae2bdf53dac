#include "engine/generation.h"

#include <algorithm>
#include <iterator>

#include "sampling/sampler.h"

namespace lily {

Generation::Generation(const Tokenizer& tokenizer, const GenerationRequest& request, uint32_t max_tokens)
    : tokenizer_(tokenizer),
      request_(request),
      max_tokens_(max_tokens),
      detokenizer_(tokenizer, /*skip_special=*/true),
      parser_({.in_think = request.starts_in_think, .continues_text = request.continues_text}, request.tools),
      stops_(request.stop) {}

Generation::Step Generation::push(int32_t token, std::span<const float> logits) {
  Step step;
  ++tokens_;
  const bool was_thinking = parser_.in_think();
  if (std::ranges::find(request_.stop_ids, token) != request_.stop_ids.end()) {
    if (was_thinking) ++reasoning_tokens_;
    flush(/*cut=*/false, step.deltas);
    step.end = reason_to_stop();
    return step;
  }
  const AddedToken* added = tokenizer_.added(token);
  const bool has_text = !tokenizer_.bytes_of(token).empty() && (added == nullptr || !added->special);
  const std::string text = detokenizer_.push(token);
  if (request_.logprobs && has_text) {
    // A token that only begins a character has no text yet; it reaches into the text that follows.
    const size_t end = text_bytes_ + std::max<size_t>(text.size(), 1);
    pending_.push_back({.info = describe(token, logits), .range = {text_bytes_, end}});
  }
  text_bytes_ += text.size();
  take(parser_.push(text), step.deltas);
  // The tokens that open and close the think block belong to it.
  if (was_thinking || parser_.in_think()) ++reasoning_tokens_;
  if (!stopped_ && tokens_ >= max_tokens_) {
    Step last = cut();
    std::ranges::move(last.deltas, std::back_inserter(step.deltas));
    step.end = last.end;
  } else if (stopped_) {
    step.end = reason_to_stop();
  }
  return step;
}

Generation::Step Generation::cut() {
  Step step;
  const bool in_call = parser_.in_call();
  flush(/*cut=*/true, step.deltas);
  // Nothing is missing from an answer whose last call is whole.
  const bool whole = stopped_ || (whole_calls_ > 0 && !in_call);
  step.end = whole ? reason_to_stop() : FinishReason::length;
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

void Generation::flush(bool cut, std::vector<Delta>& deltas) {
  const std::string tail = detokenizer_.flush();
  text_bytes_ += tail.size();
  take(parser_.push(tail), deltas);
  if (!stopped_) take(parser_.finish(cut), deltas);
  if (!stopped_) send_content(stops_.flush(), deltas);
}

FinishReason Generation::reason_to_stop() const {
  return whole_calls_ > 0 ? FinishReason::tool_calls : FinishReason::stop;
}

void Generation::take(std::vector<OutputPiece> pieces, std::vector<Delta>& deltas) {
  for (OutputPiece& piece : pieces) {
    if (stopped_) return;
    switch (piece.kind) {
      case OutputPiece::Kind::reasoning:
        take_reasoning(std::move(piece), deltas);
        break;
      case OutputPiece::Kind::content:
        take_content(piece, deltas);
        break;
      case OutputPiece::Kind::call:
      case OutputPiece::Kind::arguments:
      case OutputPiece::Kind::call_end:
        take_call(std::move(piece), deltas);
        break;
    }
  }
}

void Generation::take_reasoning(OutputPiece piece, std::vector<Delta>& deltas) {
  Delta& delta = deltas.emplace_back();
  add_infos({piece.begin, piece.begin + piece.text.size()}, delta.logprobs);
  delta.reasoning = std::move(piece.text);
}

void Generation::take_content(const OutputPiece& piece, std::vector<Delta>& deltas) {
  unsent_.push_back({piece.begin, piece.begin + piece.text.size()});
  StopStrings::Piece found = stops_.push(piece.text);
  send_content(std::move(found.text), deltas);
  if (found.stopped) {
    stopped_ = true;
    stop_string_ = std::move(found.matched);
  }
}

// Text before a call that may be the beginning of a stop string goes first: no stop string reaches over a
// call.
void Generation::take_call(OutputPiece piece, std::vector<Delta>& deltas) {
  if (request_.calls == GenerationRequest::Calls::dropped) return;
  ToolCallDelta call{.index = piece.call, .name = {}, .arguments = {}};
  switch (piece.kind) {
    case OutputPiece::Kind::call:
      send_content(stops_.release(), deltas);
      call.name = std::move(piece.text);
      break;
    case OutputPiece::Kind::call_end:
      call.complete = true;
      ++whole_calls_;
      stopped_ = request_.calls == GenerationRequest::Calls::one;
      break;
    default:
      call.arguments = std::move(piece.text);
  }
  deltas.emplace_back().call = std::move(call);
}

void Generation::send_content(std::string text, std::vector<Delta>& deltas) {
  if (text.empty()) return;
  Delta& delta = deltas.emplace_back();
  for (size_t left = text.size(); left > 0;) {
    TextRange& range = unsent_.front();
    const size_t bytes = std::min(left, range.end - range.begin);
    add_infos({range.begin, range.begin + bytes}, delta.logprobs);
    range.begin += bytes;
    left -= bytes;
    if (range.begin == range.end) unsent_.pop_front();
  }
  delta.content = std::move(text);
}

// The tokens whose text begins before the end of `range` and reaches into it. Those that lie wholly before it
// gave no text (markers, blank lines, calls) and are dropped.
void Generation::add_infos(TextRange range, std::vector<TokenInfo>& infos) {
  while (!pending_.empty() && pending_.front().range.begin < range.end) {
    if (pending_.front().range.end > range.begin) infos.push_back(std::move(pending_.front().info));
    pending_.pop_front();
  }
}

}  // namespace lily
