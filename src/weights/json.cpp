#include "weights/json.h"

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <unordered_set>
#include <vector>

#include "weights/faults.h"

namespace lily {
namespace {

namespace json = boost::json;

// Walks the text once without building anything but the sets of keys of the open objects.
class Checker {
 public:
  static constexpr size_t max_object_size = static_cast<size_t>(-1);
  static constexpr size_t max_array_size = static_cast<size_t>(-1);
  static constexpr size_t max_key_size = static_cast<size_t>(-1);
  static constexpr size_t max_string_size = static_cast<size_t>(-1);

  explicit Checker(size_t max_values) : max_values_(max_values) {}
  const std::string& reason() const { return reason_; }

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code& error) {
    keys_.emplace_back();
    return count(error);
  }
  bool on_object_end(size_t, json::error_code&) {
    keys_.pop_back();
    return true;
  }
  bool on_array_begin(json::error_code& error) { return count(error); }
  bool on_array_end(size_t, json::error_code&) { return true; }
  bool on_key_part(json::string_view part, size_t, json::error_code&) {
    key_.append(part.data(), part.size());
    return true;
  }
  bool on_key(json::string_view part, size_t, json::error_code& error) {
    key_.append(part.data(), part.size());
    if (!keys_.back().insert(key_).second) {
      return stop(fmt::format("the key {} is there twice", in_quotes(key_)), error);
    }
    key_.clear();
    return true;
  }
  bool on_string_part(json::string_view, size_t, json::error_code&) { return true; }
  bool on_string(json::string_view, size_t, json::error_code& error) { return count(error); }
  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(int64_t, json::string_view, json::error_code& error) { return count(error); }
  bool on_uint64(uint64_t, json::string_view, json::error_code& error) { return count(error); }
  bool on_double(double, json::string_view, json::error_code& error) { return count(error); }
  bool on_bool(bool, json::error_code& error) { return count(error); }
  bool on_null(json::error_code& error) { return count(error); }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }

 private:
  bool stop(std::string reason, json::error_code& error) {
    reason_ = std::move(reason);
    error = json::error::syntax;
    return false;
  }
  bool count(json::error_code& error) {
    return ++values_ <= max_values_ || stop(fmt::format("more than {} values", max_values_), error);
  }

  size_t max_values_;
  size_t values_ = 0;
  std::string key_;
  std::string reason_;
  std::vector<std::unordered_set<std::string>> keys_;
};

void write_pretty(const json::value& value, bool sorted, size_t indent, std::string& out);

void write_members(const json::object& object, bool sorted, size_t indent, std::string& out) {
  std::vector<const json::key_value_pair*> members;
  for (const auto& member : object) {
    members.push_back(&member);
  }
  if (sorted) {
    std::sort(members.begin(), members.end(), [](auto* a, auto* b) { return a->key() < b->key(); });
  }
  const std::string margin = fmt::format("{:{}}", "", indent + 4);
  for (size_t i = 0; i < members.size(); ++i) {
    out += fmt::format("{}{}{}: ", i == 0 ? "\n" : ",\n", margin, json::serialize(members[i]->key()));
    write_pretty(members[i]->value(), sorted, indent + 4, out);
  }
}

void write_pretty(const json::value& value, bool sorted, size_t indent, std::string& out) {
  const std::string end = fmt::format("\n{:{}}", "", indent);
  if (const auto* object = value.if_object(); object != nullptr && !object->empty()) {
    out += "{";
    write_members(*object, sorted, indent, out);
    out += end;
    out += "}";
  } else if (const auto* array = value.if_array(); array != nullptr && !array->empty()) {
    for (size_t i = 0; i < array->size(); ++i) {
      out += fmt::format("{}{:{}}", i == 0 ? "[\n" : ",\n", "", indent + 4);
      write_pretty((*array)[i], sorted, indent + 4, out);
    }
    out += end;
    out += "]";
  } else if (value.is_double() && std::isfinite(value.get_double())) {
    const std::string text = fmt::format("{}", value.get_double());  // shortest form that reads back the same
    out += text;
    out += text.find_first_of(".e") == std::string::npos ? ".0" : "";
  } else {
    out += json::serialize(value);
  }
}

}  // namespace

Result<json::object> parse_json_object(std::string_view text, std::string_view what,
                                       const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    return fail(ErrorKind::limit, "{}: {} bytes of JSON, at most {} are read", what, text.size(),
                limits.bytes);
  }
  json::parse_options options;
  options.max_depth = limits.depth;
  json::basic_parser<Checker> checker(options, limits.values);
  json::error_code error;
  const size_t read = checker.write_some(false, text.data(), text.size(), error);
  if (!error && text.find_first_not_of(" \t\r\n", read) != std::string_view::npos) {
    error = json::error::extra_data;
  }
  if (error) {
    const std::string& reason = checker.handler().reason();
    return fail(ErrorKind::invalid_input, "{}: not valid JSON at byte {}: {}", what, read,
                reason.empty() ? error.message() : reason);
  }
  json::value value = json::parse(json::string_view(text.data(), text.size()), error, {}, options);
  if (error) {
    return fail(ErrorKind::invalid_input, "{}: not valid JSON: {}", what, error.message());
  }
  if (!value.is_object()) {
    return fail(ErrorKind::invalid_input, "{}: expected a JSON object, found {}", what, json_text(value));
  }
  return std::move(value.get_object());
}

const json::value* json_find(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(json::string_view(key.data(), key.size()));
  return value != nullptr && value->is_null() ? nullptr : value;
}

std::optional<uint64_t> json_unsigned(const json::value& value) {
  if (value.is_uint64()) {
    return value.get_uint64();
  }
  if (value.is_int64() && value.get_int64() >= 0) {
    return static_cast<uint64_t>(value.get_int64());
  }
  return std::nullopt;
}

std::optional<double> json_number(const json::value& value) {
  if (!value.is_number()) {
    return std::nullopt;
  }
  return value.to_number<double>();
}

std::string json_text(const json::value& value) {
  constexpr size_t kMaxShown = 80;
  std::string text = json::serialize(value);
  return text.size() <= kMaxShown ? text : text.substr(0, kMaxShown) + "...";
}

std::string json_text(const json::value* value) { return value == nullptr ? "nothing" : json_text(*value); }

std::string json_pretty(const json::value& value, bool sorted) {
  std::string out;
  write_pretty(value, sorted, 0, out);
  return out + "\n";
}

}  // namespace lily
