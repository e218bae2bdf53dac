// Conversations as the published template takes them (JSON) into lily's types, for tests and their tools.
#pragma once

#include <boost/json.hpp>
#include <optional>
#include <string>

#include "text/chat_template.h"

namespace lily::test {

inline std::string text_of(const boost::json::value& value) {
  return {value.get_string().data(), value.get_string().size()};
}

inline Result<std::vector<ContentPart>> parts_of(const boost::json::value* content) {
  std::vector<ContentPart> parts;
  if (content == nullptr || content->is_null()) return parts;
  if (content->is_string()) {
    parts.push_back({ContentPart::Kind::text, text_of(*content)});
    return parts;
  }
  if (!content->is_array()) return fail(ErrorKind::invalid_input, "Unexpected content type.");
  for (const auto& item : content->get_array()) {
    const auto* object = item.if_object();
    const auto has = [&](const char* key) { return object != nullptr && object->contains(key); };
    const auto* type = object != nullptr ? object->if_contains("type") : nullptr;
    const auto is = [&](const char* kind) { return type != nullptr && *type == kind; };
    if (has("image") || has("image_url") || is("image"))
      parts.push_back({ContentPart::Kind::image, {}});
    else if (has("video") || is("video"))
      parts.push_back({ContentPart::Kind::video, {}});
    else if (has("text") && object->at("text").is_string())
      parts.push_back({ContentPart::Kind::text, text_of(object->at("text"))});
    else
      return fail(ErrorKind::invalid_input, "Unexpected item type in content.");
  }
  return parts;
}

inline Result<Message> message_of(const boost::json::value& value) {
  Message message;
  const auto* object = value.if_object();
  if (object == nullptr) return fail(ErrorKind::invalid_input, "a message is an object");
  if (const auto* role = object->if_contains("role"); role != nullptr && role->is_string())
    message.role = text_of(*role);
  LILY_TRY(message.content, parts_of(object->if_contains("content")));
  if (const auto* reasoning = object->if_contains("reasoning_content");
      reasoning != nullptr && reasoning->is_string())
    message.reasoning = text_of(*reasoning);
  const auto* calls = object->if_contains("tool_calls");
  if (calls == nullptr || !calls->is_array()) return message;
  for (const auto& call : calls->get_array()) {
    const auto* function = call.if_object();
    if (function != nullptr && function->contains("function"))
      function = function->at("function").if_object();
    if (function == nullptr || !function->contains("name") || !function->at("name").is_string())
      return fail(ErrorKind::invalid_input, "a tool call has a name");
    ToolCall made;
    made.name = text_of(function->at("name"));
    if (const auto* arguments = function->if_contains("arguments"); arguments != nullptr) {
      if (!arguments->is_object())
        return fail(ErrorKind::invalid_input, "Can only get item pairs from a mapping.");
      made.arguments = arguments->get_object();
    }
    message.tool_calls.push_back(std::move(made));
  }
  return message;
}

// {"messages": [...], "tools": [...], "enable_thinking": ..., ...}
inline Result<RenderedPrompt> render_json(const boost::json::value& input) {
  const auto* object = input.if_object();
  if (object == nullptr) return fail(ErrorKind::invalid_input, "the input is an object");
  Conversation conversation;
  if (const auto* messages = object->if_contains("messages"); messages != nullptr && messages->is_array())
    for (const auto& value : messages->get_array()) {
      LILY_TRY(Message message, message_of(value));
      conversation.messages.push_back(std::move(message));
    }
  if (const auto* tools = object->if_contains("tools"); tools != nullptr && tools->is_array())
    conversation.tools = tools->get_array();
  const auto flag = [&](const char* key, bool otherwise) {
    const auto* found = object->if_contains(key);
    return found != nullptr && found->is_bool() ? found->get_bool() : otherwise;
  };
  TemplateOptions options;
  options.add_generation_prompt = flag("add_generation_prompt", false);
  options.enable_thinking = flag("enable_thinking", true);
  options.preserve_thinking = flag("preserve_thinking", false);
  options.add_vision_id = flag("add_vision_id", false);
  options.tolerant = flag("tolerant", false);
  options.continue_final_message = flag("continue_final_message", false);
  if (flag("normalize", false)) conversation = normalize(std::move(conversation));
  return render(conversation, options);
}

}  // namespace lily::test
