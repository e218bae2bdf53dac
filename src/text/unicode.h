// The little Unicode that the tokenizer needs: UTF-8, the classes of its regex, NFC. Tables of the program's
// own: ids must not change with the Unicode version of a system library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lily {

// What a code point is to the pre-tokeniser's regex: \p{L}, \p{M}, \p{N}, \s, or none of them.
enum class CharClass : uint8_t { other = 0, letter = 1, mark = 2, number = 3, space = 4 };

CharClass class_of(uint32_t code_point);

struct CodePoint {
  uint32_t value;
  uint32_t length;  // bytes
};

// The code point that begins at `at`; the text must be valid UTF-8.
CodePoint decode_valid(std::string_view text, size_t at);

// Length of the well-formed sequence at `at`, or 0. With 0, `maximal` is the length of the maximal invalid
// subpart (Unicode 3.9, U+FFFD substitution of maximal subparts), and `incomplete` tells that the text ends
// in the middle of a sequence that may still become valid.
struct Utf8Step {
  uint32_t length;
  uint32_t maximal;
  bool incomplete;
};
Utf8Step utf8_step(std::string_view text, size_t at);

// Offset of the first byte that is not part of valid UTF-8; text.size() when all is valid.
size_t first_invalid(std::string_view text);

void append_utf8(std::string& out, uint32_t code_point);

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Each maximal invalid subpart becomes one U+FFFD.
std::string replace_invalid(std::string_view text);

// NFC of valid UTF-8: `text` itself when nothing changes, else `storage`, which holds the result.
// O(n log n) in the longest run of combining marks, linear otherwise.
std::string_view nfc(std::string_view text, std::string& storage);

// Python's str.strip(): the view without leading and trailing str.isspace() characters.
std::string_view python_strip(std::string_view text);

}  // namespace lily
