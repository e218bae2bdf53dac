#include "server/chat_messages.h"

#include <algorithm>
#include <optional>

#include "text/json.h"

namespace lily {
namespace {

namespace json = boost::json;

// What the parts of one content come to.
struct Parts {
  std::vector<ContentPart> content;
  std::string reasoning;
};

void add_text(Parts& parts, std::string text) {
  parts.content.push_back(ContentPart{ContentPart::Kind::text, std::move(text)});
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

void parse_part(const json::value& value, const std::string& path, Parts& parts, Faults& faults) {
  if (value.is_string()) {
    add_text(parts, std::string(view(value.get_string())));
    return;
  }
  if (!value.is_object()) {
    faults.about(path, "must be a content part (an object), not {}.", json_kind(value));
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
    add_text(parts, part.required_string("text"));
  } else if (*type == "refusal") {
    add_text(parts, part.required_string("refusal"));
  } else if (*type == "thinking") {
    parts.reasoning += part.required_string("thinking");
  } else if (*type == "reasoning") {
    parts.reasoning += part.required_string("text");
  } else if (*type == "redacted_thinking") {
    // Nothing to show.
  } else if (is_one_of(*type, {"image_url", "image", "input_image", "video", "video_url", "input_audio",
                               "audio_url", "audio", "file", "input_file"})) {
    faults.about(path, "is of type '{}': this server reads text only.", *type);
  } else if (type->empty()) {
    part.fault("type", "is missing; expected 'text'.");
  } else {
    part.fault("type", "is '{}'; expected 'text'.", *type);
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
    message.faults().about(path, "must be a string, an array of parts or null, not {}.", json_kind(*content));
  }
  return parts;
}

void add_call(const Fields& function, std::string id, Message& message) {
  message.tool_calls.push_back(
      {std::move(id), function_name(function), call_arguments(function.find("arguments"))});
}

// tool_calls, and function_call of the API's first version.
void parse_tool_calls(const Fields& fields, Message& message) {
  for_each_object(fields.array("tool_calls"), fields.path("tool_calls"), fields.faults(),
                  [&](const Fields& call) {
                    const json::object& function = call.required_object("function");
                    add_call(Fields(function, call.path("function"), call.faults()),
                             call.string("id").value_or(""), message);
                  });
  if (const json::object* legacy = fields.object("function_call")) {
    add_call(Fields(*legacy, fields.path("function_call"), fields.faults()), "", message);
  }
}

std::string parse_role(const Fields& fields) {
  const std::string role = fields.required_string("role");
  if (!is_one_of(role, {"system", "developer", "user", "assistant", "tool", "function"})) {
    fields.fault("role", "is '{}'; expected system, developer, user, assistant or tool.", role);
  }
  return role == "function" ? "tool" : role;
}

Message parse_message(const Fields& fields) {
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
  return message;
}

void check_function(const Fields& function) {
  static_cast<void>(function_name(function));
  static_cast<void>(function.string("description"));
  static_cast<void>(function.object("parameters"));
}

}  // namespace

std::string function_name(const Fields& function) {
  const std::string name = function.string("name").value_or("");
  if (name.empty()) {
    function.fault("name", "is missing; expected the name of the function.");
  }
  return name;
}

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
  for_each_object(request.required_array("messages"), "messages", request.faults(),
                  [&](const Fields& fields) { messages.push_back(parse_message(fields)); });
  return messages;
}

json::array parse_tools(const Fields& request) {
  const json::array* tools = request.array("tools");
  for_each_object(tools, "tools", request.faults(), [](const Fields& tool) {
    const std::string type = tool.string("type").value_or("function");
    if (type != "function") {
      tool.fault("type", "is '{}'; expected 'function'.", type);
    }
    check_function(Fields(tool.required_object("function"), tool.path("function"), tool.faults()));
  });
  return tools == nullptr || request.faults().any() ? json::array{} : *tools;
}

json::array parse_functions(const Fields& request) {
  json::array tools;
  for_each_object(request.array("functions"), "functions", request.faults(), [&](const Fields& function) {
    check_function(function);
    tools.push_back(json::object{{"type", "function"}, {"function", function.object()}});
  });
  return request.faults().any() ? json::array{} : tools;
}

}  // namespace lily
