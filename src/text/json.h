// JSON as Python reads and writes it, where a prompt depends on it.
#pragma once

#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lily {

// Strict JSON (nesting up to 64). Unlike boost::json::parse of the supported releases, every float is read to
// the nearest double, so that its shortest form is what was written. Integers beyond 64 bits, which
// Boost.JSON has no kind for, become what big_integer() reads. Of duplicate keys the last value counts, at
// the place of the first. Lone surrogates and invalid UTF-8 are errors.
Result<boost::json::value> parse_json(std::string_view text);

// The digits of an integer beyond 64 bits, with its sign; nothing for every other value. Written again by
// append_python_json() as they were read. Inside it is an object with a key that no JSON text can have.
std::optional<std::string_view> big_integer(const boost::json::value& value);

// json.dumps(value, ensure_ascii=False): separators ", " and ": ", floats as repr() writes them.
void append_python_json(std::string& out, const boost::json::value& value);
// The same as a string: what Jinja's tojson filter of the template writes.
std::string to_python_json(const boost::json::value& value);

// boost::json::serialize(value), with the digits of integers beyond 64 bits: for whatever holds a part of
// what parse_json() read.
std::string serialize_json(const boost::json::value& value);

}  // namespace lily
