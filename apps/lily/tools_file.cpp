#include "apps/lily/tools_file.h"

#include <boost/json/object.hpp>

#include "apps/lily/input.h"
#include "text/json.h"

namespace lily::app {
namespace {

namespace json = boost::json;

bool has_name(const json::value& tool) {
  const json::object* object = tool.if_object();
  if (object == nullptr) {
    return false;
  }
  if (const json::value* function = object->if_contains("function")) {
    object = function->if_object();
  }
  const json::value* name = object == nullptr ? nullptr : object->if_contains("name");
  return name != nullptr && name->is_string() && !name->get_string().empty();
}

}  // namespace

Result<json::array> read_tools(const std::string& path) {
  LILY_TRY(const std::string text, read_input(path));
  Result<json::value> value = parse_json(text);
  if (!value) {
    return fail(ErrorKind::invalid_input, "'{}' is {}", path, value.error().message);
  }
  json::array tools;
  if (const json::object* object = value->if_object()) {
    const json::value* list = object->if_contains("tools");
    if (list != nullptr && list->is_array()) {
      tools = list->get_array();
    } else {
      tools.push_back(*value);
    }
  } else if (value->is_array()) {
    tools = value->get_array();
  } else {
    return fail(ErrorKind::invalid_input, "'{}' has no tools: expected an array of them", path);
  }
  for (size_t i = 0; i < tools.size(); ++i) {
    if (!has_name(tools[i])) {
      return fail(
          ErrorKind::invalid_input,
          "tool {} of '{}' has no name: expected {{\"type\": \"function\", \"function\": {{\"name\", ...}}}}",
          i, path);
    }
  }
  return tools;
}

}  // namespace lily::app
