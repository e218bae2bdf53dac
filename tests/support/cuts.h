// Feeds a text to a streaming object in pieces, for properties of the kind "however it is cut".
#pragma once

#include <rapidcheck.h>

#include <string>
#include <string_view>
#include <vector>

namespace lily::test {

// `text` in pieces of 1 to 8 bytes drawn by RapidCheck.
inline std::vector<std::string> cut(const std::string& text) {
  std::vector<std::string> pieces;
  for (size_t at = 0; at < text.size();) {
    const auto length = static_cast<size_t>(*rc::gen::inRange(1, 9));
    pieces.push_back(text.substr(at, length));
    at += length;
  }
  return pieces;
}

// A text put together from the given pieces: more likely to meet the markers than random bytes.
inline rc::Gen<std::string> text_of_pieces(std::vector<std::string> pieces) {
  return rc::gen::map(rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(std::move(pieces))),
                      [](const std::vector<std::string>& parts) {
                        std::string out;
                        for (const std::string& part : parts) out += part;
                        return out;
                      });
}

}  // namespace lily::test
