#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <charconv>
#include <cmath>
#include <limits>

#include "server/chat_messages.h"
#include "server/json_fields.h"
#include "server/openai.h"

namespace lily {
namespace {

namespace json = boost::json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Below it the quotient logit / temperature may overflow; the answer is the greedy one long before.
constexpr double kSmallestTemperature = 1e-4;
constexpr size_t kMaxModelBytes = 1024;

std::optional<float> to_float(std::optional<double> value) {
  return value ? std::optional<float>(static_cast<float>(*value)) : std::nullopt;
}

// -1 and null mean no limit; the newer name wins.
std::optional<uint32_t> parse_max_tokens(const Fields& fields) {
  std::optional<uint32_t> result;
  for (const std::string_view key : {"max_completion_tokens", "max_tokens"}) {
    const std::optional<int64_t> value = fields.integer(key, {-1, kInfinity});
    if (!value) {
      continue;
    }
    if (*value == 0) {
      fields.fault(key, "must be at least 1, or -1 for no limit, not 0.");
    } else if (*value > 0 && !result) {
      result = static_cast<uint32_t>(std::min<int64_t>(*value, Limits::kMaxContext));
    }
  }
  return result;
}

void parse_sampling(const Fields& fields, ChatRequest& request) {
  const std::optional<double> temperature = fields.number("temperature", {0, 2});
  if (temperature) {
    request.temperature = *temperature < kSmallestTemperature ? 0.0F : static_cast<float>(*temperature);
  }
  request.top_p = to_float(fields.number("top_p", {0, 1}));
  if (request.top_p && *request.top_p <= 0.0F) {
    request.top_p = std::numeric_limits<float>::min();  // the one most likely token
  }
  request.min_p = to_float(fields.number("min_p", {0, 1}));
  const std::optional<int64_t> top_k = fields.integer("top_k", {-1, kInfinity});
  if (top_k) {
    request.top_k = *top_k <= 0 ? 0U : static_cast<uint32_t>(std::min<int64_t>(*top_k, 1 << 30));
  }
  const std::optional<int64_t> seed = fields.integer("seed", {-kInfinity, kInfinity});
  if (seed && *seed != -1) {  // -1: random, as llama.cpp's clients ask for it
    request.seed = static_cast<uint64_t>(*seed);
  }
  request.presence_penalty = to_float(fields.number("presence_penalty", {-2, 2}));
  request.frequency_penalty = to_float(fields.number("frequency_penalty", {-2, 2}));
  for (const std::string_view key : {"repetition_penalty", "repeat_penalty"}) {
    const std::optional<double> penalty = fields.number(key, {0, 10, true});
    if (penalty && !request.repetition_penalty) {
      // As a float it must stay above 0, and its reciprocal finite.
      request.repetition_penalty = std::max(static_cast<float>(*penalty), 1e-3F);
    }
  }
}

void parse_logit_bias(const Fields& fields, ChatRequest& request) {
  const json::object* object = fields.object("logit_bias");
  if (object == nullptr) {
    return;
  }
  if (object->size() > Limits::kMaxLogitBias) {
    fields.fault("logit_bias", "has {} entries; at most {} are allowed.", object->size(),
                 Limits::kMaxLogitBias);
    return;
  }
  const Fields biases(*object, "logit_bias", fields.faults());
  for (const json::key_value_pair& entry : *object) {
    const std::string_view key(entry.key().data(), entry.key().size());
    int32_t token = -1;
    const std::from_chars_result parsed = std::from_chars(key.data(), key.data() + key.size(), token);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || token < 0) {
      biases.fault(key, "is not named after a token; expected a token id.");
      return;
    }
    const std::optional<double> bias = biases.number(key, {-100, 100});
    if (bias) {
      request.logit_bias.push_back(LogitBias{token, static_cast<float>(*bias)});
    }
  }
}

void add_stop(const json::value& value, const std::string& path, ChatRequest& request, Faults& faults) {
  if (!value.is_string()) {
    faults.about(path, "must be a string, not {}.", json_kind(value));
    return;
  }
  const json::string& text = value.get_string();
  if (text.size() > Limits::kMaxStopBytes) {
    faults.about(path, "has {} bytes; at most {} are allowed.", text.size(), Limits::kMaxStopBytes);
  } else if (!text.empty()) {  // clients with an empty box for it send ""
    request.stop.emplace_back(text.data(), text.size());
  }
}

void parse_stop(const Fields& fields, ChatRequest& request) {
  const json::value* stop = fields.find("stop");
  if (stop == nullptr) {
    return;
  }
  if (!stop->is_array()) {
    if (!stop->is_string()) {
      fields.fault("stop", "must be a string or an array of strings, not {}.", json_kind(*stop));
      return;
    }
    add_stop(*stop, "stop", request, fields.faults());
    return;
  }
  const json::array& array = stop->get_array();
  if (array.size() > Limits::kMaxStopStrings) {
    fields.fault("stop", "has {} strings; at most {} are allowed.", array.size(), Limits::kMaxStopStrings);
    return;
  }
  for (size_t i = 0; i < array.size(); ++i) {
    add_stop(array[i], at("stop", i), request, fields.faults());
  }
}

void parse_logprobs(const Fields& fields, ChatRequest& request) {
  const std::optional<bool> logprobs = fields.boolean("logprobs");
  const std::optional<int64_t> top = fields.integer("top_logprobs", {0, Limits::kMaxTopLogprobs});
  if (logprobs.value_or(false)) {
    request.logprobs = static_cast<uint32_t>(top.value_or(0));
  } else if (top.value_or(0) > 0) {
    fields.fault("top_logprobs", "needs 'logprobs' to be true.");
  }
}

// Tokens of thinking for each word of reasoning_effort; -1 = as many as it likes.
struct Effort {
  std::string_view name;
  int32_t budget;
};
constexpr Effort kEfforts[] = {{"none", 0},  {"minimal", 512}, {"low", 2048}, {"medium", 8192},
                               {"high", -1}, {"xhigh", -1},    {"max", -1}};

// `key`: the field with the word.
void parse_effort(const Fields& fields, std::string_view key, ChatRequest& request) {
  const std::optional<std::string> word = fields.string(key);
  if (!word) {
    return;
  }
  const auto effort = std::find_if(std::begin(kEfforts), std::end(kEfforts),
                                   [&](const Effort& known) { return known.name == *word; });
  if (effort == std::end(kEfforts)) {
    fields.fault(key,
                 "is '{}'; expected none, minimal, low, medium, high, "
                 "xhigh or max.",
                 *word);
  } else if (effort->name == "none") {
    request.enable_thinking = request.enable_thinking.value_or(false);
  } else if (effort->budget > 0) {
    request.thinking_budget = static_cast<uint32_t>(effort->budget);
  }
}

void parse_budget(const Fields& fields, std::string_view key, ChatRequest& request) {
  const std::optional<int64_t> budget = fields.integer(key, {-1, kInfinity});
  if (budget && *budget < 0) {
    request.thinking_budget.reset();
  } else if (budget) {
    request.thinking_budget = static_cast<uint32_t>(std::min<int64_t>(*budget, Limits::kMaxContext));
  }
}

// How much to think, by all its names: the later wins, and a budget over an effort.
void parse_amount(const Fields& fields, ChatRequest& request) {
  const json::value* reasoning = fields.find("reasoning");
  const bool nested = reasoning != nullptr && reasoning->is_object();
  const json::object none;
  const Fields inner(nested ? reasoning->get_object() : none, "reasoning", fields.faults());  // OpenRouter's
  if (!request.enable_thinking) {
    request.enable_thinking = inner.boolean("enabled");
  }
  parse_effort(inner, "effort", request);
  parse_effort(fields, "reasoning_effort", request);
  parse_budget(inner, "max_tokens", request);
  parse_budget(fields, "thinking_budget", request);
  parse_budget(fields, "thinking_token_budget", request);
}

// The names under which clients ask for thinking, the most specific first.
void parse_thinking(const Fields& fields, ChatRequest& request) {
  if (const json::object* object = fields.object("chat_template_kwargs")) {
    const Fields kwargs(*object, "chat_template_kwargs", fields.faults());
    request.enable_thinking = kwargs.boolean("enable_thinking");
    request.preserve_thinking = kwargs.boolean("preserve_thinking");
    request.add_vision_id = kwargs.boolean("add_vision_id").value_or(false);
  }
  const auto fall_back = [](std::optional<bool>& field, std::optional<bool> value) {
    if (!field) {
      field = value;
    }
  };
  fall_back(request.enable_thinking, fields.boolean("enable_thinking"));
  fall_back(request.preserve_thinking, fields.boolean("preserve_thinking"));
  const json::value* think = fields.find("think");
  if (think != nullptr && !think->is_string()) {  // Ollama's: a boolean or a level
    fall_back(request.enable_thinking, fields.boolean("think"));
  }
  const json::value* thinking = fields.find("thinking");
  if (thinking != nullptr && thinking->is_object()) {  // Anthropic's, as some gateways pass it on
    const json::value* type = thinking->get_object().if_contains("type");
    if (type != nullptr && (*type == "enabled" || *type == "adaptive" || *type == "disabled")) {
      fall_back(request.enable_thinking, *type != "disabled");
    }
  }
  parse_amount(fields, request);
}

constexpr std::string_view kNotYet = "needs constrained decoding, which this server does not have yet";

// What other servers take to bind the answer to a form. Ignored, it would give free text to who asked for
// more.
void refuse_constraints(const Fields& fields) {
  for (const std::string_view key : kConstraints) {
    const json::value* value = fields.find(key);
    if (value != nullptr && *value != "") {
      fields.fault(key, "{}.", kNotYet);
    }
  }
}

void parse_response_format(const Fields& fields) {
  const json::object* format = fields.object("response_format");
  if (format == nullptr) {
    return;
  }
  const Fields inner(*format, "response_format", fields.faults());
  const std::optional<std::string> type = inner.string("type");
  if (fields.faults().any() || (type && *type == "text")) {
    return;
  }
  if (type && (*type == "json_object" || *type == "json_schema")) {
    fields.fault("response_format", "of type '{}' {}.", *type, kNotYet);
    return;
  }
  inner.fault("type", "is {}; expected 'text', 'json_object' or 'json_schema'.",
              type ? "'" + *type + "'" : "missing");
}

bool declares(const json::array& tools, std::string_view name) {
  return std::ranges::any_of(tools, [name](const json::value& tool) {
    return view(tool.at("function").at("name").get_string()) == name;
  });
}

// The name in {"type": "function", "function": {"name"}}, or in {"name"} of `function_call`; a fault when it
// is not one.
std::string chosen_tool(const Fields& fields, std::string_view key, const json::object& choice) {
  const Fields outer(choice, std::string(key), fields.faults());
  if (key == "function_call") {
    return outer.required_string("name");
  }
  const Fields function(outer.required_object("function"), outer.path("function"), fields.faults());
  return function.required_string("name");
}

// `key`: tool_choice, or function_call beside `functions`.
void parse_tool_choice(const Fields& fields, std::string_view key, ChatRequest& request) {
  const json::value* choice = fields.find(key);
  if (choice == nullptr) {
    return;
  }
  if (choice->is_string()) {
    const std::string_view word = view(choice->get_string());
    if (word == "none") {
      request.conversation.tools.clear();  // a model that does not know of tools does not call them
      request.calls = GenerationRequest::Calls::dropped;  // unless it saw calls earlier in the conversation
    } else if (word == "required" || word == "any") {     // Anthropic's and Mistral's word for the same
      fields.fault(key, "'{}' {}.", word, kNotYet);
    } else if (word != "auto") {
      fields.fault(key, "is '{}'; expected 'auto', 'none', 'required' or a function.", word);
    }
    return;
  }
  if (!is_object(*choice)) {
    fields.fault(key, "must be a string or an object, not {}.", json_kind(*choice));
    return;
  }
  const std::string name = chosen_tool(fields, key, choice->get_object());
  if (declares(request.conversation.tools, name)) {
    fields.fault(key, "of a named function {}.", kNotYet);
  } else {
    fields.fault(key, "names '{}', which is not among the tools.", name);
  }
}

void parse_tools_fields(const Fields& fields, ChatRequest& request) {
  request.conversation.tools = parse_tools(fields);
  json::array functions = parse_functions(fields);
  if (!functions.empty()) {
    if (!request.conversation.tools.empty()) {
      fields.fault("functions", "and 'tools' are two names of the same: send one of them.");
    }
    request.conversation.tools = std::move(functions);
    request.functions = true;
  }
  if (!request.conversation.tools.empty()) {
    request.tools = std::make_shared<const ToolSchemas>(request.conversation.tools);
  }
  if (!fields.boolean("parallel_tool_calls").value_or(true)) {
    request.calls = GenerationRequest::Calls::one;
  }
  if (request.functions) {
    request.calls = GenerationRequest::Calls::one;  // the answer has room for one
    parse_tool_choice(fields, "function_call", request);
  } else {
    parse_tool_choice(fields, "tool_choice", request);
  }
}

void parse_continuation(const Fields& fields, ChatRequest& request) {
  const std::optional<bool> prompt = fields.boolean("add_generation_prompt");
  const std::optional<bool> go_on = fields.boolean("continue_final_message");
  if (fields.faults().any()) {
    return;
  }
  // After a call the next thing is a tool's result, not more text of the same turn.
  const Message& last = request.conversation.messages.back();
  const bool possible = last.role == "assistant" && last.tool_calls.empty();
  if (go_on.value_or(false) && !possible) {
    fields.fault("continue_final_message", "needs the last message to be text of the assistant.");
  }
  request.continue_final_message = possible && go_on.value_or(true);
  request.add_generation_prompt = !request.continue_final_message && prompt.value_or(true);
}

}  // namespace

