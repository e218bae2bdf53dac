#include "text/reasoning.h"

#include <algorithm>

namespace lily {

namespace {

constexpr std::string_view kOpen = "<think>", kClose = "</think>", kBlank = " \t\r\n";

// Length of the longest proper prefix of `marker` that `text` ends in.
size_t partial(std::string_view text, std::string_view marker) {
  for (size_t n = std::min(text.size(), marker.size() - 1); n > 0; --n)
    if (text.ends_with(marker.substr(0, n))) return n;
  return 0;
}

}  // namespace

ReasoningSplitter::ReasoningSplitter(bool starts_in_think, bool continues_text)
    : state_(starts_in_think  ? State::think_start
             : continues_text ? State::content
                              : State::answer_start) {}

void ReasoningSplitter::drop(size_t bytes) {
  held_.erase(0, bytes);
  done_ += bytes;
  blanks_ -= std::min(blanks_, bytes);
}

void ReasoningSplitter::take_reasoning(Delta& delta, size_t bytes) const {
  delta.reasoning_begin = done_;
  delta.reasoning = held_.substr(0, bytes);
}

// Drops blank lines at the start of a part; indentation of its first line stays. False when the text does not
// decide yet.
bool ReasoningSplitter::start(bool may_open, State after, bool last) {
  const size_t first = held_.find_first_not_of(kBlank, blanks_);
  if (first == std::string::npos) {
    blanks_ = held_.size();
    if (last) drop(held_.size());
    return false;
  }
  const std::string_view rest = std::string_view(held_).substr(first);
  if (may_open && rest.starts_with(kOpen)) {
    drop(first + kOpen.size());
    state_ = State::think_start;
    return true;
  }
  if (may_open && !last && kOpen.starts_with(rest)) return false;
  drop(held_.find_last_of('\n', first) + 1);
  state_ = after;
  return true;
}

bool ReasoningSplitter::think(Delta& delta, bool last) {
  const size_t close = held_.find(kClose, blanks_);
  if (close != std::string::npos) {
    const size_t end = held_.find_last_not_of(kBlank, close == 0 ? 0 : close - 1);
    if (close > 0 && end != std::string::npos) take_reasoning(delta, end + 1);
    drop(close + kClose.size());
    state_ = State::content_start;
    return true;
  }
  size_t safe = held_.size();
  if (!last) {
    safe -= partial(held_, kClose);
    const size_t certain = safe;
    const size_t text = certain <= blanks_ ? std::string::npos : held_.find_last_not_of(kBlank, certain - 1);
    safe = text == std::string::npos || text < blanks_ ? 0 : text + 1;
    blanks_ = safe == 0 ? certain : blanks_;
  }
  take_reasoning(delta, safe);
  drop(safe);
  return false;
}

bool ReasoningSplitter::step(Delta& delta, bool last) {
  switch (state_) {
    case State::think_start:
      // </think> itself is text for start(): an empty block goes on to think() and ends there.
      return start(true, State::think, last);
    case State::think:
      return think(delta, last);
    case State::answer_start:
      return start(true, State::content, last);
    case State::content_start:
      return start(false, State::content, last);
    case State::content:
      delta.content_begin = done_;
      delta.content = held_;
      drop(held_.size());
      return false;
  }
  return false;
}

ReasoningSplitter::Delta ReasoningSplitter::push(std::string_view text) {
  Delta delta;
  held_ += text;
  while (step(delta, false)) {
  }
  return delta;
}

ReasoningSplitter::Delta ReasoningSplitter::flush() {
  Delta delta;
  while (step(delta, true)) {
  }
  return delta;
}

}  // namespace lily
