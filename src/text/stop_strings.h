// Finds stop strings in streamed text; holds back only a suffix that is a proper prefix of one of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lily {

class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  struct Piece {
    std::string text;      // safe to send
    bool stopped = false;  // a stop string was found: text ends before it, nothing follows
    std::string matched;   // the stop string
  };
  Piece push(std::string_view text);
  std::string flush();  // the held-back text, at the end of the answer

 private:
  std::vector<std::string> stops_;
  std::string held_;
};

}  // namespace lily
