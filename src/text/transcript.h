// A whole answer as its parser reads it: pieces joined.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/output_piece.h"

namespace lily {

struct ParsedCall {
  std::string name;
  std::string arguments;  // JSON text of an object
  bool complete = false;  // otherwise cut off: `arguments` is the beginning of an object
};

struct ParsedOutput {
  std::string reasoning;
  std::string content;
  std::vector<ParsedCall> calls;

  void add(const OutputPiece& piece);
};

}  // namespace lily
