// Typed reading of a JSON object whose faults are reported by the path of the field. A missing field and null
// are the same: nothing. The first fault is kept and everything after it reads as nothing, so that a parser
// reads all it wants and looks for a fault once.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/api_error.h"

namespace lily {

// JSON text to a value; `error.param` stays empty. Lone UTF-16 surrogates in escapes, which JavaScript
// clients produce where they cut a text inside an emoji, are read as U+FFFD.
ApiResult<boost::json::value> parse_body(std::string_view text);

// The object that the body of every request is.
ApiResult<const boost::json::object*> body_object(const boost::json::value& body);

// Not the stand-in for a number that text/json.h reads as an object.
bool is_object(const boost::json::value& value);
// "a string", "an array", ... as a message says it.
std::string_view json_kind(const boost::json::value& value);

inline std::string_view view(const boost::json::string& text) { return {text.data(), text.size()}; }
inline boost::json::string json_text(std::string_view text) {
  return boost::json::string(text.data(), text.size());
}

// "messages[3]"
inline std::string at(std::string_view path, size_t index) { return fmt::format("{}[{}]", path, index); }

class Faults {
 public:
  void add(ApiError error);
  // "'path' must be ...": the path, then what is wrong with it.
  template <class... Args>
  void about(const std::string& path, fmt::format_string<Args...> wrong, Args&&... args) {
    add(bad_field(path, fmt::format("'{}' {}", path, fmt::format(wrong, std::forward<Args>(args)...))));
  }
  bool any() const { return first_.has_value(); }
  ApiResult<void> result() const { return first_ ? ApiResult<void>(fail(*first_)) : ApiResult<void>(); }

 private:
  std::optional<ApiError> first_;
};

class Fields {
 public:
  struct Range {
    double low, high;
    bool above_low = false;  // low itself is outside
  };

  // `path` of the object, empty for the request itself. Both must outlive the reader.
  Fields(const boost::json::object& object, std::string path, Faults& faults)
      : object_(object), path_(std::move(path)), faults_(faults) {}

  const boost::json::object& object() const { return object_; }
  const std::string& path() const { return path_; }
  std::string path(std::string_view key) const;
  Faults& faults() const { return faults_; }
  // What is wrong with the field `key`.
  template <class... Args>
  void fault(std::string_view key, fmt::format_string<Args...> wrong, Args&&... args) const {
    faults_.about(path(key), wrong, std::forward<Args>(args)...);
  }

  // Null, missing: nullptr.
  const boost::json::value* find(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> string(std::string_view key) const;
  std::optional<double> number(std::string_view key, Range range) const;
  // A whole number, also written as 3.0. Beyond 64 bits: the nearest 64-bit value.
  std::optional<int64_t> integer(std::string_view key, Range range) const;
  const boost::json::array* array(std::string_view key) const;
  const boost::json::object* object(std::string_view key) const;
  // Missing is a fault, and so is an array without entries.
  std::string required_string(std::string_view key) const;
  const boost::json::array* required_array(std::string_view key) const;
  const boost::json::object& required_object(std::string_view key) const;  // empty after a fault

 private:
  const boost::json::value* expect(std::string_view key, bool (*is_kind)(const boost::json::value&),
                                   std::string_view kind) const;
  const boost::json::object& object_;
  std::string path_;
  Faults& faults_;
};

// Calls take(fields) for each object of `array`, if there is an array; anything else in it is a fault.
template <class Take>
void for_each_object(const boost::json::array* array, const std::string& path, Faults& faults,
                     const Take& take) {
  for (size_t i = 0; array != nullptr && i < array->size() && !faults.any(); ++i) {
    const boost::json::value& value = (*array)[i];
    if (is_object(value)) {
      take(Fields(value.get_object(), at(path, i), faults));
    } else {
      faults.about(at(path, i), "must be an object, not {}.", json_kind(value));
    }
  }
}

}  // namespace lily
