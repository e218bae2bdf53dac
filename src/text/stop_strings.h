// Finds stop strings in streamed text; holds back only a suffix that is a proper prefix of one of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lily {

class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops);  // empty strings are ignored
  struct Piece {
    std::string text;      // safe to send
    bool stopped = false;  // a stop string was found: text ends before it, nothing follows
    std::string matched;   // the stop string: the first to be complete, the longest of those
  };
  // Independent of how the text is cut. Linear in the text times the number of stop strings.
  Piece push(std::string_view text);
  std::string flush();    // the held-back text, at the end of the answer
  std::string release();  // the same, and the search starts anew: what follows does not continue this text

 private:
  struct Stop {
    std::string text;
    std::vector<uint32_t> border;  // of each prefix, its longest proper prefix that is also its suffix
    uint32_t matched = 0;          // longest prefix that the text so far ends in
  };
  static bool advance(Stop& stop, char c);

  std::vector<Stop> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace lily
