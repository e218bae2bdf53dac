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

// Drops blank lines at the start of a part; indentation of its first line stays. False when the text does not
// decide yet.
bool ReasoningSplitter::start(bool may_open, State after, bool last) {
  const size_t first = held_.find_first_not_of(kBlank);
  if (first == std::string::npos) {
    if (last) held_.clear();
    return false;
  }
  const std::string_view rest = std::string_view(held_).substr(first);
  if (may_open && rest.starts_with(kOpen)) {
    held_.erase(0, first + kOpen.size());
    state_ = State::think_start;
    return true;
  }
  if (may_open && !last && kOpen.starts_with(rest)) return false;
  held_.erase(0, held_.find_last_of('\n', first) + 1);
  state_ = after;
  return true;
}

bool ReasoningSplitter::think(Delta& delta, bool last) {
  const size_t close = held_.find(kClose);
  if (close != std::string::npos) {
    const size_t end = held_.find_last_not_of(kBlank, close == 0 ? 0 : close - 1);
    if (close > 0 && end != std::string::npos) delta.reasoning += held_.substr(0, end + 1);
    held_.erase(0, close + kClose.size());
    state_ = State::content_start;
    return true;
  }
  size_t safe = held_.size();
  if (!last) {
    safe -= partial(held_, kClose);
    safe = safe == 0 ? 0 : held_.find_last_not_of(kBlank, safe - 1) + 1;
  }
  delta.reasoning += held_.substr(0, safe);
  held_.erase(0, safe);
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
      delta.content += held_;
      held_.clear();
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
