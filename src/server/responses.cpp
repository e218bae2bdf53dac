#include "server/responses.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "server/jobs.h"
#include "server/responses_request.h"
#include "server/sse.h"
#include "server/translation.h"
#include "text/json.h"

namespace lily {
namespace {

namespace json = boost::json;

json::object response_usage(const Usage& usage) {
  json::object out;
  out["input_tokens"] = usage.prompt_tokens;
  out["input_tokens_details"] = json::object{{"cached_tokens", usage.cached_tokens}};
  out["output_tokens"] = usage.completion_tokens;
  out["output_tokens_details"] = json::object{{"reasoning_tokens", usage.reasoning_tokens}};
  out["total_tokens"] = uint64_t{usage.prompt_tokens} + usage.completion_tokens;
  return out;
}

json::object output_text(const std::string& text, const std::vector<TokenInfo>& tokens) {
  json::object part;
  part["type"] = "output_text";
  part["text"] = text;
  part["annotations"] = json::array();
  part["logprobs"] = tokens_json(tokens);
  return part;
}

json::object reasoning_text(const std::string& text) {
  json::object part;
  part["type"] = "reasoning_text";
  part["text"] = text;
  return part;
}

class ResponsesDoor final : public Door {
 public:
  void begin(const std::string& id, int64_t created) override {
    suffix_ = id;
    id_ = "resp_" + id;
    created_ = created;
  }
  const std::string& id() const override { return id_; }
  ApiResult<PreparedRequest> prepare(const json::value& body, const ServedModel& model) override;

  std::string whole(const Answer& answer, const Finished& finished) override;
  std::string stream_begin() override;
  std::string stream_delta(const Delta& delta) override;
  std::string stream_end(const Finished& finished) override;
  std::string stream_failure(const ApiError& error) override;
  std::string stream_keep_alive() override;

 private:
  // One item of the output, as far as it has come.
  struct Item {
    enum class Kind { none, reasoning, message, call } kind = Kind::none;
    std::string id;
    uint32_t index = 0;
    std::string text;  // of a call: its arguments
    std::vector<TokenInfo> tokens;
    std::string call_id;
    std::string name;
    bool complete = false;  // a call
  };
  json::object item_json(const Item& item, bool done) const;
  json::object response_json(std::string_view status, json::array output) const;
  json::object finished_json(json::array output, const Finished& finished) const;
  std::string event(std::string_view type, json::object data);
  json::object place(const Item& item, bool in_content) const;
  Item make_item(Item::Kind kind);
  std::string open(Item::Kind kind, const std::string& name);
  std::string close();
  std::string close_part();
  std::string add_text(const std::string& text, const std::vector<TokenInfo>& tokens);
  std::string add_call(const ToolCallDelta& call);

