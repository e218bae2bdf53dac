#include "server/translation.h"

#include "server/chat_messages.h"
#include "server/openai.h"
#include "text/json.h"

namespace lily {
namespace {

namespace json = boost::json;

json::string_view key_of(std::string_view text) { return {text.data(), text.size()}; }

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

}  // namespace

void copy_fields(const json::object& from, std::initializer_list<std::string_view> names, json::object& to) {
  for (const std::string_view name : names) {
    if (const json::value* value = from.if_contains(key_of(name))) {
      to[key_of(name)] = *value;
    }
  }
}

void copy_shared_fields(const json::object& from, json::object& to) {
  copy_fields(
      from,
      {"model", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty",
       "frequency_penalty", "repetition_penalty", "repeat_penalty", "logit_bias", "chat_template_kwargs",
       "enable_thinking", "preserve_thinking", "thinking_budget", "thinking_token_budget"},
      to);
  for (const std::string_view name : kConstraints) {
    copy_fields(from, {name}, to);
  }
}

void rename_fields(ApiError& error, std::initializer_list<RenamedField> names) {
  for (const RenamedField& name : names) {
    const std::string_view param = error.param;
    const std::string_view rest = param.substr(std::min(param.size(), name.chat.size()));
    const bool whole = rest.empty() || rest.front() == '.' || rest.front() == '[';
    if (param.substr(0, name.chat.size()) != name.chat || !whole) {
      continue;
    }
    const std::string old = error.param;
    error.param = std::string(name.here) + std::string(rest);
    replace_all(error.message, "'" + old + "'", "'" + error.param + "'");
    replace_all(error.message, fmt::format("'{}'", name.chat), fmt::format("'{}'", name.here));
    return;
  }
}

json::object text_part(std::string_view text) {
  json::object part;
  part["type"] = "text";
  part["text"] = json_text(text);
  return part;
}

json::object chat_message(std::string_view role, json::value content) {
  json::object message;
  message["role"] = json_text(role);
  message["content"] = std::move(content);
  return message;
}

json::object function_tool(std::string_view name, const Fields& tool, std::string_view parameters) {
  json::object function;
  function["name"] = json_text(name);
  if (const std::optional<std::string> description = tool.string("description")) {
    function["description"] = *description;
  }
  if (const json::object* schema = tool.object(parameters)) {
    function["parameters"] = *schema;
  }
  json::object out;
  out["type"] = "function";
  out["function"] = std::move(function);
  return out;
}

json::object function_call(std::string_view id, std::string_view name, const json::value* arguments) {
  json::object function;
  function["name"] = json_text(name);
  function["arguments"] = call_arguments(arguments);
  json::object call;
  call["id"] = json_text(id);
  call["type"] = "function";
  call["function"] = std::move(function);
  return call;
}

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

json::object call_input(const std::string& arguments) {
  Result<json::value> input = parse_json(arguments);
  return input && input->is_object() && !big_integer(*input) ? std::move(input->get_object())
                                                             : json::object();
}

}  // namespace lily
