// Splits generated text into reasoning and content at the first </think>. Streaming: the result does not
// depend on how the text is cut. Blank lines around the marker belong to neither.
#pragma once

#include <string>
#include <string_view>

namespace lily {

class ReasoningSplitter {
 public:
  struct Delta {
    std::string reasoning;
    std::string content;
  };
  // `starts_in_think` comes from the rendered prompt.
  explicit ReasoningSplitter(bool starts_in_think) : in_think_(starts_in_think) {}
  Delta push(std::string_view text);
  Delta flush();  // end of the answer: what was held back
  bool in_think() const { return in_think_; }

 private:
  Delta step(std::string_view text, bool last);
  bool in_think_;
  bool at_content_start_ = true;
  bool at_reasoning_start_ = true;
  std::string held_;
};

}  // namespace lily
