#include "server/responses_request.h"

#include <algorithm>
#include <boost/json/array.hpp>

#include "server/chat_messages.h"
#include "server/translation.h"

namespace lily {
namespace {

namespace json = boost::json;

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

// The items of the input become messages: what the model said between two inputs is one message, whose
// reasoning, text and calls are items of their own here.
class Items {
 public:
  Items(json::array& messages, Faults& faults) : messages_(messages), faults_(faults) {}

  void add(const Fields& item);
  void finish() { flush(); }

 private:
  void add_message(const Fields& item);
  void add_reasoning(const Fields& item);
  void add_call(const Fields& item);
  void add_output(const Fields& item);
  json::array parts(const Fields& item, std::string_view key, bool of_tool);
  void add_part(const Fields& part, bool of_tool, json::array& out);
  void flush();

  json::array& messages_;
  Faults& faults_;
  bool open_ = false;  // a message of the assistant
  json::array content_, calls_;
  std::string reasoning_;
};

void Items::flush() {
  if (!open_) {
    return;
  }
  json::object message = chat_message("assistant", std::move(content_));
  if (!reasoning_.empty()) {
    message["reasoning_content"] = reasoning_;
  }
  if (!calls_.empty()) {
    message["tool_calls"] = std::move(calls_);
  }
  messages_.emplace_back(std::move(message));
  content_ = json::array();
  calls_ = json::array();
  reasoning_.clear();
  open_ = false;
}

void Items::add_part(const Fields& part, bool of_tool, json::array& out) {
  const std::string type = part.required_string("type");
  if (faults_.any()) {
    return;
  }
  if (is_one_of(type, {"input_text", "output_text", "text", "summary_text", "reasoning_text"})) {
    out.emplace_back(text_part(part.required_string("text")));
  } else if (type == "refusal") {
    out.emplace_back(text_part(part.required_string("refusal")));
  } else if (of_tool) {
    // It came from a program: a refusal would end the conversation for good.
    out.emplace_back(text_part(fmt::format("[{}: this server reads text only]", type)));
  } else if (is_one_of(type,
                       {"input_image", "input_file", "input_audio", "input_video", "computer_screenshot"})) {
    faults_.about(part.path(), "is of type '{}': this server reads text only.", type);
  } else {
    part.fault("type", "is '{}'; expected input_text or output_text.", type);
  }
}

json::array Items::parts(const Fields& item, std::string_view key, bool of_tool) {
  json::array out;
  const json::value* value = item.find(key);
  if (value == nullptr) {
    return out;
  }
  const std::string path = item.path(key);
  if (value->is_string()) {
    out.emplace_back(text_part(view(value->get_string())));
    return out;
  }
  if (!value->is_array()) {
    faults_.about(path, "must be a string or an array of parts, not {}.", json_kind(*value));
    return out;
  }
  for_each_object(&value->get_array(), path, faults_,
                  [&](const Fields& part) { add_part(part, of_tool, out); });
  return out;
}

void Items::add_message(const Fields& item) {
  const std::string role = item.required_string("role");
  if (!is_one_of(role, {"user", "assistant", "system", "developer"})) {
    item.fault("role", "is '{}'; expected user, assistant, system or developer.", role);
  }
  json::array content = parts(item, "content", false);
  if (role != "assistant") {
    flush();
    messages_.emplace_back(chat_message(role, std::move(content)));
    return;
  }
  if (!content_.empty()) {
    flush();
  }
  open_ = true;
  content_ = std::move(content);
}

void Items::add_reasoning(const Fields& item) {
  if (!content_.empty() || !calls_.empty()) {
    flush();
  }
  open_ = true;
  const std::string kept = item.string("encrypted_content").value_or("");
  const bool ours = kept.starts_with(kKeptReasoning);
  json::array text = parts(item, "content", false);
  if (text.empty() && ours) {
    reasoning_ += kept.substr(kKeptReasoning.size());
    return;
  }
  if (text.empty()) {
    text = parts(item, "summary", false);
  }
  for (const json::value& part : text) {
    reasoning_ += view(part.get_object().at("text").get_string());
  }
}

void Items::add_call(const Fields& item) {
  std::string name = function_name(item);
  if (const std::optional<std::string> space = item.string("namespace")) {
    name = *space + "__" + name;
  }
  open_ = true;
  calls_.emplace_back(function_call(item.string("call_id").value_or(""), name, item.find("arguments")));
}

void Items::add_output(const Fields& item) {
  flush();
  json::object message = chat_message("tool", parts(item, "output", true));
  message["tool_call_id"] = item.string("call_id").value_or("");
  messages_.emplace_back(std::move(message));
}

void Items::add(const Fields& item) {
  const std::string type = item.string("type").value_or(item.find("role") != nullptr ? "message" : "");
  if (type == "message") {
    add_message(item);
  } else if (type == "reasoning") {
    add_reasoning(item);
  } else if (type == "function_call") {
    add_call(item);
  } else if (type == "function_call_output") {
    add_output(item);
  } else if (type == "item_reference") {
    faults_.about(item.path(), "refers to an item, but this server stores none.");
  } else if (type.empty()) {
    item.fault("type", "is missing.");
  }
  // Items of tools that this server ignores are ignored with them.
}

json::array messages_of(const Fields& fields) {
  json::array out;
  if (const std::optional<std::string> instructions = fields.string("instructions")) {
    if (!instructions->empty()) {
      out.emplace_back(chat_message("system", json::string(*instructions)));
    }
  }
  const json::value* input = fields.find("input");
  if (input == nullptr) {
    fields.fault("input", "is missing; expected a string or an array of items.");
  } else if (input->is_string()) {
    if (!input->get_string().empty()) {
      out.emplace_back(chat_message("user", input->get_string()));
    }
  } else if (input->is_array()) {
    Items items(out, fields.faults());
    for_each_object(&input->get_array(), "input", fields.faults(),
                    [&](const Fields& item) { items.add(item); });
    items.finish();
  } else {
    fields.fault("input", "must be a string or an array of items, not {}.", json_kind(*input));
  }
  if (out.empty()) {  // clients look in this way whether the server is there
    out.emplace_back(chat_message("user", json::string()));
  }
  return out;
}

void add_function(const Fields& tool, const std::string& space, ResponsesRequest& request,
                  json::array& tools) {
  const json::object* nested = tool.object("function");  // as chat requests have it
  const Fields fields = nested == nullptr ? tool : Fields(*nested, tool.path("function"), tool.faults());
  std::string name = function_name(fields);
  if (!space.empty()) {
    const std::string flat = space + "__" + name;
    request.functions[flat] = {space, name};
    name = flat;
  }
  tools.emplace_back(function_tool(name, fields, "parameters"));
}

// Other kinds of tools run at OpenAI's, or are called in a way that this model has not learnt.
void translate_tools(const Fields& owner, const std::string& space, ResponsesRequest& request,
                     json::array& out) {
  for_each_object(owner.array("tools"), owner.path("tools"), owner.faults(), [&](const Fields& tool) {
    const std::string type = tool.required_string("type");
    if (type == "function") {
      add_function(tool, space, request, out);
    } else if (type == "namespace" && space.empty()) {
      translate_tools(tool, tool.required_string("name"), request, out);
    }
  });
}

void translate_choice(const Fields& fields, json::object& chat) {
  const json::value* choice = fields.find("tool_choice");
  if (choice == nullptr || !choice->is_object()) {
    if (choice != nullptr) {
      chat["tool_choice"] = *choice;
    }
    return;
  }
  const Fields inner(choice->get_object(), "tool_choice", fields.faults());
  const std::string type = inner.required_string("type");
  if (type == "function") {
    std::string name = inner.required_string("name");
    if (const std::optional<std::string> space = inner.string("namespace")) {
      name = *space + "__" + name;
    }
    chat["tool_choice"] = json::object{{"type", "function"}, {"function", json::object{{"name", name}}}};
  } else if (type == "allowed_tools") {
    chat["tool_choice"] = inner.required_string("mode");
  } else {
    inner.fault("type", "is '{}'; expected function.", type);
  }
}

void translate_text(const Fields& fields, json::object& chat) {
  const json::object* text = fields.object("text");
  if (text == nullptr) {
    return;
  }
  const Fields inner(*text, "text", fields.faults());
  const json::object* format = inner.object("format");
  if (format == nullptr) {
    return;
  }
  const Fields wanted(*format, "text.format", fields.faults());
  json::object out;
  out["type"] = wanted.required_string("type");
  if (out["type"] == "json_schema") {
    json::object schema;
    copy_fields(*format, {"name", "description", "schema", "strict"}, schema);
    out["json_schema"] = std::move(schema);
  }
  chat["response_format"] = std::move(out);
}

void translate_include(const Fields& fields, ResponsesRequest& request) {
  const std::optional<int64_t> top = fields.integer("top_logprobs", {0, Limits::kMaxTopLogprobs});
  bool logprobs = top.value_or(0) > 0;
  if (const json::array* include = fields.array("include")) {
    for (const json::value& word : *include) {
      request.keep_reasoning = request.keep_reasoning || word == "reasoning.encrypted_content";
      logprobs = logprobs || word == "message.output_text.logprobs";
    }
  }
  if (logprobs) {
    request.chat["logprobs"] = true;
    request.chat["top_logprobs"] = top.value_or(0);
  }
}

// What would need answers to be stored.
void refuse_state(const Fields& fields) {
  for (const std::string_view key : {"previous_response_id", "conversation", "prompt"}) {
    if (fields.find(key) != nullptr) {
      fields.fault(
          key, "is not supported: this server stores no answers. Send the whole conversation as 'input'.");
    }
  }
  if (fields.boolean("background").value_or(false)) {
    fields.fault("background", "is not supported: this server stores no answers.");
  }
}

}  // namespace

ApiResult<ResponsesRequest> translate_responses(const json::value& body) {
  LILY_TRY(const json::object* given, body_object(body));
  Faults faults;
  const Fields fields(*given, "", faults);
  ResponsesRequest request;
  refuse_state(fields);
  copy_shared_fields(*given, request.chat);
  copy_fields(*given, {"parallel_tool_calls", "stop"}, request.chat);
  request.chat["messages"] = messages_of(fields);
  json::array tools;
  translate_tools(fields, "", request, tools);
  if (!tools.empty()) {
    request.chat["tools"] = std::move(tools);
  }
  translate_choice(fields, request.chat);
  translate_text(fields, request.chat);
  translate_include(fields, request);
  if (const json::value* most = fields.find("max_output_tokens")) {
    request.chat["max_tokens"] = *most;
  }
  if (const json::object* reasoning = fields.object("reasoning")) {
    if (const json::value* effort = reasoning->if_contains("effort")) {
      request.chat["reasoning_effort"] = *effort;
    }
  }
  static_cast<void>(fields.object("metadata"));
  copy_fields(*given,
              {"instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "prompt_cache_key",
               "reasoning", "safety_identifier", "temperature", "text", "tool_choice", "tools",
               "top_logprobs", "top_p", "user"},
              request.echo);
  LILY_TRY_VOID(faults.result());
  return request;
}

ApiError responses_error(ApiError error) {
  rename_fields(error, {{"messages", "input"},
                        {"max_tokens", "max_output_tokens"},
                        {"response_format", "text.format"},
                        {"reasoning_effort", "reasoning.effort"}});
  return error;
}

ApiResult<ChatRequest> parse_responses_chat(ResponsesRequest& request) {
  ApiResult<ChatRequest> chat = parse_chat_request(json::value(std::move(request.chat)));
  if (!chat) {
    return fail(responses_error(chat.error()));
  }
  return chat;
}

}  // namespace lily
