// A conversation as the template wrote it: the text, and which parts of it are message text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lily {

struct RenderedPrompt {
  struct Range {
    size_t begin;  // byte offsets into text, begin <= end
    size_t end;
  };
  std::string text{};
  std::vector<Range> literal{};  // ascending, disjoint: added tokens are not recognised here
  // Where later requests of the same conversation or client will part from this one, so that what comes
  // before is worth keeping: after the system turn, before the last message, after the opening of the first
  // answer to the last query (a later query drops the reasoning that follows), after that of the answer to
  // come. Ascending byte offsets; an added token follows each of them.
  std::vector<size_t> marks{};
  // Where each turn begins, ascending; the answer to come is one too. `role` is that of its message.
  struct Turn {
    size_t begin;
    std::string_view role;
  };
  std::vector<Turn> turns{};
  // Answers of earlier turns that are written with their think block, from it to the end of the text; added
  // tokens stand at both borders. `message` is an index into the conversation.
  struct Answer {
    size_t begin;
    size_t end;
    size_t message;
  };
  std::vector<Answer> answers{};
  // Where the generated text starts: inside the think block, or after it.
  bool starts_in_think = true;
  // The generated text goes on with a message that already has text (continue_final_message): line breaks at
  // its start belong to it.
  bool continues_text = false;
};

}  // namespace lily
