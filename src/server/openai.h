// OpenAI's chat-completions API as types: the JSON of a request to a ChatRequest, events of the engine to the
// JSON of answers. Pure functions; no sockets, no engine, no template. docs/API.md says what each field does.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/api_error.h"
#include "text/chat_template.h"
#include "text/transcript.h"

namespace lily {

// Fields by which other servers bind an answer to a form. Needing constrained decoding, they are refused.
inline constexpr std::string_view kConstraints[] = {"grammar",           "json_schema",   "guided_json",
                                                    "guided_regex",      "guided_choice", "guided_grammar",
                                                    "structured_outputs"};

// A request whose every field has been checked as far as that is possible without the model. Absent = the
// model's default.
struct ChatRequest {
  std::string model;  // echoed; empty = not named
  Conversation conversation;
  bool stream = false;
  bool include_usage = false;

  std::optional<uint32_t> max_tokens;  // absent = up to the context
  std::optional<float> temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
  std::optional<uint32_t> top_k;  // 0 = all
  std::optional<uint64_t> seed;
  std::vector<LogitBias> logit_bias;  // ids not yet compared with the vocabulary
  std::vector<std::string> stop;
  std::optional<uint32_t> logprobs;  // top alternatives

  std::optional<bool> enable_thinking;
  std::optional<bool> preserve_thinking;
  std::optional<uint32_t> thinking_budget;  // tokens of thinking; absent = no limit of its own
  bool add_vision_id = false;
  bool add_generation_prompt = true;
  bool continue_final_message = false;

  std::shared_ptr<const ToolSchemas> tools;  // null: none were sent
  GenerationRequest::Calls calls = GenerationRequest::Calls::many;
  bool functions = false;  // tools came as `functions`: a call is answered in that form
  bool progress = false;   // of reading the prompt is wanted in the stream
};

ApiResult<ChatRequest> parse_chat_request(const boost::json::value& body);

// What every piece of one answer has in common.
struct AnswerHead {
  std::string id;                // "chatcmpl-..."
  int64_t created = 0;           // seconds since 1970
  std::string model;             // as the client called it
  bool logprobs = false;         // asked for
  bool usage = false;            // stream_options.include_usage
  bool functions = false;        // a call is `function_call`, not `tool_calls`
  bool reasoning_twice = false;  // as `reasoning_content` and as `reasoning`
};

// The whole answer of a request that is not streamed: Deltas joined, then Finished.
struct Answer {
  std::string reasoning;
  std::string content;
  std::vector<TokenInfo> reasoning_logprobs;
  std::vector<TokenInfo> content_logprobs;
  std::vector<ParsedCall> calls;
  void add(Delta delta);
};
std::string completion_json(const AnswerHead& head, const Answer& answer, const Finished& finished);

boost::json::object usage_json(const Usage& usage);
// As llama.cpp's server has them: milliseconds, tokens and rates of prompt and answer.
boost::json::object timings_json(const Usage& usage);
// The bytes of a token as text: U+FFFD where they are a part of a character.
std::string token_text(const TokenInfo::Choice& choice);
// JSON has no word for -infinity.
double json_logprob(const TokenInfo::Choice& choice);
// {"token", "logprob", "bytes", "top_logprobs"} of each.
boost::json::array tokens_json(const std::vector<TokenInfo>& tokens);

// "stop", "length", "tool_calls".
std::string_view to_string(FinishReason reason);

// Chunks of a stream, each the JSON of one SSE event.
std::string role_chunk(const AnswerHead& head);                       // the first
std::string delta_chunk(const AnswerHead& head, const Delta& delta);  // reasoning or content
// How far reading the prompt is: `cached` of its tokens were kept, `seconds` since it began.
std::string progress_chunk(const AnswerHead& head, const PromptProgress& progress, uint32_t cached,
                           double seconds);
// Of a call: its name and id, then parts of its arguments. Empty when there is nothing to say.
std::vector<std::string> call_chunks(const AnswerHead& head, const ToolCallDelta& call);
std::string finish_chunk(const AnswerHead& head, const Finished& finished);
std::string usage_chunk(const AnswerHead& head, const Usage& usage);  // after the finish, if asked for

// GET /v1/models and /v1/models/{id}.
struct ModelCard {
  std::string id;
  int64_t created = 0;
  uint32_t context = 0;  // the limit that is served, not the model's
};
std::string model_json(const ModelCard& card);
// `for_codex`: without entries in `models`. That client wants them in a form of its own, and drops the whole
// list for the sake of one field that is missing.
std::string models_json(const ModelCard& card, bool for_codex = false);

}  // namespace lily
