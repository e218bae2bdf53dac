// JSON of files that lily did not write: size, depth and the number of values are limited before a document
// is built, and a duplicate key is an error (a later value would silently win otherwise).
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lily {

struct JsonLimits {
  size_t bytes = size_t{16} << 20;
  size_t values = 1'000'000;
  size_t depth = 32;
};

// The object that `text` holds. `what` names the file in messages.
Result<boost::json::object> parse_json_object(std::string_view text, std::string_view what,
                                              const JsonLimits& limits = {});

// The value of `key`; null, which is how these files say "absent", and a missing key are nullptr.
const boost::json::value* json_find(const boost::json::object& object, std::string_view key);

// A non-negative integer written without fraction or exponent; empty for anything else.
std::optional<uint64_t> json_unsigned(const boost::json::value& value);

// Any number as double; empty for anything else.
std::optional<double> json_number(const boost::json::value& value);

// The value for a message: as JSON, cut when long.
std::string json_text(const boost::json::value& value);
std::string json_text(const boost::json::value* value);  // "nothing" for nullptr

// Indented by four, keys sorted when `sorted`: as the config.json of published checkpoints is written.
std::string json_pretty(const boost::json::value& value, bool sorted);

}  // namespace lily
