#include "server/messages_request.h"

#include <boost/json/array.hpp>

#include "server/translation.h"

namespace lily {
namespace {

namespace json = boost::json;

std::string_view view(const json::string& text) { return {text.data(), text.size()}; }
std::string at(std::string_view path, size_t index) { return fmt::format("{}[{}]", path, index); }

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool ends_with(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

// What Claude Code puts first changes with every request, and nothing after it could be kept.
constexpr std::string_view kClientHeader = "x-anthropic-";

// One message of Anthropic's, on its way to one or more of a chat.
struct Turn {
  json::array parts;
  std::string reasoning;
  json::array calls;
  json::array results;  // tool messages, and the user's text between them, in order
};

std::string text_of(const Fields& block, std::string_view key) {
  std::optional<std::string> text = block.string(key);
  if (!text && !block.faults().any()) {
    block.faults().add(block.path(key), fmt::format("'{}' is missing; expected a string.", block.path(key)));
  }
  return text.value_or("");
}

// `content`: a string or blocks, each given to `take` with its type. Anything else is a fault.
template <class Take>
void for_each_block(const json::value& content, const std::string& path, Faults& faults, const Take& take) {
  if (content.is_string()) {
    json::object block = text_part(view(content.get_string()));
    take(Fields(block, path, faults), "text", path);
    return;
  }
  if (!content.is_array()) {
    faults.add(path,
               fmt::format("'{}' must be a string or an array of blocks, not {}.", path, json_kind(content)));
    return;
  }
  const json::array& blocks = content.get_array();
  for (size_t i = 0; i < blocks.size() && !faults.any(); ++i) {
    const std::string here = at(path, i);
    if (blocks[i].is_string()) {
      json::object block = text_part(view(blocks[i].get_string()));
      take(Fields(block, here, faults), "text", here);
      continue;
    }
    if (!blocks[i].is_object()) {
      faults.add(here, fmt::format("'{}' must be a block (an object), not {}.", here, json_kind(blocks[i])));
      return;
    }
    const Fields block(blocks[i].get_object(), here, faults);
    const std::string type = text_of(block, "type");
    if (!faults.any()) {
      take(block, type, here);
    }
  }
}

void not_text(const std::string& path, std::string_view type, Faults& faults) {
  faults.add(path, fmt::format("'{}' is of type '{}': this server reads text only.", path, type));
}

// The text of a document that is text; false: it is something else.
bool add_document(const Fields& block, json::array& parts) {
  const json::object* source = block.object("source");
  if (source == nullptr) {
    return false;
  }
  const Fields fields(*source, block.path("source"), block.faults());
  const std::string type = fields.string("type").value_or("");
  if (type == "text") {
    parts.emplace_back(text_part(text_of(fields, "data")));
    return true;
  }
  const json::value* content = type == "content" ? fields.find("content") : nullptr;
  if (content == nullptr) {
    return false;
  }
  for_each_block(*content, fields.path("content"), block.faults(),
                 [&](const Fields& inner, std::string_view kind, const std::string& path) {
                   if (kind == "text") {
                     parts.emplace_back(text_part(text_of(inner, "text")));
                   } else {
                     not_text(path, kind, inner.faults());
                   }
                 });
  return true;
}

void add_search_result(const Fields& block, json::array& parts) {
  parts.emplace_back(text_part(
      fmt::format("{}\n{}\n", block.string("title").value_or(""), block.string("source").value_or(""))));
  if (const json::value* content = block.find("content")) {
    for_each_block(*content, block.path("content"), block.faults(),
                   [&](const Fields& inner, std::string_view kind, const std::string&) {
                     if (kind == "text") {
                       parts.emplace_back(text_part(text_of(inner, "text")));
                     }
                   });
  }
}

// What a tool found. It came from a program, not from whoever asks: what cannot be read is named in its
// place, as a refusal would end the conversation for good.
json::array result_parts(const Fields& block) {
  json::array parts;
  const json::value* content = block.find("content");
  if (content == nullptr) {
    return parts;
  }
  for_each_block(*content, block.path("content"), block.faults(),
                 [&](const Fields& inner, std::string_view type, const std::string&) {
                   if (type == "text") {
                     parts.emplace_back(text_part(text_of(inner, "text")));
                   } else if (type == "search_result") {
                     add_search_result(inner, parts);
                   } else if (type == "tool_reference") {
                     parts.emplace_back(text_part(inner.string("tool_name").value_or("")));
                   } else if (type != "document" || !add_document(inner, parts)) {
                     parts.emplace_back(text_part(fmt::format("[{}: this server reads text only]", type)));
                   }
                 });
  return parts;
}

void flush_text(std::string_view role, Turn& turn) {
  if (!turn.parts.empty()) {
    turn.results.emplace_back(chat_message(role, std::move(turn.parts)));
    turn.parts = json::array();
  }
}

void take_block(const Fields& block, std::string_view type, const std::string& path, std::string_view role,
                Turn& turn) {
  Faults& faults = block.faults();
  if (type == "text") {
    std::string text = text_of(block, "text");
    if (role != "system" || !starts_with(text, kClientHeader)) {
      turn.parts.emplace_back(text_part(text));
    }
  } else if (type == "thinking") {
    turn.reasoning += text_of(block, "thinking");
  } else if (type == "tool_use") {
    const std::string name = text_of(block, "name");
    if (name.empty() && !faults.any()) {
      faults.add(block.path("name"), fmt::format("'{}' is empty.", block.path("name")));
    }
    turn.calls.emplace_back(function_call(block.string("id").value_or(""), name, block.find("input")));
  } else if (type == "tool_result") {
    flush_text(role, turn);
    json::object result = chat_message("tool", result_parts(block));
    result["tool_call_id"] = block.string("tool_use_id").value_or("");
    turn.results.emplace_back(std::move(result));
  } else if (type == "search_result") {
    add_search_result(block, turn.parts);
  } else if (type == "document") {
    if (!add_document(block, turn.parts)) {
      not_text(path, type, faults);
    }
  } else if (type == "image" || type == "container_upload") {
    not_text(path, type, faults);
  } else if (type == "redacted_thinking" || type == "server_tool_use" || type == "mcp_tool_use" ||
             type == "compaction" || ends_with(type, "_tool_result")) {
    // Of tools that run at Anthropic's: none does here.
  } else {
    faults.add(block.path("type"), fmt::format("'{}' is '{}', which is no block that this server knows.",
                                               block.path("type"), type));
  }
}

void add_turn(const Fields& message, std::string_view role, json::array& messages) {
  Turn turn;
  if (const json::value* content = message.find("content")) {
    for_each_block(*content, message.path("content"), message.faults(),
                   [&](const Fields& block, std::string_view type, const std::string& path) {
                     take_block(block, type, path, role, turn);
                   });
  } else {
    message.faults().add(
        message.path("content"),
        fmt::format("'{}' is missing; expected a string or an array of blocks.", message.path("content")));
  }
  if (role == "assistant") {
    json::object out = chat_message(role, std::move(turn.parts));
    if (!turn.reasoning.empty()) {
      out["reasoning_content"] = turn.reasoning;
    }
    if (!turn.calls.empty()) {
      out["tool_calls"] = std::move(turn.calls);
    }
    messages.emplace_back(std::move(out));
    return;
  }
  if (turn.results.empty() && (role != "system" || !turn.parts.empty())) {
    messages.emplace_back(chat_message(role, std::move(turn.parts)));
    return;
  }
  flush_text(role, turn);
  for (json::value& result : turn.results) {
    messages.emplace_back(std::move(result));
  }
}

// One message for each block, so that they are joined by a blank line.
void add_system(const Fields& fields, json::array& messages) {
  const json::value* system = fields.find("system");
  if (system == nullptr) {
    return;
  }
  for_each_block(*system, "system", fields.faults(),
                 [&](const Fields& block, std::string_view type, const std::string& path) {
                   if (type != "text") {
                     not_text(path, type, fields.faults());
                     return;
                   }
                   const std::string text = text_of(block, "text");
                   if (!starts_with(text, kClientHeader) && !text.empty()) {
                     messages.emplace_back(chat_message("system", json::string(text)));
                   }
                 });
}

json::array chat_messages(const Fields& fields) {
  json::array out;
  add_system(fields, out);
  const json::array* messages = fields.array("messages");
  Faults& faults = fields.faults();
  if ((messages == nullptr || messages->empty()) && !faults.any()) {
    faults.add("messages", messages == nullptr ? "'messages' is missing; expected an array of messages."
                                               : "'messages' is empty; expected at least one message.");
  }
  for (size_t i = 0; messages != nullptr && i < messages->size() && !faults.any(); ++i) {
    const std::string path = at("messages", i);
    if (!(*messages)[i].is_object()) {
      faults.add(path, fmt::format("'{}' must be an object, not {}.", path, json_kind((*messages)[i])));
      break;
    }
    const Fields message((*messages)[i].get_object(), path, faults);
    const std::string role = text_of(message, "role");
    if (!faults.any() && role != "user" && role != "assistant" && role != "system") {
      faults.add(message.path("role"), fmt::format("'{}' is '{}'; expected user, assistant or system.",
                                                   message.path("role"), role));
    }
    add_turn(message, role, out);
  }
  return out;
}

// Tools of another type than `custom` run at Anthropic's, or are known to its models alone.
json::array chat_tools(const Fields& fields) {
  json::array out;
  const json::array* tools = fields.array("tools");
  Faults& faults = fields.faults();
  for (size_t i = 0; tools != nullptr && i < tools->size() && !faults.any(); ++i) {
    const std::string path = at("tools", i);
    if (!(*tools)[i].is_object()) {
      faults.add(path, fmt::format("'{}' must be an object, not {}.", path, json_kind((*tools)[i])));
      break;
    }
    const Fields tool((*tools)[i].get_object(), path, faults);
    const std::optional<std::string> type = tool.string("type");
    if (type && *type != "custom") {
      continue;
    }
    const std::string name = text_of(tool, "name");
    if (name.empty() && !faults.any()) {
      faults.add(tool.path("name"), fmt::format("'{}' is empty.", tool.path("name")));
    }
    const std::optional<std::string> description = tool.string("description");
    const json::object* schema = tool.object("input_schema");
    out.emplace_back(function_tool(json::string(name),
                                   description ? json::value(*description) : json::value(nullptr),
                                   schema != nullptr ? json::value(*schema) : json::value(nullptr)));
  }
  return out;
}

void translate_choice(const Fields& fields, json::object& out) {
  const json::object* object = fields.object("tool_choice");
  if (object == nullptr) {
    return;
  }
  const Fields choice(*object, "tool_choice", fields.faults());
  const std::string type = text_of(choice, "type");
  if (choice.boolean("disable_parallel_tool_use").value_or(false)) {
    out["parallel_tool_calls"] = false;
  }
  if (type == "auto" || type == "none") {
    out["tool_choice"] = json::string(type);
  } else if (type == "any") {
    out["tool_choice"] = "required";
  } else if (type == "tool") {
    json::object function;
    function["name"] = text_of(choice, "name");
    out["tool_choice"] = json::object{{"type", "function"}, {"function", std::move(function)}};
  } else if (!fields.faults().any()) {
    fields.faults().add("tool_choice.type",
                        fmt::format("'tool_choice.type' is '{}'; expected auto, any, tool or none.", type));
  }
}

// Thinking is for those who ask for it, as it is at Anthropic's: others expect the text to come first.
void translate_thinking(const Fields& fields, json::object& out) {
  const json::object* object = fields.object("thinking");
  std::string type = "disabled";
  if (object != nullptr) {
    const Fields thinking(*object, "thinking", fields.faults());
    type = text_of(thinking, "type");
    const std::optional<int64_t> budget = thinking.integer("budget_tokens", {0, 1e9});
    if (budget && type == "enabled") {
      out["thinking_budget"] = *budget;
    }
  }
  if (type != "enabled" && type != "disabled" && type != "adaptive" && type != "between_tools" &&
      !fields.faults().any()) {
    fields.faults().add(
        "thinking.type",
        fmt::format("'thinking.type' is '{}'; expected enabled, adaptive or disabled.", type));
  }
  if (object != nullptr || !out.contains("enable_thinking")) {
    out["enable_thinking"] = type != "disabled";
  }
}

// `output_config.format`, and `output_format` of its first form.
void translate_format(const Fields& fields, json::object& out) {
  const json::object* format = fields.object("output_format");
  std::string path = "output_format";
  if (const json::object* config = fields.object("output_config")) {
    const Fields inner(*config, "output_config", fields.faults());
    if (const json::object* found = inner.object("format")) {
      format = found;
      path = "output_config.format";
    }
  }
  if (format == nullptr) {
    return;
  }
  const Fields inner(*format, path, fields.faults());
  const std::string type = text_of(inner, "type");
  json::object wanted;
  wanted["type"] = json::string(type);
  if (const json::object* schema = inner.object("schema")) {
    wanted["json_schema"] = json::object{{"name", "output"}, {"strict", true}, {"schema", *schema}};
  }
  out["response_format"] = std::move(wanted);
}

void translate_effort(const Fields& fields, json::object& out) {
  if (const json::object* config = fields.object("output_config")) {
    const Fields inner(*config, "output_config", fields.faults());
    if (const std::optional<std::string> effort = inner.string("effort")) {
      out["reasoning_effort"] = *effort;
    }
  }
}

}  // namespace

ApiResult<json::object> chat_body_of_messages(const json::value& body) {
  if (!body.is_object()) {
    return tl::unexpected<ApiError>(bad_field(
        "", fmt::format("The body of the request must be a JSON object, not {}.", json_kind(body))));
  }
  Faults faults;
  const json::object& given = body.get_object();
  const Fields fields(given, "", faults);
  json::object out;
  copy_shared_fields(given, out);
  copy_fields(given, {"max_tokens"}, out);
  out["messages"] = chat_messages(fields);
  json::array tools = chat_tools(fields);
  if (!tools.empty()) {
    out["tools"] = std::move(tools);
  }
  if (const json::array* stops = fields.array("stop_sequences")) {
    out["stop"] = *stops;
  }
  translate_choice(fields, out);
  translate_thinking(fields, out);
  translate_format(fields, out);
  translate_effort(fields, out);
  if (faults.any()) {
    return tl::unexpected<ApiError>(faults.first());
  }
  return out;
}

ApiResult<ChatRequest> parse_messages_request(const json::value& body) {
  ApiResult<json::object> chat = chat_body_of_messages(body);
  if (!chat) {
    return tl::unexpected<ApiError>(chat.error());
  }
  ApiResult<ChatRequest> request = parse_chat_request(json::value(std::move(*chat)));
  if (!request) {
    ApiError error = request.error();
    rename_fields(error, {{"stop", "stop_sequences"},
                          {"response_format", "output_config.format"},
                          {"reasoning_effort", "output_config.effort"}});
    return tl::unexpected<ApiError>(std::move(error));
  }
  return request;
}

}  // namespace lily
