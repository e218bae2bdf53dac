#include "server/messages.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "server/jobs.h"
#include "server/messages_request.h"
#include "server/sse.h"
#include "server/translation.h"
#include "text/json.h"

namespace lily {
namespace {

namespace json = boost::json;

std::string_view stop_reason(const Finished& finished) {
  switch (finished.reason) {
    case FinishReason::length:
      return "max_tokens";
    case FinishReason::tool_calls:
      return "tool_use";
    case FinishReason::stop:
      break;
  }
  return finished.stop_string.empty() ? "end_turn" : "stop_sequence";
}

// Tokens that were read from the cache are no input tokens here: clients add the two.
json::object usage_json(uint32_t prompt, uint32_t cached, uint32_t answer) {
  json::object out;
  out["input_tokens"] = prompt - cached;
  out["cache_creation_input_tokens"] = 0;
  out["cache_read_input_tokens"] = cached;
  out["output_tokens"] = answer;
  return out;
}

std::string event(json::object data) {
  const std::string name(data.at("type").get_string().c_str());
  return sse_event(name, serialize_json(data));
}

class MessagesDoor final : public Door {
 public:
  void begin(const std::string& id, int64_t created) override {
    static_cast<void>(created);  // no field of this API
    id_ = "msg_" + id;
    suffix_ = id;
  }
  const std::string& id() const override { return id_; }

  ApiResult<PreparedRequest> prepare(const json::value& body, const ServedModel& model) override {
    LILY_TRY(const ChatRequest request, parse_messages_request(body));
    LILY_TRY(GenerationRequest made, make_generation(request, model));
    model_ = request.model.empty() ? model.name : request.model;
    prompt_tokens_ = static_cast<uint32_t>(made.prompt.size());
    return PreparedRequest{std::move(made), request.stream};
  }
  void started(const PromptReuse& reuse) override { cached_tokens_ = reuse.cached; }

  std::string whole(const Answer& answer, const Finished& finished) override;
  std::string stream_begin() override;
  std::string stream_delta(const Delta& delta) override;
  std::string stream_end(const Finished& finished) override;
  std::string stream_failure(const ApiError& error) override {
    return sse_event("error", anthropic_error_json(error));
  }
  std::string stream_keep_alive() override { return event({{"type", "ping"}}); }
  HttpResponse error(const ApiError& error) const override { return anthropic_error(error); }

 private:
  enum class Block { none, thinking, text, tool };
  json::object message_json(json::array content) const;
  std::string call_id(size_t index) const { return fmt::format("toolu_{}_{}", suffix_, index); }
  std::string open(Block kind, json::object block);
  std::string close();
  std::string delta_event(json::object delta) const;

