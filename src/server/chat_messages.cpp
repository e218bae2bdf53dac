#include "server/chat_messages.h"

#include <optional>

#include "text/json.h"

namespace lily {
namespace {

namespace json = boost::json;

std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

std::string at(std::string_view path, size_t index) { return fmt::format("{}[{}]", path, index); }

// What the parts of one content come to.
struct Parts {
  std::vector<ContentPart> content;
  std::string reasoning;
};

void add_text(Parts& parts, std::optional<std::string> text) {
  if (text) {
    parts.content.push_back(ContentPart{ContentPart::Kind::text, std::move(*text)});
  }
}

// A part must have the text that its type promises.
std::optional<std::string> required_text(const Fields& part, std::string_view key, std::string_view path) {
  std::optional<std::string> text = part.string(key);
  if (!text && !part.faults().any()) {
    part.faults().add(part.path(key), fmt::format("'{}' of {} is missing; expected a string.", key, path));
  }
  return text;
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  for (const std::string_view candidate : words) {
    if (word == candidate) {
      return true;
    }
  }
  return false;
}

void parse_part(const json::value& value, const std::string& path, Parts& parts, Faults& faults) {
  if (value.is_string()) {
    add_text(parts, std::string(view(value.get_string())));
    return;
  }
  if (!value.is_object()) {
    faults.add(path, fmt::format("{} must be a content part (an object), not {}.", path, json_kind(value)));
    return;
  }
  const json::object& object = value.get_object();
  const Fields part(object, path, faults);
  std::optional<std::string> type = part.string("type");
  if (faults.any()) {
    return;
  }
  if (!type) {
    // Some clients leave the type out of text; with any other key there is no telling what it is.
    type = object.contains("text")        ? "text"
           : object.contains("image_url") ? "image_url"
           : object.contains("image")     ? "image"
           : object.contains("video")     ? "video"
                                          : "";
  }
  if (is_one_of(*type, {"text", "input_text", "output_text"})) {
    add_text(parts, required_text(part, "text", path));
  } else if (*type == "refusal") {
    add_text(parts, required_text(part, "refusal", path));
  } else if (*type == "thinking") {
    parts.reasoning += required_text(part, "thinking", path).value_or("");
  } else if (*type == "reasoning") {
    parts.reasoning += required_text(part, "text", path).value_or("");
  } else if (*type == "redacted_thinking") {
    // Nothing to show.
  } else if (is_one_of(*type, {"image_url", "image", "input_image", "video", "video_url", "input_audio",
                               "audio_url", "audio", "file", "input_file"})) {
    faults.add(path, fmt::format("{} is of type '{}': this server reads text only.", path, *type));
  } else if (type->empty()) {
    faults.add(part.path("type"), fmt::format("{} has no 'type'; expected 'text'.", path));
  } else {
    faults.add(part.path("type"), fmt::format("{} has the unknown type '{}'; expected 'text'.", path, *type));
  }
}

Parts parse_content(const Fields& message) {
  Parts parts;
  const json::value* content = message.find("content");
  if (content == nullptr) {
    return parts;
  }
  const std::string path = message.path("content");
  if (content->is_string()) {
    if (!content->get_string().empty()) {
      add_text(parts, std::string(view(content->get_string())));
    }
  } else if (content->is_array()) {
    const json::array& array = content->get_array();
    for (size_t i = 0; i < array.size() && !message.faults().any(); ++i) {
      parse_part(array[i], at(path, i), parts, message.faults());
    }
  } else {
    message.faults().add(path, fmt::format("'{}' must be a string, an array of parts or null, not {}.", path,
                                           json_kind(*content)));
  }
  return parts;
}

std::optional<ToolCall> parse_function(const Fields& function) {
  ToolCall call;
  const std::optional<std::string> name = function.string("name");
  if (!name || name->empty()) {
    if (!function.faults().any()) {
      function.faults().add(
          function.path("name"),
          fmt::format("'{}' is missing; expected the name of the function.", function.path("name")));
    }
    return std::nullopt;
  }
  call.name = *name;
  call.arguments = call_arguments(function.find("arguments"));
  return call;
}

void parse_tool_call(const json::value& value, const std::string& path, Message& message, Faults& faults) {
  if (!value.is_object()) {
    faults.add(path, fmt::format("'{}' must be an object, not {}.", path, json_kind(value)));
    return;
  }
  const Fields call(value.get_object(), path, faults);
  const std::optional<std::string> id = call.string("id");
  const json::object* function = call.object("function");
  if (function == nullptr) {
    faults.add(call.path("function"),
               fmt::format("'{}' is missing; expected an object.", call.path("function")));
    return;
  }
  const Fields fields(*function, call.path("function"), faults);
  std::optional<ToolCall> parsed = parse_function(fields);
  if (parsed) {
    parsed->id = id.value_or("");
    message.tool_calls.push_back(std::move(*parsed));
  }
}

// tool_calls, and function_call of the API's first version.
void parse_tool_calls(const Fields& fields, Message& message) {
  if (const json::array* calls = fields.array("tool_calls")) {
    const std::string path = fields.path("tool_calls");
    for (size_t i = 0; i < calls->size() && !fields.faults().any(); ++i) {
      parse_tool_call((*calls)[i], at(path, i), message, fields.faults());
    }
  }
  if (const json::object* legacy = fields.object("function_call")) {
    const Fields function(*legacy, fields.path("function_call"), fields.faults());
    std::optional<ToolCall> parsed = parse_function(function);
    if (parsed) {
      message.tool_calls.push_back(std::move(*parsed));
    }
  }
}

std::string parse_role(const Fields& fields) {
  const std::optional<std::string> role = fields.string("role");
  if (fields.faults().any()) {
    return {};
  }
  if (!role) {
    fields.faults().add(fields.path("role"), fmt::format("'{}' is missing.", fields.path("role")));
    return {};
  }
  if (*role == "function") {
    return "tool";
  }
  if (!is_one_of(*role, {"system", "developer", "user", "assistant", "tool"})) {
    fields.faults().add(fields.path("role"),
                        fmt::format("'{}' is '{}'; expected system, developer, user, assistant or tool.",
                                    fields.path("role"), *role));
  }
  return *role;
}

void parse_message(const json::value& value, const std::string& path, std::vector<Message>& messages,
                   Faults& faults) {
  if (!value.is_object()) {
    faults.add(path, fmt::format("'{}' must be an object, not {}.", path, json_kind(value)));
    return;
  }
  const Fields fields(value.get_object(), path, faults);
  Message message;
  message.role = parse_role(fields);
  Parts parts = parse_content(fields);
  message.content = std::move(parts.content);
  if (message.role == "assistant") {
    message.reasoning = fields.string("reasoning_content");
    if (!message.reasoning) {
      message.reasoning = fields.string("reasoning");
    }
    if (!message.reasoning && !parts.reasoning.empty()) {
      message.reasoning = std::move(parts.reasoning);
    }
    parse_tool_calls(fields, message);
  }
  messages.push_back(std::move(message));
}

// What every declared function must have.
void check_function(const Fields& function) {
  const std::optional<std::string> name = function.string("name");
  if (!name || name->empty()) {
    function.faults().add(
        function.path("name"),
        fmt::format("'{}' is missing; expected the name of the function.", function.path("name")));
  }
  static_cast<void>(function.string("description"));
  static_cast<void>(function.object("parameters"));
}

}  // namespace

json::object call_arguments(const json::value* arguments) {
  if (arguments == nullptr) {
    return {};
  }
  if (arguments->is_object() && !big_integer(*arguments)) {
    return arguments->get_object();
  }
  json::value whole = *arguments;
  if (arguments->is_string()) {
    const std::string_view text = view(arguments->get_string());
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
      return {};
    }
    ApiResult<json::value> parsed = parse_body(text);
    if (parsed && parsed->is_object() && !big_integer(*parsed)) {
      return std::move(parsed->get_object());
    }
    if (parsed && parsed->is_null()) {
      return {};
    }
  }
  json::object out;
  out["arguments"] = std::move(whole);
  return out;
}

