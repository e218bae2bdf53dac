#include "text/chat_template.h"

#include <algorithm>
#include <utility>

#include "text/json.h"
#include "text/unicode.h"

namespace lily {

namespace {

constexpr std::string_view kImage = "<|vision_start|><|image_pad|><|vision_end|>";
constexpr std::string_view kVideo = "<|vision_start|><|video_pad|><|vision_end|>";
constexpr std::string_view kThinkOpen = "<think>", kThinkClose = "</think>";
constexpr std::string_view kToolRules =
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\n"
    "multiple lines\n</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be "
    "nested within <tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function "
    "call, but NOT after\n- If there is no function call available, answer the question like normal with "
    "your current knowledge and do not tell the user about function calls\n</IMPORTANT>";

// The content of a message: text of the client, with marks of the template where images and videos stand.
struct Content {
  std::string text;
  std::vector<RenderedPrompt::Range> marks;
};

struct VisionCount {
  size_t images = 0, videos = 0;
};

class Writer {
 public:
  void control(std::string_view text) { out_.text += text; }

  void literal(std::string_view text) {
    if (text.empty()) return;
    const size_t begin = out_.text.size();
    out_.text += text;
    if (!out_.literal.empty() && out_.literal.back().end == begin)
      out_.literal.back().end = out_.text.size();
    else
      out_.literal.push_back({begin, out_.text.size()});
  }

  // `part` is a view into content.text; its marks stay outside the literal ranges.
  void content(const Content& content, std::string_view part) {
    const auto begin = static_cast<size_t>(part.data() - content.text.data());
    size_t done = 0;
    for (const auto& mark : content.marks) {
      const size_t from = std::clamp(mark.begin, begin, begin + part.size()) - begin;
      const size_t to = std::clamp(mark.end, begin, begin + part.size()) - begin;
      literal(part.substr(done, from - done));
      control(part.substr(from, to - from));
      done = to;
    }
    literal(part.substr(done));
  }

  void mark() {
    if (out_.marks.empty() || out_.marks.back() < out_.text.size()) out_.marks.push_back(out_.text.size());
  }

  void turn(std::string_view role) { out_.turns.push_back({out_.text.size(), role}); }
  size_t size() const { return out_.text.size(); }
  void answer(size_t begin, size_t message) { out_.answers.push_back({begin, out_.text.size(), message}); }

  RenderedPrompt take() { return std::move(out_); }

