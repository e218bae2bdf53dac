// What a parser of model output says, piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lily {

struct OutputPiece {
  enum class Kind : uint8_t {
    reasoning,
    content,
    call,       // a call begins; text: the name of the function
    arguments,  // the next part of the JSON text of its arguments
    call_end,   // its arguments are complete. A call without it was cut off
  };
  Kind kind;
  std::string text{};
  uint32_t call = 0;  // which call, from 0
  size_t begin = 0;   // of reasoning and content: where `text` stands in the parser's input
};

}  // namespace lily
