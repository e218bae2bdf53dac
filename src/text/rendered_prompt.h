// A conversation as the template wrote it: the text, and which parts of it are message text.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lily {

struct RenderedPrompt {
  struct Range {
    size_t begin;  // byte offsets into text, begin <= end
    size_t end;
  };
  std::string text;
  std::vector<Range> literal;  // ascending, disjoint: added tokens are not recognised here
  // Where the generated text starts: inside the think block, or after it.
  bool starts_in_think = true;
  // The generated text goes on with a message that already has text (continue_final_message): line breaks at
  // its start belong to it.
  bool continues_text = false;
};

}  // namespace lily
