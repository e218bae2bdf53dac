// Splits generated text into reasoning and content at the first </think>. Streaming: the result does not
// depend on how the text is cut. Blank lines around the marker belong to neither.
#pragma once

#include <string>
#include <string_view>

namespace lily {

class ReasoningSplitter {
 public:
  // Both may be set by one push, when the marker lies inside its text; the reasoning comes first.
  struct Delta {
    std::string reasoning;
    std::string content;
    size_t reasoning_begin = 0;  // where each stands in all the text that was pushed
    size_t content_begin = 0;
  };
  // `starts_in_think` and `continues_text` come from the rendered prompt. A <think> that the model writes
  // itself, with only blanks before it, opens the think block and is dropped.
  explicit ReasoningSplitter(bool starts_in_think, bool continues_text = false);
  Delta push(std::string_view text);
  Delta flush();  // end of the answer: what was held back
  bool in_think() const { return state_ == State::think_start || state_ == State::think; }

 private:
  enum class State {
    think_start,    // only blanks so far
    think,          // in the think block, some of it sent
    answer_start,   // thinking was off: only blanks so far, the model may still open a block
    content_start,  // after the marker: only blanks so far
    content,
  };
  bool step(Delta& delta, bool last);
  bool start(bool may_open, State after, bool last);
  bool think(Delta& delta, bool last);
  void drop(size_t bytes);
  void take_reasoning(Delta& delta, size_t bytes) const;

  State state_;
  size_t blanks_ = 0;  // so many bytes of held_ are known to be blank: they are looked at once
  size_t done_ = 0;    // bytes that were in held_ before
  std::string held_;   // not decided yet: blanks, or the beginning of a marker
};

}  // namespace lily