  std::string id_, suffix_, model_;
  int64_t created_ = 0;
  ResponsesRequest request_;
  uint64_t sequence_ = 0;
  uint32_t items_ = 0;
  Item item_;
  json::array output_;
  std::string blanks_;  // that are a message only if text follows
  std::vector<TokenInfo> blank_tokens_;
  uint32_t silences_ = 0;
};

ApiResult<PreparedRequest> ResponsesDoor::prepare(const json::value& body, const ServedModel& model) {
  LILY_TRY(request_, translate_responses(body));
  LILY_TRY(const ChatRequest chat, parse_responses_chat(request_));
  ApiResult<GenerationRequest> made = make_generation(chat, model);
  if (!made) {
    return fail(responses_error(made.error()));
  }
  model_ = chat.model.empty() ? model.name : chat.model;
  return PreparedRequest{std::move(*made), chat.stream};
}

json::object ResponsesDoor::response_json(std::string_view status, json::array output) const {
  json::object out;
  out["id"] = id_;
  out["object"] = "response";
  out["created_at"] = created_;
  out["status"] = json_text(status);
  out["background"] = false;
  out["error"] = nullptr;
  out["incomplete_details"] = nullptr;
  out["instructions"] = nullptr;
  out["max_output_tokens"] = nullptr;
  out["max_tool_calls"] = nullptr;
  out["metadata"] = json::object();
  out["model"] = model_;
  out["output"] = std::move(output);
  out["parallel_tool_calls"] = true;
  out["previous_response_id"] = nullptr;
  out["reasoning"] = json::object{{"effort", nullptr}, {"summary", nullptr}};
  out["service_tier"] = "default";
  out["store"] = false;
  out["temperature"] = nullptr;
  out["text"] = json::object{{"format", json::object{{"type", "text"}}}};
  out["tool_choice"] = "auto";
  out["tools"] = json::array();
  out["top_p"] = nullptr;
  out["truncation"] = "disabled";
  out["usage"] = nullptr;
  for (const json::key_value_pair& field : request_.echo) {
    if (!field.value().is_null()) {
      out[field.key()] = field.value();
    }
  }
  return out;
}

json::object ResponsesDoor::finished_json(json::array output, const Finished& finished) const {
  const bool cut = finished.reason == FinishReason::length;
  json::object out = response_json(cut ? "incomplete" : "completed", std::move(output));
  if (cut) {
    out["incomplete_details"] = json::object{{"reason", "max_output_tokens"}};
  }
  out["usage"] = response_usage(finished.usage);
  return out;
}

json::object ResponsesDoor::item_json(const Item& item, bool done) const {
  json::object out;
  out["id"] = item.id;
  switch (item.kind) {
    case Item::Kind::reasoning:
      out["type"] = "reasoning";
      out["summary"] = json::array();
      out["content"] = json::array();
      if (done) {
        out["content"].get_array().emplace_back(reasoning_text(item.text));
        if (request_.keep_reasoning) {
          out["encrypted_content"] = std::string(kKeptReasoning) + item.text;
        }
      }
      break;
    case Item::Kind::message:
      out["type"] = "message";
      out["role"] = "assistant";
      out["content"] = json::array();
      if (done) {
        out["content"].get_array().emplace_back(output_text(item.text, item.tokens));
      }
      break;
    case Item::Kind::call: {
      out["type"] = "function_call";
      out["call_id"] = item.call_id;
      const auto known = request_.functions.find(item.name);
      out["name"] = known == request_.functions.end() ? item.name : known->second.name;
      if (known != request_.functions.end()) {
        out["namespace"] = known->second.space;
      }
      out["arguments"] = done ? item.text : std::string();
      break;
    }
    case Item::Kind::none:
      break;
  }
  out["status"] = done ? "completed" : "in_progress";
  return out;
}

ResponsesDoor::Item ResponsesDoor::make_item(Item::Kind kind) {
  const std::string_view prefix = kind == Item::Kind::reasoning ? "rs"
                                  : kind == Item::Kind::call    ? "fc"
                                                                : "msg";
  Item item;
  item.kind = kind;
  item.index = items_++;
  item.id = fmt::format("{}_{}_{}", prefix, suffix_, item.index);
  item.call_id = fmt::format("call_{}_{}", suffix_, item.index);
  return item;
}

std::string ResponsesDoor::whole(const Answer& answer, const Finished& finished) {
  json::array output;
  if (!answer.reasoning.empty()) {
    Item item = make_item(Item::Kind::reasoning);
    item.text = answer.reasoning;
    output.emplace_back(item_json(item, true));
  }
  if (!is_blank(answer.content)) {
    Item item = make_item(Item::Kind::message);
    item.text = answer.content;
    item.tokens = answer.content_logprobs;
    output.emplace_back(item_json(item, true));
  }
  for (const ParsedCall& call : answer.calls) {
    if (call.complete) {
      Item item = make_item(Item::Kind::call);
      item.name = call.name;
      item.text = call.arguments;
      output.emplace_back(item_json(item, true));
    }
  }
  return serialize_json(finished_json(std::move(output), finished));
}

std::string ResponsesDoor::event(std::string_view type, json::object data) {
  json::object out;
  out["type"] = json_text(type);
  out["sequence_number"] = sequence_++;
  for (json::key_value_pair& field : data) {
    out[field.key()] = std::move(field.value());
  }
  return sse_event(type, serialize_json(out));
}

// What says to which item, and which part of it, an event belongs.
json::object ResponsesDoor::place(const Item& item, bool in_content) const {
  json::object out;
  out["item_id"] = item.id;
  out["output_index"] = item.index;
  if (in_content) {
    out["content_index"] = 0;
  }
  return out;
}

std::string ResponsesDoor::stream_begin() {
  json::object response = response_json("in_progress", {});
  std::string events = event("response.created", {{"response", response}});
  return events + event("response.in_progress", {{"response", std::move(response)}});
}

std::string ResponsesDoor::open(Item::Kind kind, const std::string& name) {
  std::string events = close();
  item_ = make_item(kind);
  item_.name = name;
  events +=
      event("response.output_item.added", {{"output_index", item_.index}, {"item", item_json(item_, false)}});
  if (kind != Item::Kind::call) {
    json::object part = place(item_, true);
    part["part"] = kind == Item::Kind::message ? output_text("", {}) : reasoning_text("");
    events += event("response.content_part.added", std::move(part));
  }
  return events;
}

// The text of an item is complete.
std::string ResponsesDoor::close_part() {
  if (item_.kind == Item::Kind::call) {
    json::object done = place(item_, false);
    done["name"] = item_json(item_, false).at("name");
    done["arguments"] = item_.text;
    return event("response.function_call_arguments.done", std::move(done));
  }
  const bool message = item_.kind == Item::Kind::message;
  json::object done = place(item_, true);
  done["text"] = item_.text;
  if (message) {
    done["logprobs"] = tokens_json(item_.tokens);
  }
  std::string events =
      event(message ? "response.output_text.done" : "response.reasoning_text.done", std::move(done));
  json::object part = place(item_, true);
  part["part"] = message ? output_text(item_.text, item_.tokens) : reasoning_text(item_.text);
  return events + event("response.content_part.done", std::move(part));
}

std::string ResponsesDoor::close() {
  blanks_.clear();
  blank_tokens_.clear();
  std::string events;
  // A call that was cut off never is done: clients would make it.
  if (item_.kind != Item::Kind::none && (item_.kind != Item::Kind::call || item_.complete)) {
    events += close_part();
    json::object item = item_json(item_, true);
    output_.emplace_back(item);
    events += event("response.output_item.done", {{"output_index", item_.index}, {"item", std::move(item)}});
  }
  item_ = Item{};
  return events;
}

std::string ResponsesDoor::add_text(const std::string& text, const std::vector<TokenInfo>& tokens) {
  item_.text += text;
  item_.tokens.insert(item_.tokens.end(), tokens.begin(), tokens.end());
  json::object delta = place(item_, true);
  delta["delta"] = text;
  if (item_.kind == Item::Kind::reasoning) {
    return event("response.reasoning_text.delta", std::move(delta));
  }
  delta["logprobs"] = tokens_json(tokens);
  return event("response.output_text.delta", std::move(delta));
}

std::string ResponsesDoor::add_call(const ToolCallDelta& call) {
  std::string events;
  if (!call.name.empty()) {
    events += open(Item::Kind::call, call.name);
  }
  if (!call.arguments.empty()) {
    item_.text += call.arguments;
    json::object delta = place(item_, false);
    delta["delta"] = call.arguments;
    events += event("response.function_call_arguments.delta", std::move(delta));
  }
  item_.complete = item_.complete || call.complete;
  return events;
}

std::string ResponsesDoor::stream_delta(const Delta& delta) {
  if (delta.call) {
    return add_call(*delta.call);
  }
  if (!delta.reasoning.empty()) {
    std::string events;
    if (item_.kind != Item::Kind::reasoning) {
      events += open(Item::Kind::reasoning, "");
    }
    return events + add_text(delta.reasoning, {});
  }
  if (item_.kind == Item::Kind::message) {
    return add_text(delta.content, delta.logprobs);
  }
  blanks_ += delta.content;
  blank_tokens_.insert(blank_tokens_.end(), delta.logprobs.begin(), delta.logprobs.end());
  if (is_blank(blanks_)) {
    return {};
  }
  const std::string text = std::move(blanks_);
  const std::vector<TokenInfo> tokens = std::move(blank_tokens_);
  std::string events = open(Item::Kind::message, "");
  return events + add_text(text, tokens);
}

std::string ResponsesDoor::stream_end(const Finished& finished) {
  std::string events = close();
  const bool cut = finished.reason == FinishReason::length;
  return events + event(cut ? "response.incomplete" : "response.completed",
                        {{"response", finished_json(std::move(output_), finished)}});
}

std::string ResponsesDoor::stream_failure(const ApiError& error) {
  json::object response = response_json("failed", std::move(output_));
  json::object inner;
  inner["code"] = error.status == 429 ? "rate_limit_exceeded" : "server_error";
  inner["message"] = clipped(error.message);
  response["error"] = std::move(inner);
  return event("response.failed", {{"response", std::move(response)}});
}

// Some clients count events only, and give up after minutes without one: now and then it is one that says
// nothing new.
std::string ResponsesDoor::stream_keep_alive() {
  constexpr uint32_t kCommentsPerEvent = 12;
  if (++silences_ % kCommentsPerEvent != 0) {
    return sse_comment("keep-alive");
  }
  return event("response.in_progress", {{"response", response_json("in_progress", {})}});
}

}  // namespace

std::shared_ptr<Door> make_responses_door() { return std::make_shared<ResponsesDoor>(); }

ApiResult<std::string> count_response_tokens(const json::value& body, const ServedModel& model) {
  LILY_TRY(ResponsesRequest translated, translate_responses(body));
  LILY_TRY(const ChatRequest request, parse_responses_chat(translated));
  const ApiResult<size_t> tokens = count_prompt(request, model);
  if (!tokens) {
    return fail(responses_error(tokens.error()));
  }
  json::object out;
  out["object"] = "response.input_tokens";
  out["input_tokens"] = *tokens;
  return serialize_json(out);
}

}  // namespace lily
