#include "server/messages_request.h"

#include <boost/json/array.hpp>

#include "server/chat_messages.h"
#include "server/translation.h"

namespace lily {
namespace {

namespace json = boost::json;

// What Claude Code puts first changes with every request, and nothing after it could be kept.
constexpr std::string_view kClientHeader = "x-anthropic-";

// One message of Anthropic's, on its way to one or more of a chat.
struct Turn {
  json::array parts;
  std::string reasoning;
  json::array calls;
  json::array results;  // tool messages, and the user's text between them, in order
};

// `content`: a string or blocks, each given to `take` with its type. Anything else is a fault.
template <class Take>
void for_each_block(const json::value& content, const std::string& path, Faults& faults, const Take& take) {
  if (content.is_string()) {
    json::object block = text_part(view(content.get_string()));
    take(Fields(block, path, faults), "text", path);
    return;
  }
  if (!content.is_array()) {
    faults.about(path, "must be a string or an array of blocks, not {}.", json_kind(content));
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
    if (!is_object(blocks[i])) {
      faults.about(here, "must be a block (an object), not {}.", json_kind(blocks[i]));
      return;
    }
    const Fields block(blocks[i].get_object(), here, faults);
    const std::string type = block.required_string("type");
    if (!faults.any()) {
      take(block, type, here);
    }
  }
}

void not_text(const std::string& path, std::string_view type, Faults& faults) {
  faults.about(path, "is of type '{}': this server reads text only.", type);
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
    parts.emplace_back(text_part(fields.required_string("data")));
    return true;
  }
  const json::value* content = type == "content" ? fields.find("content") : nullptr;
  if (content == nullptr) {
    return false;
  }
  for_each_block(*content, fields.path("content"), block.faults(),
                 [&](const Fields& inner, std::string_view kind, const std::string& path) {
                   if (kind == "text") {
                     parts.emplace_back(text_part(inner.required_string("text")));
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
                       parts.emplace_back(text_part(inner.required_string("text")));
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
                     parts.emplace_back(text_part(inner.required_string("text")));
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
    std::string text = block.required_string("text");
    if (role != "system" || !text.starts_with(kClientHeader)) {
      turn.parts.emplace_back(text_part(text));
    }
  } else if (type == "thinking") {
    turn.reasoning += block.required_string("thinking");
  } else if (type == "tool_use") {
    turn.calls.emplace_back(
        function_call(block.string("id").value_or(""), function_name(block), block.find("input")));
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
             type == "compaction" || type.ends_with("_tool_result")) {
    // Of tools that run at Anthropic's: none does here.
  } else {
    block.fault("type", "is '{}', which is no block that this server knows.", type);
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
    message.fault("content", "is missing; expected a string or an array of blocks.");
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
                   const std::string text = block.required_string("text");
                   if (!text.starts_with(kClientHeader) && !text.empty()) {
                     messages.emplace_back(chat_message("system", json::string(text)));
                   }
                 });
}

json::array chat_messages(const Fields& fields) {
  json::array out;
  add_system(fields, out);
  for_each_object(fields.required_array("messages"), "messages", fields.faults(), [&](const Fields& message) {
    const std::string role = message.required_string("role");
    if (role != "user" && role != "assistant" && role != "system") {
      message.fault("role", "is '{}'; expected user, assistant or system.", role);
    }
    add_turn(message, role, out);
  });
  return out;
}

// Tools of another type than `custom` run at Anthropic's, or are known to its models alone.
json::array chat_tools(const Fields& fields) {
  json::array out;
  for_each_object(fields.array("tools"), "tools", fields.faults(), [&](const Fields& tool) {
    if (tool.string("type").value_or("custom") == "custom") {
      out.emplace_back(function_tool(function_name(tool), tool, "input_schema"));
    }
  });
  return out;
}

void translate_choice(const Fields& fields, json::object& out) {
  const json::object* object = fields.object("tool_choice");
  if (object == nullptr) {
    return;
  }
  const Fields choice(*object, "tool_choice", fields.faults());
  const std::string type = choice.required_string("type");
  if (choice.boolean("disable_parallel_tool_use").value_or(false)) {
    out["parallel_tool_calls"] = false;
  }
  if (type == "auto" || type == "none" || type == "any") {
    out["tool_choice"] = json::string(type);
  } else if (type == "tool") {
    json::object function;
    function["name"] = choice.required_string("name");
    out["tool_choice"] = json::object{{"type", "function"}, {"function", std::move(function)}};
  } else {
    choice.fault("type", "is '{}'; expected auto, any, tool or none.", type);
  }
}

// Thinking is for those who ask for it, as it is at Anthropic's: others expect the text to come first.
void translate_thinking(const Fields& fields, json::object& out) {
  const json::object* object = fields.object("thinking");
  std::string type = "disabled";
  if (object != nullptr) {
    const Fields thinking(*object, "thinking", fields.faults());
    type = thinking.required_string("type");
    const std::optional<int64_t> budget = thinking.integer("budget_tokens", {0, 1e9});
    if (budget && type == "enabled") {
      out["thinking_budget"] = *budget;
    }
  }
  if (type != "enabled" && type != "disabled" && type != "adaptive" && type != "between_tools") {
    fields.faults().about("thinking.type", "is '{}'; expected enabled, adaptive or disabled.", type);
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
  const std::string type = inner.required_string("type");
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
  LILY_TRY(const json::object* given, body_object(body));
  Faults faults;
  const Fields fields(*given, "", faults);
  json::object out;
  copy_shared_fields(*given, out);
  copy_fields(*given, {"max_tokens"}, out);
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
  LILY_TRY_VOID(faults.result());
  return out;
}

ApiResult<ChatRequest> parse_messages_request(const json::value& body) {
  LILY_TRY(json::object chat, chat_body_of_messages(body));
  ApiResult<ChatRequest> request = parse_chat_request(json::value(std::move(chat)));
  if (!request) {
    rename_fields(request.error(), {{"stop", "stop_sequences"},
                                    {"response_format", "output_config.format"},
                                    {"reasoning_effort", "output_config.effort"}});
  }
  return request;
}

}  // namespace lily