ApiResult<ChatRequest> parse_chat_request(const json::value& body) {
  LILY_TRY(const json::object* given, body_object(body));
  Faults faults;
  const Fields fields(*given, "", faults);
  ChatRequest request;
  request.model = fields.string("model").value_or("");
  if (request.model.size() > kMaxModelBytes) {  // it is repeated in every chunk
    faults.about("model", "has {} bytes; at most {} are allowed.", request.model.size(), kMaxModelBytes);
  }
  request.conversation.messages = parse_messages(fields);
  parse_tools_fields(fields, request);
  request.stream = fields.boolean("stream").value_or(false);
  request.progress = fields.boolean("return_progress").value_or(false);
  if (const json::object* options = fields.object("stream_options")) {
    const Fields inner(*options, "stream_options", faults);
    request.include_usage = inner.boolean("include_usage").value_or(false);
  }
  request.max_tokens = parse_max_tokens(fields);
  parse_sampling(fields, request);
  parse_logit_bias(fields, request);
  parse_stop(fields, request);
  parse_logprobs(fields, request);
  const std::optional<int64_t> n = fields.integer("n", {-kInfinity, kInfinity});
  if (n && *n != 1) {
    faults.about("n", "must be 1: one answer to a request, not {}.", *n);
  }
  parse_thinking(fields, request);
  parse_response_format(fields);
  refuse_constraints(fields);
  parse_continuation(fields, request);
  LILY_TRY_VOID(faults.result());
  return request;
}

}  // namespace lily
