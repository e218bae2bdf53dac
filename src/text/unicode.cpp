#include "text/unicode.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "text/unicode_data.h"

namespace lily {

namespace {

constexpr uint32_t kLimit = 0x110000;
constexpr uint8_t kUnstable = 8;  // see unicode_data.h

// Two stages: blocks of 256 code points, equal blocks stored once, so that what a text uses stays in cache.
class ClassTable {
 public:
  ClassTable() {
    std::map<std::string, uint16_t> known;
    size_t next = 0;
    uint8_t current = 0;
    for (uint32_t block = 0; block < kLimit >> 8; ++block) {
      std::string values(256, '\0');
      for (uint32_t i = 0; i < 256; ++i) {
        const uint32_t code_point = block << 8 | i;
        while (next < unicode_data::kClasses.size() && unicode_data::kClasses[next] >> 4 <= code_point)
          current = unicode_data::kClasses[next++] & 15;
        values[i] = static_cast<char>(current);
      }
      const auto [found, fresh] = known.try_emplace(values, static_cast<uint16_t>(known.size()));
      if (fresh) blocks_.insert(blocks_.end(), values.begin(), values.end());
      index_[block] = found->second;
    }
  }
  uint8_t operator[](uint32_t code_point) const {
    return code_point < kLimit ? blocks_[size_t{index_[code_point >> 8]} << 8 | (code_point & 255)] : 0;
  }

 private:
  uint16_t index_[kLimit >> 8];
  std::vector<uint8_t> blocks_;
};

const ClassTable& classes() {
  static const ClassTable table;
  return table;
}

uint8_t combining_class(uint32_t code_point) {
  const auto& table = unicode_data::kCombining;
  const auto after = std::upper_bound(table.begin(), table.end(), code_point << 8 | 255);
  return after == table.begin() ? 0 : static_cast<uint8_t>(*(after - 1) & 255);
}

// Hangul syllables are composed by arithmetic (The Unicode Standard, 3.12).
constexpr uint32_t kSyllables = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11A7;
constexpr uint32_t kVowels = 21, kTails = 28, kLeads = 19;

struct Composition {
  uint64_t parts;  // first << 32 | second
  uint32_t composed;
};

const std::vector<Composition>& compositions() {
  static const std::vector<Composition> table = [] {
    std::vector<Composition> made;
    const auto& excluded = unicode_data::kExclusions;
    for (const auto& row : unicode_data::kDecompositions)
      if (row.second != 0 && !std::binary_search(excluded.begin(), excluded.end(), row.code_point))
        made.push_back({uint64_t{row.first} << 32 | row.second, row.code_point});
    std::sort(made.begin(), made.end(), [](const auto& a, const auto& b) { return a.parts < b.parts; });
    return made;
  }();
  return table;
}

// 0 when the two do not compose.
uint32_t compose(uint32_t first, uint32_t second) {
  if (first - kLead < kLeads && second - kVowel < kVowels)
    return kSyllables + ((first - kLead) * kVowels + (second - kVowel)) * kTails;
  if (first - kSyllables < kLeads * kVowels * kTails && (first - kSyllables) % kTails == 0 &&
      second - kTail - 1 < kTails - 1)
    return first + (second - kTail);
  const uint64_t parts = uint64_t{first} << 32 | second;
  const auto& table = compositions();
  const auto found = std::lower_bound(table.begin(), table.end(), parts,
                                      [](const Composition& row, uint64_t key) { return row.parts < key; });
  return found != table.end() && found->parts == parts ? found->composed : 0;
}

struct Unit {
  uint32_t code_point;
  uint8_t combining;
};

void decompose(uint32_t code_point, std::vector<Unit>& out) {
  if (code_point - kSyllables < kLeads * kVowels * kTails) {
    const uint32_t index = code_point - kSyllables;
    out.push_back({kLead + index / (kVowels * kTails), 0});
    out.push_back({kVowel + index % (kVowels * kTails) / kTails, 0});
    if (index % kTails != 0) out.push_back({kTail + index % kTails, 0});
    return;
  }
  const auto& table = unicode_data::kDecompositions;
  const auto found = std::lower_bound(
      table.begin(), table.end(), code_point,
      [](const unicode_data::Decomposition& row, uint32_t key) { return row.code_point < key; });
  if (found == table.end() || found->code_point != code_point) {
    out.push_back({code_point, combining_class(code_point)});
    return;
  }
  decompose(found->first, out);  // at most four levels deep
  if (found->second != 0) decompose(found->second, out);
}

void order_marks(std::vector<Unit>& units) {
  for (size_t i = 0; i < units.size();) {
    if (units[i].combining == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < units.size() && units[end].combining != 0) ++end;
    std::stable_sort(units.begin() + static_cast<ptrdiff_t>(i), units.begin() + static_cast<ptrdiff_t>(end),
                     [](const Unit& a, const Unit& b) { return a.combining < b.combining; });
    i = end;
  }
}

// Canonical composition: each unit joins the last starter unless a unit between them blocks it.
void append_composed(const std::vector<Unit>& units, std::string& out, std::vector<Unit>& kept) {
  kept.clear();
  ptrdiff_t starter = -1;
  for (const Unit& unit : units) {
    if (starter >= 0) {
      const bool adjacent = kept.size() == static_cast<size_t>(starter) + 1;
      const bool blocked = !adjacent && kept.back().combining >= unit.combining;
      const uint32_t composed =
          blocked ? 0 : compose(kept[static_cast<size_t>(starter)].code_point, unit.code_point);
      if (composed != 0) {
        kept[static_cast<size_t>(starter)].code_point = composed;
        continue;
      }
    }
    if (unit.combining == 0) starter = static_cast<ptrdiff_t>(kept.size());
    kept.push_back(unit);
  }
  for (const Unit& unit : kept) append_utf8(out, unit.code_point);
}

size_t skip_ascii(std::string_view text, size_t at) {
  while (at + 8 <= text.size()) {
    uint64_t word;
    std::memcpy(&word, text.data() + at, 8);
    if ((word & 0x8080808080808080U) != 0) break;
    at += 8;
  }
  while (at < text.size() && static_cast<uint8_t>(text[at]) < 0x80) ++at;
  return at;
}

bool unstable_at(std::string_view text, size_t at, CodePoint* found) {
  *found = decode_valid(text, at);
  return (classes()[found->value] & kUnstable) != 0;
}

// Offset of the first code point that NFC may change, and of the stable one before it.
struct Span {
  size_t begin;     // the stable code point before, or the first unstable one
  size_t unstable;  // text.size() when there is none
};
Span next_unstable(std::string_view text, size_t at) {
  size_t before = at;
  while (true) {
    const size_t next = skip_ascii(text, at);
    if (next > at) before = next - 1;
    at = next;
    if (at >= text.size()) return {at, at};
    CodePoint found{};
    if (unstable_at(text, at, &found)) return {before, at};
    before = at;
    at += found.length;
  }
}

}  // namespace

CharClass class_of(uint32_t code_point) { return static_cast<CharClass>(classes()[code_point] & 7); }

CodePoint decode_valid(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[at + i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 31) << 6 | (byte(1) & 63), 2};
  if (lead < 0xF0) return {(lead & 15) << 12 | (byte(1) & 63) << 6 | (byte(2) & 63), 3};
  return {(lead & 7) << 18 | (byte(1) & 63) << 12 | (byte(2) & 63) << 6 | (byte(3) & 63), 4};
}