 private:
  RenderedPrompt out_;
};

std::string_view strip_newlines_left(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}

std::string_view strip_newlines_right(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

class Template {
 public:
  Template(const Conversation& conversation, const TemplateOptions& options)
      : messages_(conversation.messages), tools_(conversation.tools), options_(options) {}

  Result<RenderedPrompt> render() {
    if (messages_.empty()) return fail(ErrorKind::invalid_input, "No messages provided.");
    LILY_TRY_VOID(head());
    LILY_TRY_VOID(find_last_query());
    continues_ = options_.continue_final_message && messages_.back().role == "assistant";
    VisionCount count;
    for (size_t i = 0; i < messages_.size(); ++i) LILY_TRY_VOID(message(i, count));
    bool starts_in_think = false;
    if (!continues_ && options_.add_generation_prompt) {
      writer_.turn("assistant");
      writer_.control("<|im_start|>assistant\n");
      writer_.mark();
      writer_.control(options_.enable_thinking ? "<think>\n" : "<think>\n\n</think>\n\n");
      starts_in_think = options_.enable_thinking;
    }
    RenderedPrompt prompt = writer_.take();
    prompt.starts_in_think = starts_in_think;
    prompt.continues_text = continues_text_;
    return prompt;
  }

 private:
  // With `count`, images and videos are counted, as the template does for the messages but not for its first
  // look at the system message.
  Result<Content> content_of(const Message& message, VisionCount* count, bool is_system) const {
    Content content;
    VisionCount none;
    VisionCount& total = count != nullptr ? *count : none;
    for (const ContentPart& part : message.content) {
      if (part.kind == ContentPart::Kind::text) {
        content.text += part.text;
        continue;
      }
      const bool image = part.kind == ContentPart::Kind::image;
      if (is_system)
        return fail(ErrorKind::invalid_input, "System message cannot contain {}.",
                    image ? "images" : "videos");
      size_t& number = image ? total.images : total.videos;
      if (count != nullptr) ++number;
      const size_t begin = content.text.size();
      if (options_.add_vision_id) content.text += fmt::format("{} {}: ", image ? "Picture" : "Video", number);
      content.text += image ? kImage : kVideo;
      content.marks.push_back({begin, content.text.size()});
    }
    return content;
  }

  // The system turn at the start: tools, then the system message.
  Result<void> head() {
    const bool has_system = messages_[0].role == "system";
    if (tools_.empty() && !has_system) return {};
    writer_.turn("system");
    writer_.control("<|im_start|>system\n");
    if (!tools_.empty()) {
      writer_.control("# Tools\n\nYou have access to the following functions:\n\n<tools>");
      for (const auto& tool : tools_) {
        writer_.control("\n");
        writer_.literal(to_python_json(tool));
      }
      writer_.control(kToolRules);
    }
    if (has_system) {
      LILY_TRY(const Content content, content_of(messages_[0], nullptr, true));
      const std::string_view text = python_strip(content.text);
      if (!tools_.empty() && !text.empty()) writer_.control("\n\n");
      writer_.content(content, text);
    }
    writer_.control("<|im_end|>\n");
    writer_.mark();
    return {};
  }

  // Assistant turns after the last user message that is not wholly a tool response keep their think block.
  Result<void> find_last_query() {
    for (size_t i = messages_.size(); i-- > 0;) {
      if (messages_[i].role != "user") continue;
      LILY_TRY(const Content content, content_of(messages_[i], nullptr, false));
      const std::string_view text = python_strip(content.text);
      if (text.starts_with("<tool_response>") && text.ends_with("</tool_response>")) continue;
      last_query_ = static_cast<ptrdiff_t>(i);
      return {};
    }
    if (!options_.tolerant) return fail(ErrorKind::invalid_input, "No user query found in messages.");
    return {};
  }

  Result<void> message(size_t index, VisionCount& count) {
    const Message& message = messages_[index];
    const bool late_system = message.role == "system" && index > 0;
    const bool opens_turn = message.role != "tool" || (index > 0 && messages_[index - 1].role != "tool");
    if (index > 0 && index + 1 == messages_.size() && opens_turn) writer_.mark();
    LILY_TRY(const Content content, content_of(message, &count, late_system && options_.tolerant));
    const std::string_view text = python_strip(content.text);
    if (message.role == "system") {
      if (!late_system) return {};
      if (!options_.tolerant)
        return fail(ErrorKind::invalid_input, "System message must be at the beginning.");
      turn(index, "<|im_start|>system\n", content, text);
    } else if (message.role == "user") {
      turn(index, "<|im_start|>user\n", content, text);
    } else if (message.role == "assistant") {
      assistant(index, content, text);
    } else if (message.role == "tool") {
      tool(index, content, text);
    } else {
      return fail(ErrorKind::invalid_input, "Unexpected message role.");
    }
    return {};
  }

  void turn(size_t index, std::string_view opener, const Content& content, std::string_view text) {
    writer_.turn(messages_[index].role == "user" ? "user" : "system");
    writer_.control(opener);
    writer_.content(content, text);
    writer_.control("<|im_end|>\n");
  }

  void tool(size_t index, const Content& content, std::string_view text) {
    if (index > 0 && messages_[index - 1].role != "tool") {
      writer_.turn("tool");
      writer_.control("<|im_start|>user");
    }
    writer_.control("\n<tool_response>\n");
    writer_.content(content, text);
    writer_.control("\n</tool_response>");
    if (index + 1 == messages_.size() || messages_[index + 1].role != "tool") writer_.control("<|im_end|>\n");
  }

  void assistant(size_t index, const Content& content, std::string_view text) {
    const Message& message = messages_[index];
    const bool last = index + 1 == messages_.size();
    const AnswerParts parts = answer_parts(message, text);
    writer_.turn("assistant");
    writer_.control("<|im_start|>assistant\n");
    const size_t begin = writer_.size();
    const bool answers_last_query = static_cast<ptrdiff_t>(index) > last_query_;
    if (answers_last_query && !std::exchange(answered_, true)) writer_.mark();
    const bool with_reasoning = options_.preserve_thinking || answers_last_query;
    if (with_reasoning) {
      writer_.control("<think>\n");
      if (parts.apart)
        writer_.literal(parts.reasoning);
      else
        writer_.content(content, parts.reasoning);
      writer_.control("\n</think>\n\n");
    }
    writer_.content(content, parts.text);
    tool_calls(message, !python_strip(parts.text).empty());
    if (last && continues_) {
      continues_text_ = !parts.text.empty() || !message.tool_calls.empty();
      return;
    }
    if (with_reasoning) writer_.answer(begin, index);
    writer_.control("<|im_end|>\n");
  }

  void tool_calls(const Message& message, bool after_text) {
    for (size_t i = 0; i < message.tool_calls.size(); ++i) {
      const ToolCall& call = message.tool_calls[i];
      writer_.control(i > 0 ? "\n" : after_text ? "\n\n" : "");
      writer_.control("<tool_call>\n<function=");
      writer_.literal(call.name);
      writer_.control(">\n");
      for (const auto& argument : call.arguments) {
        writer_.control("<parameter=");
        writer_.literal({argument.key().data(), argument.key().size()});
        writer_.control(">\n");
        if (const auto* string = argument.value().if_string())
          writer_.literal({string->data(), string->size()});
        else
          writer_.literal(to_python_json(argument.value()));
        writer_.control("\n</parameter>\n");
      }
      writer_.control("</function>\n</tool_call>");
    }
  }

  const std::vector<Message>& messages_;
  const boost::json::array& tools_;
  const TemplateOptions& options_;
  Writer writer_;
  ptrdiff_t last_query_ = -1;
  bool answered_ = false;  // an answer to the last query was written
  bool continues_ = false;
  bool continues_text_ = false;
};

bool is_blank(const Message& message) {
  return std::all_of(message.content.begin(), message.content.end(), [](const ContentPart& part) {
    return part.kind == ContentPart::Kind::text && python_strip(part.text).empty();
  });
}

}  // namespace

AnswerParts answer_parts(const Message& message, std::string_view text) {
  if (message.reasoning) return {python_strip(*message.reasoning), text, true};
  const size_t close = text.find(kThinkClose);
  if (close == std::string_view::npos) return {text.substr(0, 0), text, false};
  std::string_view reasoning = strip_newlines_right(text.substr(0, close));
  if (const size_t open = reasoning.rfind(kThinkOpen); open != std::string_view::npos)
    reasoning.remove_prefix(open + kThinkOpen.size());
  reasoning = strip_newlines_left(reasoning);
  text = strip_newlines_left(text.substr(text.rfind(kThinkClose) + kThinkClose.size()));
  return {python_strip(reasoning), text, false};
}

Conversation normalize(Conversation conversation) {
  std::vector<Message>& messages = conversation.messages;
  for (Message& message : messages)
    if (message.role == "developer") message.role = "system";
  const auto end =
      std::find_if(messages.begin(), messages.end(), [](const Message& m) { return m.role != "system"; });
  if (end - messages.begin() < 2) return conversation;
  Message merged = std::move(messages.front());
  for (auto next = messages.begin() + 1; next != end; ++next) {
    if (is_blank(*next)) continue;
    if (is_blank(merged))
      merged.content.clear();
    else
      merged.content.push_back({ContentPart::Kind::text, "\n\n"});
    std::move(next->content.begin(), next->content.end(), std::back_inserter(merged.content));
  }
  messages.erase(messages.begin() + 1, end);
  messages.front() = std::move(merged);
  return conversation;
}

Result<RenderedPrompt> render(const Conversation& conversation, const TemplateOptions& options) {
  return Template(conversation, options).render();
}

}  // namespace lily
