#include "text/pretokenizer.h"

#include <array>

#include "text/unicode.h"

namespace lily {

const std::string_view kPretokenizerRegex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

constexpr std::array<CharClass, 128> kAscii = [] {
  std::array<CharClass, 128> table{};
  for (int c = 0; c < 128; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool space = (c >= 9 && c <= 13) || c == ' ';
    table[static_cast<size_t>(c)] = letter                 ? CharClass::letter
                                    : c >= '0' && c <= '9' ? CharClass::number
                                    : space                ? CharClass::space
                                                           : CharClass::other;
  }
  return table;
}();

struct Char {
  CharClass kind;
  uint32_t length;
};

Char char_at(std::string_view text, size_t at) {
  const auto byte = static_cast<uint8_t>(text[at]);
  if (byte < 0x80) return {kAscii[byte], 1};
  const CodePoint code_point = decode_valid(text, at);
  return {class_of(code_point.value), code_point.length};
}

bool is_word(CharClass kind) { return kind == CharClass::letter || kind == CharClass::mark; }
bool is_newline(char c) { return c == '\n' || c == '\r'; }

template <class Predicate>
size_t skip(std::string_view text, size_t at, Predicate wanted) {
  while (at < text.size()) {
    const Char next = char_at(text, at);
    if (!wanted(next.kind)) break;
    at += next.length;
  }
  return at;
}

// 's 't 're 've 'm 'll 'd after the apostrophe at `begin`, in any case; 0 when there is none. U+017F folds to
// s.
size_t contraction_end(std::string_view text, size_t begin) {
  const auto lower = [&](size_t at) { return at < text.size() ? text[at] | 0x20 : 0; };
  const int first = lower(begin + 1), second = lower(begin + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return begin + 2;
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
    return begin + 3;
  return text.substr(begin + 1, 2) == "\xC5\xBF" ? begin + 3 : 0;
}

size_t symbols_end(std::string_view text, size_t begin) {
  size_t at = skip(text, begin, [](CharClass kind) { return kind == CharClass::other; });
  while (at < text.size() && is_newline(text[at])) ++at;
  return at;
}

// \s*[\r\n]+ ends after the last line break of the run of white space; \s+(?!\S) leaves its last character to
// what follows it; \s+ takes the rest.
size_t spaces_end(std::string_view text, size_t begin) {
  size_t at = begin, after_newline = 0, last = begin;
  while (at < text.size()) {
    const Char next = char_at(text, at);
    if (next.kind != CharClass::space) break;
    if (is_newline(text[at])) after_newline = at + 1;
    last = at;
    at += next.length;
  }
  if (after_newline != 0) return after_newline;
  if (at == text.size() || last == begin) return at;
  return last;
}

}  // namespace

size_t piece_end(std::string_view text, size_t begin) {
  if (text[begin] == '\'')
    if (const size_t end = contraction_end(text, begin); end != 0) return end;
  const Char first = char_at(text, begin);
  const size_t after = begin + first.length;
  if (is_word(first.kind)) return skip(text, after, is_word);
  if (first.kind == CharClass::number) return after;
  if (after < text.size() && !is_newline(text[begin])) {
    const Char second = char_at(text, after);
    if (is_word(second.kind)) return skip(text, after + second.length, is_word);
    if (text[begin] == ' ' && second.kind == CharClass::other) return symbols_end(text, after);
  }
  return first.kind == CharClass::other ? symbols_end(text, begin) : spaces_end(text, begin);
}

}  // namespace lily
