#include <fmt/chrono.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <iterator>

#include "server/json_fields.h"
#include "server/openai.h"
#include "text/detokenizer.h"

namespace lily {
namespace {

namespace json = boost::json;

json::object choice_json(const TokenInfo::Choice& choice) {
  json::array bytes;
  bytes.reserve(choice.bytes.size());
  for (const char byte : choice.bytes) {
    bytes.emplace_back(static_cast<unsigned>(static_cast<unsigned char>(byte)));
  }
  json::object out;
  out["token"] = token_text(choice);
  out["logprob"] = json_logprob(choice);
  out["bytes"] = std::move(bytes);
  return out;
}

}  // namespace

std::string token_text(const TokenInfo::Choice& choice) {
  Utf8Stream stream;
  std::string text = stream.push(choice.bytes);
  return text + stream.flush();
}

double json_logprob(const TokenInfo::Choice& choice) {
  constexpr double kImpossible = -9999.0;  // OpenAI's
  return std::isfinite(choice.logprob) ? choice.logprob : kImpossible;
}

json::object usage_json(const Usage& usage) {
  json::object prompt;
  prompt["cached_tokens"] = usage.cached_tokens;
  json::object completion;
  completion["reasoning_tokens"] = usage.reasoning_tokens;
  json::object out;
  out["prompt_tokens"] = usage.prompt_tokens;
  out["completion_tokens"] = usage.completion_tokens;
  out["total_tokens"] = uint64_t{usage.prompt_tokens} + usage.completion_tokens;
  out["prompt_tokens_details"] = std::move(prompt);
  out["completion_tokens_details"] = std::move(completion);
  return out;
}

json::object timings_json(const Usage& usage) {
  // The rate of n tokens, or steps between them, in so many seconds; 0 where nothing was measured.
  const auto rate = [](double n, double seconds) { return n > 0 && seconds > 0 ? n / seconds : 0.0; };
  const auto per_token = [](double n, double seconds) { return n > 0 ? 1000 * seconds / n : 0.0; };
  const double computed = usage.prompt_tokens - usage.cached_tokens;
  const double steps = usage.completion_tokens > 0 ? usage.completion_tokens - 1.0 : 0.0;  // after the first
  json::object out;
  out["cache_n"] = usage.cached_tokens;
  out["prompt_n"] = usage.prompt_tokens - usage.cached_tokens;
  out["prompt_ms"] = 1000 * usage.prefill_seconds;
  out["prompt_per_token_ms"] = per_token(computed, usage.prefill_seconds);
  out["prompt_per_second"] = rate(computed, usage.prefill_seconds);
  out["predicted_n"] = usage.completion_tokens;
  out["predicted_ms"] = 1000 * usage.decode_seconds;
  out["predicted_per_token_ms"] = per_token(steps, usage.decode_seconds);
  out["predicted_per_second"] = rate(steps, usage.decode_seconds);
  return out;
}

json::array tokens_json(const std::vector<TokenInfo>& tokens) {
  json::array out;
  out.reserve(tokens.size());
  for (const TokenInfo& token : tokens) {
    json::object entry = choice_json(token.chosen);
    json::array top;
    for (const TokenInfo::Choice& choice : token.top) {
      top.emplace_back(choice_json(choice));
    }
    entry["top_logprobs"] = std::move(top);
    out.emplace_back(std::move(entry));
  }
  return out;
}

namespace {

// `content` belongs to the tokens of the content alone; those of the thinking have a list of their own.
json::value logprobs_json(const std::vector<TokenInfo>& content, const std::vector<TokenInfo>& reasoning) {
  json::object out;
  out["content"] = tokens_json(content);
  if (!reasoning.empty()) {
    out["reasoning_content"] = tokens_json(reasoning);
  }
  out["refusal"] = nullptr;
  return out;
}

// Unique as the id of the answer is, and the same in a stream and in a whole answer.
std::string call_id(const AnswerHead& head, uint32_t index) {
  const size_t dash = head.id.find('-');
  return fmt::format("call_{}_{}", head.id.substr(dash == std::string::npos ? 0 : dash + 1), index);
}

json::object head_json(const AnswerHead& head, std::string_view object) {
  json::object out;
  out["id"] = head.id;
  out["object"] = json_text(object);
  out["created"] = head.created;
  out["model"] = head.model;
  out["system_fingerprint"] = "lily";
  return out;
}

json::object chunk_json(const AnswerHead& head, json::object delta, json::value logprobs,
                        json::value finish_reason) {
  json::object choice;
  choice["index"] = 0;
  choice["delta"] = std::move(delta);
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = std::move(finish_reason);
  json::array choices;
  choices.emplace_back(std::move(choice));
  json::object out = head_json(head, "chat.completion.chunk");
  out["choices"] = std::move(choices);
  if (head.usage) {
    out["usage"] = nullptr;
  }
  return out;
}

std::string chunk(const AnswerHead& head, json::object delta, json::value logprobs,
                  json::value finish_reason) {
  return json::serialize(chunk_json(head, std::move(delta), std::move(logprobs), std::move(finish_reason)));
}

json::object card_json(const ModelCard& card) {
  json::object meta;
  meta["n_ctx"] = card.context;
  json::object out;
  out["id"] = card.id;
  out["object"] = "model";
  out["created"] = card.created;
  out["owned_by"] = "lily";
  out["context_length"] = card.context;
  out["max_model_len"] = card.context;
  out["meta"] = std::move(meta);
  // As Anthropic's API has them.
  out["type"] = "model";
  out["display_name"] = card.id;
  out["created_at"] = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(card.created));
  return out;
}

json::object function_json(const std::string& name, const std::string& arguments) {
  json::object function;
  if (!name.empty()) {
    function["name"] = name;
  }
  function["arguments"] = arguments;
  return function;
}

json::array calls_json(const AnswerHead& head, const std::vector<ParsedCall>& calls) {
  json::array out;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].complete) {  // cut off: there is nothing that could be called
      continue;
    }
    json::object call;
    call["id"] = call_id(head, static_cast<uint32_t>(i));
    call["type"] = "function";
    call["function"] = function_json(calls[i].name, calls[i].arguments);
    out.emplace_back(std::move(call));
  }
  return out;
}

