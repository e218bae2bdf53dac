// What the tools of a request declare about their parameters, as far as a parser of calls needs it.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lily {

enum class JsonType : uint8_t { null, boolean, integer, number, string, array, object };

class ToolSchemas {
 public:
  // Each tool as OpenAI's API has it ({"type": "function", "function": {"name", "parameters"}}) or flat
  // ({"name", "parameters"}). What is none of these is left out: a schema never fails a request.
  explicit ToolSchemas(const boost::json::array& tools);

  bool declares(std::string_view tool) const { return tools_.contains(tool); }
  bool has_parameter(std::string_view tool, std::string_view parameter) const;
  // The JSON types that the schema of a parameter allows, in the order it names them: of `type`, `anyOf`,
  // `oneOf`, `allOf`, `enum`, `const`, and of what `$ref` points to in the same schema. The schema of a
  // whole tool may be put together in these ways too. A parameter that it does not name is of
  // `additionalProperties`. Empty: nothing is known, the text is a string.
  const std::vector<JsonType>& types(std::string_view tool, std::string_view parameter) const;

 private:
  struct Tool {
    std::map<std::string, std::vector<JsonType>, std::less<>> parameters;
    std::vector<JsonType> others;  // of parameters that are not named
  };
  std::map<std::string, Tool, std::less<>> tools_;
};

// The JSON text of an argument that the model wrote as `text`, by the first type to which it converts: 5.0 is
// an integer, True a boolean, and an array or object may also be written as Python writes it. Null and
// containers are looked for before a string. No conversion: the text itself as a string.
std::string argument_json(std::string_view text, const std::vector<JsonType>& types);

// Whether a text that begins with `prefix` may be anything but a string by `types`.
bool may_not_be_string(std::string_view prefix, const std::vector<JsonType>& types);

// `text` as the inside of a JSON string.
void append_json_escaped(std::string& out, std::string_view text);

}  // namespace lily
