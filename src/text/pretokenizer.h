// The pre-tokeniser of the Qwen 3.5/3.6 family, written out by hand:
//   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*
//   |\s*[\r\n]+|\s+(?!\S)|\s+
// It matches every character, so the pieces are the whole text. No backtracking: linear in the text.
#pragma once

#include <cstddef>
#include <string_view>

namespace lily {

extern const std::string_view kPretokenizerRegex;

// End of the piece that begins at `begin` (< text.size()); the text must be valid UTF-8.
size_t piece_end(std::string_view text, size_t begin);

}  // namespace lily