Utf8Step utf8_step(std::string_view text, size_t at) {
  const auto lead = static_cast<uint8_t>(text[at]);
  if (lead < 0x80) return {1, 0, false};
  if (lead < 0xC2 || lead > 0xF4) return {0, 1, false};
  const uint32_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte excludes overlong forms, surrogates and what lies beyond U+10FFFF.
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (uint32_t i = 1; i < length; ++i) {
    if (at + i >= text.size()) return {0, i, true};
    const auto byte = static_cast<uint8_t>(text[at + i]);
    if (byte < (i == 1 ? low : 0x80) || byte > (i == 1 ? high : 0xBF)) return {0, i, false};
  }
  return {length, 0, false};
}

size_t first_invalid(std::string_view text) {
  size_t at = 0;
  while ((at = skip_ascii(text, at)) < text.size()) {
    const Utf8Step step = utf8_step(text, at);
    if (step.length == 0) return at;
    at += step.length;
  }
  return text.size();
}

void append_utf8(std::string& out, uint32_t code_point) {
  const auto push = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xC0 | code_point >> 6);
    push(0x80 | (code_point & 63));
  } else if (code_point < 0x10000) {
    push(0xE0 | code_point >> 12);
    push(0x80 | (code_point >> 6 & 63));
    push(0x80 | (code_point & 63));
  } else {
    push(0xF0 | code_point >> 18);
    push(0x80 | (code_point >> 12 & 63));
    push(0x80 | (code_point >> 6 & 63));
    push(0x80 | (code_point & 63));
  }
}

std::string replace_invalid(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t valid = first_invalid(text.substr(at));
    out += text.substr(at, valid);
    at += valid;
    if (at < text.size()) {
      out += kReplacement;
      at += utf8_step(text, at).maximal;
    }
  }
  return out;
}

std::string_view nfc(std::string_view text, std::string& storage) {
  Span span = next_unstable(text, 0);
  if (span.unstable == text.size()) return text;
  storage.clear();
  storage.reserve(text.size());
  std::vector<Unit> units, kept;
  size_t done = 0;
  while (span.unstable < text.size()) {
    storage += text.substr(done, span.begin - done);
    units.clear();
    // A stable code point begins a new span: nothing after it can reach what stands before it.
    size_t end = span.begin;
    CodePoint found{};
    while (end < text.size() && (unstable_at(text, end, &found) || end == span.begin)) {
      decompose(found.value, units);
      end += found.length;
    }
    order_marks(units);
    append_composed(units, storage, kept);
    done = end;
    span = next_unstable(text, end);
  }
  storage += text.substr(done);
  return storage;
}

std::string_view python_strip(std::string_view text) {
  const auto is_space = [](uint32_t c) {
    return class_of(c) == CharClass::space || (c >= 0x1C && c <= 0x1F);  // Python counts the separators too
  };
  size_t begin = 0;
  while (begin < text.size()) {
    const Utf8Step step = utf8_step(text, begin);
    if (step.length == 0 || !is_space(decode_valid(text, begin).value)) break;
    begin += step.length;
  }
  size_t end = text.size();
  while (end > begin) {
    size_t start = end - 1;
    while (start > begin && end - start < 4 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
    if (utf8_step(text, start).length != end - start || !is_space(decode_valid(text, start).value)) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}

}  // namespace lily