json::value reason_json(const AnswerHead& head, FinishReason reason) {
  const bool legacy = head.functions && reason == FinishReason::tool_calls;
  const std::string_view word = legacy ? "function_call" : to_string(reason);
  return json_text(word);
}

}  // namespace

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::tool_calls:
      return "tool_calls";
  }
  return "stop";
}

void Answer::add(Delta delta) {
  if (delta.call) {
    if (delta.call->index >= calls.size()) {
      calls.resize(delta.call->index + 1);
    }
    ParsedCall& call = calls[delta.call->index];
    call.name += delta.call->name;
    call.arguments += delta.call->arguments;
    call.complete = call.complete || delta.call->complete;
    return;
  }
  std::vector<TokenInfo>& tokens =
      delta.content.empty() && !delta.reasoning.empty() ? reasoning_logprobs : content_logprobs;
  tokens.insert(tokens.end(), std::make_move_iterator(delta.logprobs.begin()),
                std::make_move_iterator(delta.logprobs.end()));
  reasoning += delta.reasoning;
  content += delta.content;
}

std::string completion_json(const AnswerHead& head, const Answer& answer, const Finished& finished) {
  json::object message;
  message["role"] = "assistant";
  json::array calls = calls_json(head, answer.calls);
  message["content"] =
      answer.content.empty() && !calls.empty() ? json::value(nullptr) : json::value(answer.content);
  if (!answer.reasoning.empty()) {
    message["reasoning_content"] = answer.reasoning;
    if (head.reasoning_twice) {
      message["reasoning"] = answer.reasoning;
    }
  }
  if (!calls.empty() && head.functions) {
    message["function_call"] = calls.front().get_object().at("function");
  } else if (!calls.empty()) {
    message["tool_calls"] = std::move(calls);
  }
  json::object choice;
  choice["index"] = 0;
  choice["message"] = std::move(message);
  choice["logprobs"] = head.logprobs ? logprobs_json(answer.content_logprobs, answer.reasoning_logprobs)
                                     : json::value(nullptr);
  choice["finish_reason"] = reason_json(head, finished.reason);
  json::array choices;
  choices.emplace_back(std::move(choice));
  json::object out = head_json(head, "chat.completion");
  out["choices"] = std::move(choices);
  out["usage"] = usage_json(finished.usage);
  out["timings"] = timings_json(finished.usage);
  return json::serialize(out);
}

