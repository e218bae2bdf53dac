#include "server/json_fields.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "text/json.h"
#include "text/unicode.h"

namespace lily {
namespace {

namespace json = boost::json;

// Value of the four hexadecimal digits at `at`, or -1.
int hex4(std::string_view text, size_t at) {
  if (at + 4 > text.size()) {
    return -1;
  }
  int value = 0;
  for (size_t i = at; i < at + 4; ++i) {
    const char c = text[i];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) {
      return -1;
    }
    value = value * 16 + digit;
  }
  return value;
}

// The same JSON with every lone surrogate escape replaced by \ufffd. Backslashes occur only in strings.
std::string without_lone_surrogates(std::string_view text) {
  std::string out(text);
  size_t i = 0;
  while (i + 1 < out.size()) {
    if (out[i] != '\\') {
      ++i;
      continue;
    }
    const int unit = out[i + 1] == 'u' ? hex4(out, i + 2) : -1;
    if (unit < 0xD800 || unit > 0xDFFF) {
      i += 2;
      continue;
    }
    const bool pair_follows = unit < 0xDC00 && i + 7 < out.size() && out[i + 6] == '\\' && out[i + 7] == 'u';
    const int next = pair_follows ? hex4(out, i + 8) : -1;
    if (next >= 0xDC00 && next <= 0xDFFF) {
      i += 12;
      continue;
    }
    out.replace(i, 6, "\\ufffd");
    i += 6;
  }
  return out;
}

bool is_bool(const json::value& value) { return value.is_bool(); }
bool is_string(const json::value& value) { return value.is_string(); }
bool is_number(const json::value& value) { return value.is_number() || big_integer(value); }
bool is_array(const json::value& value) { return value.is_array(); }

double as_double(const json::value& value) {
  if (const std::optional<std::string_view> digits = big_integer(value)) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    double number = digits->front() == '-' ? -kInfinity : kInfinity;
    std::from_chars(digits->data(), digits->data() + digits->size(), number);  // out of range: as it is
    return number;
  }
  return value.is_double()   ? value.get_double()
         : value.is_uint64() ? static_cast<double>(value.get_uint64())
                             : static_cast<double>(value.get_int64());
}

}  // namespace

ApiResult<json::value> parse_body(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
    text.remove_prefix(kByteOrderMark.size());
  }
  Result<json::value> value = parse_json(text);
  if (!value && text.find("\\u") != std::string_view::npos) {
    Result<json::value> repaired = parse_json(without_lone_surrogates(text));
    if (repaired) {
      return std::move(*repaired);
    }
  }
  if (!value) {
    const size_t invalid = first_invalid(text);
    return fail(
        bad_field("", text.empty() ? "The body of the request is empty; expected a JSON object."
                      : invalid < text.size()
                          ? fmt::format("The body of the request is not valid UTF-8 at byte {}.", invalid)
                          : fmt::format("The body of the request is {}.", value.error().message)));
  }
  return std::move(*value);
}

bool is_object(const json::value& value) { return value.is_object() && !big_integer(value); }

ApiResult<const json::object*> body_object(const json::value& body) {
  if (!is_object(body)) {
    return fail(bad_field(
        "", fmt::format("The body of the request must be a JSON object, not {}.", json_kind(body))));
  }
  return &body.get_object();
}

std::string_view json_kind(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return big_integer(value) ? "a number" : "an object";
  }
  return "unknown";
}

void Faults::add(ApiError error) {
  if (!first_) {
    first_ = std::move(error);
  }
}

std::string Fields::path(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

const json::value* Fields::find(std::string_view key) const {
  if (faults_.any()) {
    return nullptr;
  }
  const json::value* value = object_.if_contains(json::string_view(key.data(), key.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

const json::value* Fields::expect(std::string_view key, bool (*is_kind)(const json::value&),
                                  std::string_view kind) const {
  const json::value* value = find(key);
  if (value != nullptr && !is_kind(*value)) {
    fault(key, "must be {}, not {}.", kind, json_kind(*value));
    return nullptr;
  }
  return value;
}

std::optional<bool> Fields::boolean(std::string_view key) const {
  const json::value* value = expect(key, is_bool, "a boolean");
  return value == nullptr ? std::nullopt : std::optional<bool>(value->get_bool());
}

std::optional<std::string> Fields::string(std::string_view key) const {
  const json::value* value = expect(key, is_string, "a string");
  if (value == nullptr) {
    return std::nullopt;
  }
  return std::string(view(value->get_string()));
}

std::optional<double> Fields::number(std::string_view key, Range range) const {
  const json::value* value = expect(key, is_number, "a number");
  if (value == nullptr) {
    return std::nullopt;
  }
  const double number = as_double(*value);
  if (!(range.above_low ? number > range.low : number >= range.low) || number > range.high) {
    fault(key, "must be {} {} and at most {}, not {}.", range.above_low ? "above" : "at least", range.low,
          range.high, number);
    return std::nullopt;
  }
  return number;
}

std::optional<int64_t> Fields::integer(std::string_view key, Range range) const {
  const json::value* value = expect(key, is_number, "an integer");
  if (value == nullptr) {
    return std::nullopt;
  }
  const double number = as_double(*value);
  if (!big_integer(*value) && (!std::isfinite(number) || number != std::floor(number))) {
    fault(key, "must be an integer, not {}.", number);
    return std::nullopt;
  }
  if (number < range.low || number > range.high) {
    if (std::isfinite(range.high)) {
      fault(key, "must be from {} to {}, not {}.", range.low, range.high, number);
    } else {
      fault(key, "must be at least {}, not {}.", range.low, number);
    }
    return std::nullopt;
  }
  if (value->is_int64()) {
    return value->get_int64();
  }
  constexpr double kLargest = 9.2e18;  // below 2^63, so that the conversion is defined
  if (number >= kLargest) {
    return std::numeric_limits<int64_t>::max();
  }
  return number <= -kLargest ? std::numeric_limits<int64_t>::min() : static_cast<int64_t>(number);
}

const json::array* Fields::array(std::string_view key) const {
  const json::value* value = expect(key, is_array, "an array");
  return value == nullptr ? nullptr : &value->get_array();
}

const json::object* Fields::object(std::string_view key) const {
  const json::value* value = expect(key, is_object, "an object");
  return value == nullptr ? nullptr : &value->get_object();
}

std::string Fields::required_string(std::string_view key) const {
  const std::optional<std::string> text = string(key);
  if (!text) {
    fault(key, "is missing; expected a string.");
  }
  return text.value_or("");
}

const json::array* Fields::required_array(std::string_view key) const {
  const json::array* found = array(key);
  if (found == nullptr || found->empty()) {
    fault(key, "is {}; expected an array with at least one entry.", found == nullptr ? "missing" : "empty");
  }
  return found;
}

const json::object& Fields::required_object(std::string_view key) const {
  static const json::object kNone;
  const json::object* found = object(key);
  if (found == nullptr) {
    fault(key, "is missing; expected an object.");
  }
  return found == nullptr ? kNone : *found;
}

}  // namespace lily