  std::string id_, suffix_, model_;
  uint32_t prompt_tokens_ = 0, cached_tokens_ = 0;
  Block block_ = Block::none;
  uint32_t blocks_ = 0;  // begun
  std::string blanks_;   // that are a block only if text follows
};

json::object thinking_block(std::string_view text, std::string_view signature) {
  json::object block;
  block["type"] = "thinking";
  block["thinking"] = json_text(text);
  block["signature"] = json_text(signature);
  return block;
}

json::object tool_block(const std::string& id, const std::string& name, json::object input) {
  json::object block;
  block["type"] = "tool_use";
  block["id"] = id;
  block["name"] = name;
  block["input"] = std::move(input);
  return block;
}

json::object MessagesDoor::message_json(json::array content) const {
  json::object out;
  out["id"] = id_;
  out["type"] = "message";
  out["role"] = "assistant";
  out["model"] = model_;
  out["content"] = std::move(content);
  out["stop_reason"] = nullptr;
  out["stop_sequence"] = nullptr;
  return out;
}

json::value stop_sequence(const Finished& finished) {
  return finished.reason == FinishReason::stop && !finished.stop_string.empty()
             ? json::value(finished.stop_string)
             : json::value(nullptr);
}

std::string MessagesDoor::whole(const Answer& answer, const Finished& finished) {
  json::array content;
  if (!answer.reasoning.empty()) {
    content.emplace_back(thinking_block(answer.reasoning, suffix_));
  }
  if (!is_blank(answer.content)) {
    content.emplace_back(text_part(answer.content));
  }
  for (size_t i = 0; i < answer.calls.size(); ++i) {
    const ParsedCall& call = answer.calls[i];
    if (call.complete) {
      content.emplace_back(tool_block(call_id(i), call.name, call_input(call.arguments)));
    }
  }
  json::object out = message_json(std::move(content));
  const std::string_view reason = stop_reason(finished);
  out["stop_reason"] = json_text(reason);
  out["stop_sequence"] = stop_sequence(finished);
  const Usage& usage = finished.usage;
  out["usage"] = usage_json(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens);
  return serialize_json(out);
}

std::string MessagesDoor::stream_begin() {
  json::object message = message_json({});
  message["usage"] = usage_json(prompt_tokens_, cached_tokens_, 0);
  json::object out;
  out["type"] = "message_start";
  out["message"] = std::move(message);
  return event(std::move(out));
}

std::string MessagesDoor::open(Block kind, json::object block) {
  std::string events = close();
  json::object out;
  out["type"] = "content_block_start";
  out["index"] = blocks_++;
  out["content_block"] = std::move(block);
  block_ = kind;
  return events + event(std::move(out));
}

std::string MessagesDoor::close() {
  blanks_.clear();
  if (block_ == Block::none) {
    return {};
  }
  std::string events;
  if (block_ == Block::thinking) {
    events += delta_event({{"type", "signature_delta"}, {"signature", suffix_}});
  }
  json::object out;
  out["type"] = "content_block_stop";
  out["index"] = blocks_ - 1;
  block_ = Block::none;
  return events + event(std::move(out));
}

std::string MessagesDoor::delta_event(json::object delta) const {
  json::object out;
  out["type"] = "content_block_delta";
  out["index"] = blocks_ - 1;
  out["delta"] = std::move(delta);
  return event(std::move(out));
}

std::string MessagesDoor::stream_delta(const Delta& delta) {
  std::string events;
  if (delta.call) {
    const ToolCallDelta& call = *delta.call;
    if (!call.name.empty()) {
      events += open(Block::tool, tool_block(call_id(call.index), call.name, {}));
    }
    if (!call.arguments.empty()) {
      events += delta_event({{"type", "input_json_delta"}, {"partial_json", call.arguments}});
    }
    return events;
  }
  if (!delta.reasoning.empty()) {
    if (block_ != Block::thinking) {
      events += open(Block::thinking, thinking_block("", ""));
    }
    return events + delta_event({{"type", "thinking_delta"}, {"thinking", delta.reasoning}});
  }
  std::string text = delta.content;
  if (block_ != Block::text) {
    text = std::move(blanks_) + text;
    if (is_blank(text)) {
      blanks_ = std::move(text);
      return events;
    }
    events += open(Block::text, text_part(""));
  }
  return events + delta_event({{"type", "text_delta"}, {"text", text}});
}

std::string MessagesDoor::stream_end(const Finished& finished) {
  std::string events = close();
  const std::string_view reason = stop_reason(finished);
  const Usage& usage = finished.usage;
  json::object delta;
  delta["stop_reason"] = json_text(reason);
  delta["stop_sequence"] = stop_sequence(finished);
  json::object out;
  out["type"] = "message_delta";
  out["delta"] = std::move(delta);
  out["usage"] = usage_json(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens);
  events += event(std::move(out));
  return events + event({{"type", "message_stop"}});
}

std::string_view error_type(const ApiError& error) {
  switch (error.status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return error.status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

std::shared_ptr<Door> make_messages_door() { return std::make_shared<MessagesDoor>(); }

ApiResult<std::string> count_message_tokens(const json::value& body, const ServedModel& model) {
  LILY_TRY(const ChatRequest request, parse_messages_request(body));
  LILY_TRY(const size_t tokens, count_prompt(request, model));
  json::object out;
  out["input_tokens"] = tokens;
  return serialize_json(out);
}

std::string anthropic_error_json(const ApiError& error) {
  json::object inner;
  const std::string_view type = error_type(error);
  inner["type"] = json_text(type);
  inner["message"] =
      error.code == "context_length_exceeded"
          ? fmt::format("prompt is too long: {} tokens > {} maximum", error.prompt_tokens, error.context)
          : clipped(error.message);
  json::object out;
  out["type"] = "error";
  out["error"] = std::move(inner);
  return serialize_json(out);
}

HttpResponse anthropic_error(const ApiError& error) {
  HttpResponse response = error_response(error);
  response.body = anthropic_error_json(error);
  return response;
}

}  // namespace lily