std::string role_chunk(const AnswerHead& head) {
  json::object delta;
  delta["role"] = "assistant";
  delta["content"] = "";
  return chunk(head, std::move(delta), nullptr, nullptr);
}

std::string delta_chunk(const AnswerHead& head, const Delta& delta) {
  const bool thinking = delta.content.empty() && !delta.reasoning.empty();
  json::object out;
  if (thinking) {
    out["reasoning_content"] = delta.reasoning;
    if (head.reasoning_twice) {
      out["reasoning"] = delta.reasoning;
    }
  } else {
    out["content"] = delta.content;
  }
  json::value logprobs = nullptr;
  if (head.logprobs) {
    const std::vector<TokenInfo> none;
    logprobs = thinking ? logprobs_json(none, delta.logprobs) : logprobs_json(delta.logprobs, none);
  }
  return chunk(head, std::move(out), std::move(logprobs), nullptr);
}

std::vector<std::string> call_chunks(const AnswerHead& head, const ToolCallDelta& call) {
  std::vector<std::string> chunks;
  const auto add = [&](json::object function) {
    json::object delta;
    if (head.functions) {
      delta["function_call"] = std::move(function);
      chunks.push_back(chunk(head, std::move(delta), nullptr, nullptr));
      return;
    }
    json::object piece;
    piece["index"] = call.index;
    if (function.contains("name")) {
      piece["id"] = call_id(head, call.index);
      piece["type"] = "function";
    }
    piece["function"] = std::move(function);
    json::array calls;
    calls.emplace_back(std::move(piece));
    delta["tool_calls"] = std::move(calls);
    chunks.push_back(chunk(head, std::move(delta), nullptr, nullptr));
  };
  if (!call.name.empty()) {
    add(function_json(call.name, ""));
  }
  if (!call.arguments.empty()) {
    add(function_json("", call.arguments));
  }
  return chunks;
}

std::string progress_chunk(const AnswerHead& head, const PromptProgress& progress, uint32_t cached,
                           double seconds) {
  json::object out = chunk_json(head, json::object{}, nullptr, nullptr);
  out["prompt_progress"] = json::object{{"total", progress.total},
                                        {"cache", cached},
                                        {"processed", progress.done},
                                        {"time_ms", 1000 * seconds}};
  return json::serialize(out);
}

std::string finish_chunk(const AnswerHead& head, const Finished& finished) {
  json::object out = chunk_json(head, json::object{}, nullptr, reason_json(head, finished.reason));
  out["timings"] = timings_json(finished.usage);
  return json::serialize(out);
}

std::string usage_chunk(const AnswerHead& head, const Usage& usage) {
  json::object out = head_json(head, "chat.completion.chunk");
  out["choices"] = json::array{};
  out["usage"] = usage_json(usage);
  return json::serialize(out);
}

std::string model_json(const ModelCard& card) { return json::serialize(card_json(card)); }

std::string models_json(const ModelCard& card, bool for_codex) {
  json::array data;
  data.emplace_back(card_json(card));
  // As llama.cpp's server lists them; some clients look for this key.
  json::object entry;
  entry["name"] = card.id;
  entry["model"] = card.id;
  entry["id"] = card.id;
  entry["context_length"] = card.context;
  json::array models;
  if (!for_codex) {
    models.emplace_back(std::move(entry));
  }
  json::object out;
  out["object"] = "list";
  out["models"] = std::move(models);
  out["data"] = std::move(data);
  out["has_more"] = false;
  out["first_id"] = card.id;
  out["last_id"] = card.id;
  return json::serialize(out);
}

}  // namespace lily
