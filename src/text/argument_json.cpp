// The text of one parameter as a JSON value.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/number.h"
#include "text/json.h"
#include "text/tool_schemas.h"

namespace lily {

namespace {

namespace json = boost::json;

constexpr size_t kMostNumber = 400;  // bytes

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

bool is_word(std::string_view text, std::string_view lower) {
  return std::equal(text.begin(), text.end(), lower.begin(), lower.end(),
                    [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; });
}

bool is_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// As Python's repr(): what its json module would write.
std::string double_text(double value) {
  std::string out;
  append_python_json(out, json::value(value));
  return out;
}

std::optional<double> to_double(std::string_view text) {
  if (text.find_first_not_of("0123456789+-.eE") != std::string_view::npos) return std::nullopt;  // no "inf"
  double value = 0;
  const auto [end, error] = parse_double(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<std::string> integer_json(std::string_view text) {
  const bool negative = text.starts_with('-');
  std::string_view digits = text.substr(negative ? 1 : 0);
  if (text.size() > kMostNumber) return std::nullopt;
  if (is_digits(digits)) {  // of any length: written as it is
    digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size() - 1));
    return fmt::format("{}{}", negative && digits != "0" ? "-" : "", digits);
  }
  constexpr double kExact = 9007199254740992.0;  // 2^53
  const std::optional<double> value = to_double(text);
  if (!value || *value != std::floor(*value) || std::fabs(*value) > kExact) return std::nullopt;
  return std::to_string(static_cast<int64_t>(*value));
}

std::optional<std::string> number_json(std::string_view text) {
  if (text.size() > kMostNumber) return std::nullopt;
  if (std::optional<std::string> whole = integer_json(text);
      whole && text.find_first_of(".eE") == std::string_view::npos)
    return whole;
  const std::optional<double> value = to_double(text);
  return value ? std::optional<std::string>(double_text(*value)) : std::nullopt;
}

// Python's way of writing JSON: single quotes, True, False, None. Words and quotes are exchanged; whether the
// outcome is JSON is for the parser to say.
std::string from_python(std::string_view text) {
  std::string out;
  char quote = '\0';
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != '\0') {
      if (c == '\\' && i + 1 < text.size()) {
        if (text[i + 1] != '\'') out += c;
        out += text[++i];
      } else if (c == quote) {
        out += '"';
        quote = '\0';
      } else {
        if (c == '"') out += '\\';
        out += c;
      }
      continue;
    }
    const std::string_view rest = text.substr(i);
    if (c == '\'' || c == '"') {
      quote = c;
      out += '"';
    } else if (rest.starts_with("True")) {
      out += "true";
      i += 3;
    } else if (rest.starts_with("False")) {
      out += "false";
      i += 4;
    } else if (rest.starts_with("None")) {
      out += "null";
      i += 3;
    } else {
      out += c;
    }
  }
  return out;
}

bool is_json_of(std::string_view text, JsonType type) {
  const Result<json::value> value = parse_json(text);
  return value && (type == JsonType::array ? value->is_array() : value->is_object() && !big_integer(*value));
}

std::optional<std::string> container_json(std::string_view text, JsonType type) {
  if (!text.starts_with(type == JsonType::array ? '[' : '{')) return std::nullopt;
  if (is_json_of(text, type)) return std::string(text);
  std::string python = from_python(text);
  return is_json_of(python, type) ? std::optional<std::string>(std::move(python)) : std::nullopt;
}

std::optional<std::string> convert(std::string_view text, JsonType type) {
  switch (type) {
    case JsonType::null:
      return text == "null" || text == "None" ? std::optional<std::string>("null") : std::nullopt;
    case JsonType::boolean:
      return is_word(text, "true")    ? std::optional<std::string>("true")
             : is_word(text, "false") ? std::optional<std::string>("false")
                                      : std::nullopt;
    case JsonType::integer:
      return integer_json(text);
    case JsonType::number:
      return number_json(text);
    case JsonType::array:
    case JsonType::object:
      return container_json(text, type);
    case JsonType::string:
      break;
  }
  return std::nullopt;
}

bool has(const std::vector<JsonType>& types, JsonType type) {
  return std::find(types.begin(), types.end(), type) != types.end();
}

}  // namespace

void append_json_escaped(std::string& out, std::string_view text) {
  std::string quoted;
  append_python_json(quoted, json::value(json::string_view(text.data(), text.size())));
  out.append(quoted, 1, quoted.size() - 2);
}

std::string argument_json(std::string_view text, const std::vector<JsonType>& types) {
  const std::string_view value = trimmed(text);
  const bool string = has(types, JsonType::string);
  if (has(types, JsonType::null) && (value == "null" || (!string && value == "None"))) return "null";
  for (const JsonType type : {JsonType::array, JsonType::object}) {
    if (!has(types, type)) continue;
    if (std::optional<std::string> converted = container_json(value, type)) return *std::move(converted);
  }
  for (const JsonType type : types) {
    if (type == JsonType::string) break;
    if (std::optional<std::string> converted = convert(value, type)) return *std::move(converted);
  }
  std::string out(1, '"');
  append_json_escaped(out, text);
  out.push_back('"');
  return out;
}

bool may_not_be_string(std::string_view prefix, const std::vector<JsonType>& types) {
  if (types.empty() || (types.size() == 1 && types.front() == JsonType::string)) return false;
  if (!has(types, JsonType::string)) return true;  // known when it is complete
  const std::string_view value = prefix.substr(std::min(prefix.find_first_not_of(" \t\r\n"), prefix.size()));
  if (value.empty()) return true;
  const std::string_view word = trimmed(value);
  const auto begins = [&](std::string_view whole) {
    return word.size() <= whole.size() && is_word(word, whole.substr(0, word.size()));
  };
  for (const JsonType type : types) {
    if ((type == JsonType::null && begins("null")) || (type == JsonType::array && value.front() == '[') ||
        (type == JsonType::object && value.front() == '{'))
      return true;
    if (type == JsonType::boolean && (begins("true") || begins("false"))) return true;
    if ((type == JsonType::integer || type == JsonType::number) && word.size() <= kMostNumber &&
        word.find_first_not_of("0123456789+-.eE") == std::string_view::npos)
      return true;
  }
  return false;
}

}  // namespace lily
