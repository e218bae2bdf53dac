#include "text/json.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value_stack.hpp>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/number.h"
#include "text/chat_template.h"

namespace lily {

namespace {

namespace json = boost::json;
using ErrorCode = boost::system::error_code;

constexpr std::string_view kBigInteger = "\xFF";  // no UTF-8: no key of a JSON text

// Boost.JSON's events into a value, with one difference: on_double reads the text again.
struct Handler {
  static constexpr size_t max_object_size = json::object::max_size();
  static constexpr size_t max_array_size = json::array::max_size();
  static constexpr size_t max_key_size = json::string::max_size();
  static constexpr size_t max_string_size = json::string::max_size();

  json::value_stack stack;
  std::string number;

  bool on_document_begin(ErrorCode&) { return true; }
  bool on_document_end(ErrorCode&) { return true; }
  bool on_object_begin(ErrorCode&) { return true; }
  bool on_object_end(size_t count, ErrorCode&) {
    stack.push_object(count);
    return true;
  }
  bool on_array_begin(ErrorCode&) { return true; }
  bool on_array_end(size_t count, ErrorCode&) {
    stack.push_array(count);
    return true;
  }
  bool on_key_part(json::string_view part, size_t, ErrorCode&) {
    stack.push_chars(part);
    return true;
  }
  bool on_key(json::string_view part, size_t, ErrorCode&) {
    stack.push_key(part);
    return true;
  }
  bool on_string_part(json::string_view part, size_t, ErrorCode&) {
    stack.push_chars(part);
    return true;
  }
  bool on_string(json::string_view part, size_t, ErrorCode&) {
    stack.push_string(part);
    return true;
  }
  bool on_number_part(json::string_view part, ErrorCode&) {
    number.append(part.data(), part.size());
    return true;
  }
  bool on_int64(int64_t value, json::string_view, ErrorCode&) {
    number.clear();
    stack.push_int64(value);
    return true;
  }
  bool on_uint64(uint64_t value, json::string_view, ErrorCode&) {
    number.clear();
    stack.push_uint64(value);
    return true;
  }
  bool on_double(double rough, json::string_view part, ErrorCode&) {
    number.append(part.data(), part.size());
    if (number.find_first_of(".eE") == std::string::npos) {
      stack.push_key({kBigInteger.data(), kBigInteger.size()});
      stack.push_string({number.data(), number.size()});
      stack.push_object(1);
      number.clear();
      return true;
    }
    double value = rough;
    const auto [end, error] = parse_double(number.data(), number.data() + number.size(), value);
    if (error == std::errc::result_out_of_range) {
      const double magnitude = std::fabs(rough) > 1 ? std::numeric_limits<double>::infinity() : 0.0;
      value = std::copysign(magnitude, number.front() == '-' ? -1.0 : 1.0);
    }
    number.clear();
    stack.push_double(value);
    return true;
  }
  bool on_bool(bool value, ErrorCode&) {
    stack.push_bool(value);
    return true;
  }
  bool on_null(ErrorCode&) {
    stack.push_null();
    return true;
  }
  bool on_comment_part(json::string_view, ErrorCode&) { return true; }
  bool on_comment(json::string_view, ErrorCode&) { return true; }
};

void append_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\b':
        out += "\\b";
        break;
      default:
        if (static_cast<uint8_t>(c) < 0x20)
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else
          out += c;
    }
  }
  out += '"';
}

// repr(float): the shortest digits that read back the same; an exponent below 1e-4 and from 1e16 on.
void append_double(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "NaN";
    return;
  }
  if (std::isinf(value)) {
    out += value < 0 ? "-Infinity" : "Infinity";
    return;
  }
  char buffer[40];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(result.ptr - buffer));  // [-]d[.ddd]e[+-]xx
  const size_t e = text.find('e');
  std::string digits;
  for (const char c : text.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  int exponent = 0;
  const size_t sign = text[e + 1] == '+' ? 1 : 0;
  std::from_chars(text.data() + e + 1 + sign, text.data() + text.size(), exponent);
  if (text.front() == '-') out += '-';
  const auto count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (count > 1) out.append(1, '.').append(digits, 1);
    out += fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  } else if (exponent < 0) {
    out.append("0.").append(static_cast<size_t>(-exponent - 1), '0').append(digits);
  } else if (count <= exponent + 1) {
    out.append(digits).append(static_cast<size_t>(exponent + 1 - count), '0').append(".0");
  } else {
    const auto whole = static_cast<size_t>(exponent) + 1;
    out.append(digits, 0, whole).append(1, '.').append(digits, whole);
  }
}

std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

}  // namespace

Result<json::value> parse_json(std::string_view text) {
  json::parse_options options;
  options.max_depth = 64;
  json::basic_parser<Handler> parser(options);
  parser.handler().stack.reset();
  ErrorCode error;
  const size_t used = parser.write_some(false, text.data(), text.size(), error);
  if (!error && used != text.size()) error = json::error::extra_data;
  if (error) return fail(ErrorKind::invalid_input, "not valid JSON: {} at byte {}", error.message(), used);
  return parser.handler().stack.release();
}

std::optional<std::string_view> big_integer(const json::value& value) {
  const json::object* object = value.if_object();
  if (object == nullptr || object->size() != 1) return std::nullopt;
  const json::key_value_pair& entry = *object->begin();
  if (std::string_view(entry.key().data(), entry.key().size()) != kBigInteger) return std::nullopt;
  return view(entry.value().get_string());
}

void append_python_json(std::string& out, const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      out += "null";
      break;
    case json::kind::bool_:
      out += value.get_bool() ? "true" : "false";
      break;
    case json::kind::int64:
      out += fmt::format("{}", value.get_int64());
      break;
    case json::kind::uint64:
      out += fmt::format("{}", value.get_uint64());
      break;
    case json::kind::double_:
      append_double(out, value.get_double());
      break;
    case json::kind::string:
      append_string(out, view(value.get_string()));
      break;
    case json::kind::array: {
      out += '[';
      bool first = true;
      for (const json::value& item : value.get_array()) {
        if (!std::exchange(first, false)) out += ", ";
        append_python_json(out, item);
      }
      out += ']';
      break;
    }
    case json::kind::object: {
      if (const std::optional<std::string_view> digits = big_integer(value)) {
        out += *digits;
        break;
      }
      out += '{';
      bool first = true;
      for (const auto& entry : value.get_object()) {
        if (!std::exchange(first, false)) out += ", ";
        append_string(out, {entry.key().data(), entry.key().size()});
        out += ": ";
        append_python_json(out, entry.value());
      }
      out += '}';
      break;
    }
  }
}

std::string to_python_json(const json::value& value) {
  std::string out;
  append_python_json(out, value);
  return out;
}

std::string serialize_json(const json::value& value) {
  constexpr std::string_view kBegin = "{\"\xFF\":\"", kEnd = "\"}";
  static_assert(kBegin.substr(2, 1) == kBigInteger);
  const std::string text = json::serialize(value);
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(kBegin); at != std::string::npos; at = text.find(kBegin, done)) {
    const size_t digits = at + kBegin.size();
    const size_t end = text.find(kEnd, digits);
    out.append(text, done, at - done).append(text, digits, end - digits);
    done = end + kEnd.size();
  }
  return out.append(text, done, std::string::npos);
}

}  // namespace lily
