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

// "string", "array", ... as a message says it.
std::string_view json_kind(const boost::json::value& value);

class Faults {
 public:
  void add(std::string param, std::string message);
  void add(ApiError error);
  bool any() const { return first_.has_value(); }
  const ApiError& first() const { return *first_; }

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

  std::string path(std::string_view key) const;
  Faults& faults() const { return faults_; }

  // Null, missing: nullptr.
  const boost::json::value* find(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> string(std::string_view key) const;
  std::optional<double> number(std::string_view key, Range range) const;
  // A whole number, also written as 3.0. Beyond 64 bits: the nearest 64-bit value.
  std::optional<int64_t> integer(std::string_view key, Range range) const;
  const boost::json::array* array(std::string_view key) const;
  const boost::json::object* object(std::string_view key) const;

 private:
  const boost::json::value* expect(std::string_view key, bool (*is_kind)(const boost::json::value&),
                                   std::string_view kind) const;
  const boost::json::object& object_;
  std::string path_;
  Faults& faults_;
};

}  // namespace lily
