// The published chat template of Qwen3.6 as native C++: the same bytes as chat_template.jinja for every
// conversation that it accepts, the same refusals where it raises. normalize() maps what clients send onto
// what it accepts.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "text/json.h"
#include "text/rendered_prompt.h"

namespace lily {

struct ContentPart {
  enum class Kind { text, image, video } kind = Kind::text;
  std::string text;  // of a text part
};

struct ToolCall {
  std::string id;
  std::string name;
  boost::json::object arguments;  // key order kept
};

struct Message {
  std::string role;                      // system, user, assistant, tool (developer before normalize())
  std::vector<ContentPart> content;      // empty = null or ""
  std::optional<std::string> reasoning;  // reasoning_content, of an assistant message
  std::vector<ToolCall> tool_calls;
};

struct Conversation {
  std::vector<Message> messages;
  boost::json::array tools;  // rendered in their order, key order kept
};

struct TemplateOptions {
  bool add_generation_prompt = true;
  bool enable_thinking = true;
  bool preserve_thinking = false;
  bool add_vision_id = false;
  // What clients need and the template refuses: a late system message is rendered in place as a system turn;
  // a conversation without a user query is rendered as if its last query were before its start.
  bool tolerant = false;
  // A trailing assistant message is continued: no end marker after it, think block closed.
  bool continue_final_message = false;
};

// developer -> system; the leading run of system messages merged into one, joined by a blank line.
Conversation normalize(Conversation conversation);

// What an answer in the history says, as the template reads it. Views into the message and `text`.
struct AnswerParts {
  std::string_view reasoning;  // without blanks around it
  std::string_view text;
  bool apart;  // the reasoning is a field of its own; otherwise it was found in the text, or there is none
};
// `text`: the joined content of `message` without blanks around it.
AnswerParts answer_parts(const Message& message, std::string_view text);

// Errors carry the template's own words ("No messages provided.", "Unexpected message role.", ...).
Result<RenderedPrompt> render(const Conversation& conversation, const TemplateOptions& options);

}  // namespace lily