std::vector<Message> parse_messages(const Fields& request) {
  std::vector<Message> messages;
  const json::array* array = request.array("messages");
  if (request.faults().any()) {
    return messages;
  }
  if (array == nullptr || array->empty()) {
    request.faults().add("messages", array == nullptr
                                         ? "'messages' is missing; expected an array of messages."
                                         : "'messages' is empty; expected at least one message.");
    return messages;
  }
  messages.reserve(array->size());
  for (size_t i = 0; i < array->size() && !request.faults().any(); ++i) {
    parse_message((*array)[i], at("messages", i), messages, request.faults());
  }
  return messages;
}

json::array parse_tools(const Fields& request) {
  const json::array* array = request.array("tools");
  if (array == nullptr) {
    return {};
  }
  Faults& faults = request.faults();
  for (size_t i = 0; i < array->size() && !faults.any(); ++i) {
    const std::string path = at("tools", i);
    const json::value& value = (*array)[i];
    if (!value.is_object()) {
      faults.add(path, fmt::format("'{}' must be an object, not {}.", path, json_kind(value)));
      break;
    }
    const Fields tool(value.get_object(), path, faults);
    const std::optional<std::string> type = tool.string("type");
    if (type && *type != "function") {
      faults.add(tool.path("type"),
                 fmt::format("'{}' is '{}'; expected 'function'.", tool.path("type"), *type));
    }
    const json::object* object = tool.object("function");
    if (object == nullptr) {
      faults.add(tool.path("function"),
                 fmt::format("'{}' is missing; expected an object.", tool.path("function")));
      break;
    }
    check_function(Fields(*object, tool.path("function"), faults));
  }
  return faults.any() ? json::array{} : *array;
}

json::array parse_functions(const Fields& request) {
  json::array tools;
  const json::array* array = request.array("functions");
  if (array == nullptr) {
    return tools;
  }
  Faults& faults = request.faults();
  for (size_t i = 0; i < array->size() && !faults.any(); ++i) {
    const std::string path = at("functions", i);
    const json::value& value = (*array)[i];
    if (!value.is_object()) {
      faults.add(path, fmt::format("'{}' must be an object, not {}.", path, json_kind(value)));
      break;
    }
    check_function(Fields(value.get_object(), path, faults));
    tools.push_back(json::object{{"type", "function"}, {"function", value}});
  }
  return faults.any() ? json::array{} : tools;
}

}  // namespace lily
