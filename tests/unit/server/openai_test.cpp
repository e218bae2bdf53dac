// Requests that clients send and the answers they get, without sockets.
#include "server/openai.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <limits>

#include "server/json_fields.h"
#include "server/sse.h"
#include "text/json.h"

namespace lily {
namespace {

namespace json = boost::json;

ChatRequest parsed(const std::string& body) {
  const ApiResult<json::value> value = parse_body(body);
  EXPECT_TRUE(value) << body;
  ApiResult<ChatRequest> request = parse_chat_request(*value);
  EXPECT_TRUE(request) << body << "\n" << (request ? "" : request.error().message);
  return request ? *request : ChatRequest{};
}
ChatRequest with(const std::string& fields) {
  return parsed(R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}");
}
ChatRequest assistant(const std::string& fields) {
  return parsed(R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant",)" + fields + R"(},
                    {"role":"user","content":"go on"}]})");
}
std::string text_of(const Message& message) {
  std::string out;
  for (const ContentPart& part : message.content) {
    out += part.text;
  }
  return out;
}

TEST(ChatRequest, AbsentAndNullFieldsAreTheModelsDefaults) {
  const ChatRequest request = with(R"("temperature":null,"top_p":null,"stop":null,"tools":null,"seed":null,
    "max_tokens":null,"stream":null,"stream_options":null,"response_format":null,"tool_choice":null,"n":null,
    "logit_bias":null,"logprobs":null,"top_logprobs":null,"chat_template_kwargs":null,"reasoning_effort":null)");
  EXPECT_FALSE(request.temperature || request.top_p || request.seed || request.max_tokens ||
               request.logprobs);
  EXPECT_FALSE(request.enable_thinking || request.stream || request.include_usage);
  EXPECT_TRUE(request.add_generation_prompt);
}

TEST(ChatRequest, IgnoresWhatItNeedNotKnow) {
  const ChatRequest request = with(R"("store":false,"metadata":{"a":"b"},"user":"u","cache_prompt":true,
    "parallel_tool_calls":true,"service_tier":"auto","verbosity":"low","prompt_cache_key":"k","prediction":{},
    "id_slot":3,"zzz":1,"model":"gpt-x","grammar":"","json_schema":null)");
  EXPECT_EQ(request.model, "gpt-x");
}

TEST(ChatRequest, LimitsOfTheAnswer) {
  EXPECT_EQ(with(R"("max_tokens":7)").max_tokens, 7U);
  EXPECT_EQ(with(R"("max_tokens":7.0)").max_tokens, 7U);
  EXPECT_EQ(with(R"("max_completion_tokens":8,"max_tokens":7)").max_tokens, 8U);
  EXPECT_FALSE(with(R"("max_tokens":-1)").max_tokens);
  EXPECT_EQ(with(R"("max_tokens":99999999999999999999)").max_tokens, Limits::kMaxContext);
  EXPECT_EQ(with(R"("max_tokens":18446744073709551615)").max_tokens, Limits::kMaxContext);
}

TEST(ChatRequest, Sampling) {
  const ChatRequest request = with(R"("temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,"seed":7,
    "presence_penalty":1.5,"frequency_penalty":-1,"repeat_penalty":1.1,"logit_bias":{"5":-100,"0":2})");
  EXPECT_FLOAT_EQ(*request.temperature, 0.5F);
  EXPECT_FLOAT_EQ(*request.top_p, 0.9F);
  EXPECT_EQ(request.top_k, 40U);
  EXPECT_FLOAT_EQ(*request.min_p, 0.1F);
  EXPECT_EQ(request.seed, 7U);
  EXPECT_FLOAT_EQ(*request.presence_penalty, 1.5F);
  EXPECT_FLOAT_EQ(*request.frequency_penalty, -1.0F);
  EXPECT_FLOAT_EQ(*request.repetition_penalty, 1.1F);
  ASSERT_EQ(request.logit_bias.size(), 2U);
  EXPECT_EQ(request.logit_bias[0].token, 5);
  EXPECT_FLOAT_EQ(request.logit_bias[0].bias, -100.0F);
}

TEST(ChatRequest, EdgesOfSampling) {
  EXPECT_EQ(with(R"("temperature":1e-30)").temperature, 0.0F);
  EXPECT_GT(*with(R"("top_p":0)").top_p, 0.0F);
  EXPECT_GT(*with(R"("top_p":1e-300)").top_p, 0.0F);
  EXPECT_GT(*with(R"("repetition_penalty":1e-300)").repetition_penalty, 0.0F);
  EXPECT_EQ(with(R"("top_k":-1)").top_k, 0U);
  EXPECT_FALSE(with(R"("seed":-1)").seed);
  EXPECT_TRUE(with(R"("seed":-9223372036854775808)").seed);
  EXPECT_TRUE(with(R"("seed":18446744073709551615)").seed);
}

TEST(ChatRequest, Stop) {
  EXPECT_EQ(with(R"("stop":"a")").stop, (std::vector<std::string>{"a"}));
  EXPECT_EQ(with(R"("stop":["a","","b"])").stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(with(R"("stop":"")").stop.empty());
}

TEST(ChatRequest, Logprobs) {
  EXPECT_EQ(with(R"("logprobs":true)").logprobs, 0U);
  EXPECT_EQ(with(R"("logprobs":true,"top_logprobs":20)").logprobs, 20U);
  EXPECT_FALSE(with(R"("logprobs":false,"top_logprobs":0)").logprobs);
}

TEST(ChatRequest, EveryNameOfThinking) {
  EXPECT_EQ(with(R"("chat_template_kwargs":{"enable_thinking":false,"custom":[1]})").enable_thinking, false);
  EXPECT_EQ(with(R"("enable_thinking":false)").enable_thinking, false);
  EXPECT_EQ(with(R"("reasoning_effort":"none")").enable_thinking, false);
  EXPECT_EQ(with(R"("think":false)").enable_thinking, false);
  EXPECT_EQ(with(R"("chat_template_kwargs":{"enable_thinking":true},"think":false)").enable_thinking, true);
  EXPECT_EQ(with(R"("thinking":{"type":"disabled"})").enable_thinking, false);
  EXPECT_EQ(with(R"("thinking":{"type":"enabled","budget_tokens":5})").enable_thinking, true);
  EXPECT_FALSE(with(R"("thinking":{"type":"auto"})").enable_thinking);
  EXPECT_FALSE(with(R"("thinking":"low")").enable_thinking);
  EXPECT_FALSE(with(R"("reasoning_effort":"high","think":"high")").enable_thinking);
  EXPECT_EQ(with(R"("preserve_thinking":true)").preserve_thinking, true);
  EXPECT_EQ(with(R"("chat_template_kwargs":{"preserve_thinking":true})").preserve_thinking, true);
  EXPECT_TRUE(with(R"("chat_template_kwargs":{"add_vision_id":true})").add_vision_id);
}

TEST(ChatRequest, BudgetsOfThinking) {
  EXPECT_FALSE(with(R"("n":1)").thinking_budget);
  EXPECT_EQ(with(R"("thinking_token_budget":100)").thinking_budget, 100U);
  EXPECT_EQ(with(R"("thinking_budget":0)").thinking_budget, 0U);
  EXPECT_EQ(with(R"("reasoning_effort":"low")").thinking_budget, 2048U);
  EXPECT_FALSE(with(R"("reasoning_effort":"high")").thinking_budget);
  EXPECT_EQ(with(R"("reasoning_effort":"low","thinking_token_budget":7)").thinking_budget, 7U);
  EXPECT_FALSE(with(R"("reasoning_effort":"low","thinking_token_budget":-1)").thinking_budget);
  EXPECT_FALSE(with(R"("thinking_token_budget":null)").thinking_budget);
}

TEST(ChatRequest, ReasoningAsOpenRouterNamesIt) {
  EXPECT_EQ(with(R"("reasoning":{"effort":"low"})").thinking_budget, 2048U);
  EXPECT_EQ(with(R"("reasoning":{"effort":"none"})").enable_thinking, false);
  EXPECT_EQ(with(R"("reasoning":{"enabled":false})").enable_thinking, false);
  EXPECT_EQ(with(R"("reasoning":{"enabled":false},"enable_thinking":true)").enable_thinking, true);
  EXPECT_EQ(with(R"("reasoning":{"effort":"low","max_tokens":300})").thinking_budget, 300U);
  EXPECT_EQ(with(R"("reasoning":{"effort":"low"},"reasoning_effort":"medium")").thinking_budget, 8192U);
  EXPECT_FALSE(with(R"("reasoning":"high")").thinking_budget);
  EXPECT_FALSE(with(R"("reasoning":{"exclude":true})").enable_thinking);
}

TEST(ChatRequest, IntegersBeyond64Bits) {
  EXPECT_EQ(with(R"("max_tokens":123456789012345678901234567890)").max_tokens, Limits::kMaxContext);
  EXPECT_TRUE(with(R"("seed":-123456789012345678901234567890)").seed);
  const ApiResult<boost::json::value> body =
      parse_body(R"({"messages":[{"role":"user","content":123456789012345678901}]})");
  ASSERT_TRUE(body);
  const ApiResult<ChatRequest> request = parse_chat_request(*body);
  ASSERT_FALSE(request);
  EXPECT_NE(request.error().message.find("not a number"), std::string::npos) << request.error().message;
}

TEST(ChatRequest, ContentInEveryForm) {
  const ChatRequest request = parsed(R"({"messages":[
    {"role":"developer","content":"be brief"},
    {"role":"user","content":[{"type":"text","text":"a"},{"type":"input_text","text":"b"},"c",{"text":"d"}]},
    {"role":"assistant","content":null,"reasoning":"hm","name":"x","audio":null,
     "tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"z\":1,\"a\":[2]}"}}]},
    {"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"4 C, rain"}]},
    {"role":"function","name":"f","content":"x"},
    {"role":"assistant","content":[{"type":"refusal","refusal":"no"},{"type":"thinking","thinking":"deep"}]},
    {"role":"user"}]})");
  const std::vector<Message>& list = request.conversation.messages;
  ASSERT_EQ(list.size(), 7U);
  EXPECT_EQ(list[0].role, "developer");
  EXPECT_EQ(text_of(list[1]), "abcd");
  EXPECT_TRUE(list[2].content.empty());
  EXPECT_EQ(list[2].reasoning, "hm");
  ASSERT_EQ(list[2].tool_calls.size(), 1U);
  EXPECT_EQ(list[2].tool_calls[0].name, "f");
  EXPECT_EQ(json::serialize(list[2].tool_calls[0].arguments), R"({"z":1,"a":[2]})");
  EXPECT_EQ(text_of(list[3]), "4 C, rain");
  EXPECT_EQ(list[4].role, "tool");
  EXPECT_EQ(text_of(list[5]), "no");
  EXPECT_EQ(list[5].reasoning, "deep");
  EXPECT_TRUE(list[6].content.empty());
}

TEST(ChatRequest, ArgumentsInAnyStateOfHistory) {
  const auto arguments = [](const std::string& value) {
    const ChatRequest request =
        assistant(R"("tool_calls":[{"function":{"name":"f","arguments":)" + value + "}}]");
    return serialize_json(request.conversation.messages[1].tool_calls.at(0).arguments);
  };
  EXPECT_EQ(arguments(R"({"b":1,"a":2})"), R"({"b":1,"a":2})");
  EXPECT_EQ(arguments("\"\""), "{}");
  EXPECT_EQ(arguments("null"), "{}");
  EXPECT_EQ(arguments("\"null\""), "{}");
  EXPECT_EQ(arguments(R"("{\"path\":\"a.t")"), R"({"arguments":"{\"path\":\"a.t"})");
  EXPECT_EQ(arguments(R"("[1,2]")"), R"({"arguments":"[1,2]"})");
  EXPECT_EQ(arguments("[1]"), R"({"arguments":[1]})");
  EXPECT_EQ(arguments("5"), R"({"arguments":5})");
  const std::string digits = "123456789012345678901234567890";
  EXPECT_EQ(arguments(digits), R"({"arguments":)" + digits + "}");
  EXPECT_EQ(arguments("\"" + digits + "\""), R"({"arguments":")" + digits + "\"}");
}

TEST(ChatRequest, ToolsKeepTheirOrderAndGoWithNone) {
  const std::string list =
      R"([{"type":"function","function":{"strict":true,"name":"f","parameters":{"z":1,"a":{"pattern":"[x"}}}}])";
  const std::string tools = "\"tools\":" + list;
  EXPECT_EQ(json::serialize(with(tools).conversation.tools), list);
  EXPECT_EQ(with(tools + R"(,"tool_choice":"auto")").conversation.tools.size(), 1U);
  EXPECT_TRUE(with(tools + R"(,"tool_choice":"none")").conversation.tools.empty());
}

TEST(ChatRequest, TrailingAssistantIsContinued) {
  const std::string start =
      R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"He"}])";
  EXPECT_TRUE(parsed(start + "}").continue_final_message);
  EXPECT_FALSE(parsed(start + "}").add_generation_prompt);
  EXPECT_TRUE(parsed(start + R"(,"continue_final_message":true,"add_generation_prompt":false})")
                  .continue_final_message);
  const ChatRequest next = parsed(start + R"(,"continue_final_message":false})");
  EXPECT_FALSE(next.continue_final_message);
  EXPECT_TRUE(next.add_generation_prompt);
  const ChatRequest call = parsed(R"({"messages":[{"role":"user","content":"hi"},
    {"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}]})");
  EXPECT_FALSE(call.continue_final_message);
  EXPECT_TRUE(call.add_generation_prompt);
}

TEST(ChatRequest, FunctionsAreTools) {
  const ChatRequest request = parsed(R"({"messages":[{"role":"user","content":"a"}],
    "functions":[{"name":"f","parameters":{"type":"object"}}],"function_call":"auto"})");
  EXPECT_TRUE(request.functions);
  EXPECT_EQ(request.calls, GenerationRequest::Calls::one);
  EXPECT_EQ(json::value(request.conversation.tools),
            json::parse(R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])"));
  const ChatRequest none = parsed(R"({"messages":[{"role":"user","content":"a"}],
    "functions":[{"name":"f"}],"function_call":"none"})");
  EXPECT_TRUE(none.conversation.tools.empty());
  EXPECT_EQ(none.calls, GenerationRequest::Calls::dropped);
}

TEST(ChatRequest, LoneSurrogatesAreReadAsReplacements) {
  const ChatRequest request =
      parsed(R"({"messages":[{"role":"user","content":"a\ud83d b\ude00 c\ud83d\ude00 \\ud83d \ud83dA"}]})");
  EXPECT_EQ(text_of(request.conversation.messages[0]),
            "a\xEF\xBF\xBD b\xEF\xBF\xBD c\xF0\x9F\x98\x80 \\ud83d \xEF\xBF\xBD"
            "A");
}

AnswerHead head(bool logprobs = false, bool usage = false) { return {"id1", 17, "m", logprobs, usage}; }

Usage usage() {
  Usage usage;
  usage.prompt_tokens = 10;
  usage.cached_tokens = 4;
  usage.completion_tokens = 5;
  usage.reasoning_tokens = 3;
  usage.prefill_seconds = 1.5;
  usage.decode_seconds = 2;  // from the first of five tokens to the last
  return usage;
}

constexpr char kUsage[] =
    R"({"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":3}})";

constexpr char kTimings[] =
    R"({"cache_n":4,"prompt_n":6,"prompt_ms":1500.0,"prompt_per_token_ms":250.0,"prompt_per_second":4.0,
    "predicted_n":5,"predicted_ms":2000.0,"predicted_per_token_ms":500.0,"predicted_per_second":2.0})";

TEST(Answers, Whole) {
  Answer answer;
  answer.add({"hm", "", {}});
  answer.add({"m", "", {}});
  answer.add({"", "yes", {}});
  const json::value value = json::parse(completion_json(head(), answer, {FinishReason::stop, "", usage()}));
  EXPECT_EQ(value, json::parse(R"({"id":"id1","object":"chat.completion","created":17,"model":"m",
    "system_fingerprint":"lily","choices":[{"index":0,"message":{"role":"assistant","content":"yes",
    "reasoning_content":"hmm"},"logprobs":null,"finish_reason":"stop"}],"usage":)" +
                               std::string(kUsage) + R"(,"timings":)" + kTimings + "}"));
}

TEST(Answers, WithoutContentTheKeyIsThere) {
  Answer answer;
  answer.add({"hm", "", {}});
  const json::value value = json::parse(completion_json(head(), answer, {FinishReason::length, "", usage()}));
  const json::object& choice = value.at("choices").at(0).as_object();
  EXPECT_EQ(choice.at("message").at("content"), "");
  EXPECT_EQ(choice.at("finish_reason"), "length");
}

json::value delta_of(const std::string& chunk) { return json::parse(chunk).at("choices").at(0).at("delta"); }

TEST(Answers, Chunks) {
  EXPECT_EQ(json::parse(role_chunk(head())), json::parse(R"({"id":"id1","object":"chat.completion.chunk",
    "created":17,"model":"m","system_fingerprint":"lily","choices":[{"index":0,
    "delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]})"));
  EXPECT_EQ(delta_of(delta_chunk(head(), {"r", "", {}})), json::parse(R"({"reasoning_content":"r"})"));
  EXPECT_EQ(delta_of(delta_chunk(head(), {"", "c", {}})), json::parse(R"({"content":"c"})"));
  const json::value last = json::parse(finish_chunk(head(), {FinishReason::length, "", usage()}));
  EXPECT_EQ(last.at("timings"), json::parse(kTimings));
  EXPECT_EQ(last.at("choices").at(0).at("finish_reason"), "length");
  EXPECT_EQ(last.at("choices").at(0).at("delta"), json::object());
  EXPECT_FALSE(last.as_object().contains("usage"));
  const json::value counted = json::parse(usage_chunk(head(false, true), usage()));
  EXPECT_EQ(counted.at("choices"), json::array());
  EXPECT_EQ(counted.at("usage"), json::parse(kUsage));
}

TEST(Answers, NothingMeasuredIsZero) {
  const json::object timings = timings_json(Usage{});
  for (const json::key_value_pair& entry : timings) {
    EXPECT_EQ(entry.value().to_number<double>(), 0) << entry.key();
  }
}

TEST(Answers, ProgressOfThePrompt) {
  const json::value chunk = json::parse(progress_chunk(head(), {.done = 7, .total = 10}, 4, 0.5));
  EXPECT_EQ(chunk.at("prompt_progress"),
            json::parse(R"({"total":10,"cache":4,"processed":7,"time_ms":500.0})"));
  EXPECT_EQ(chunk.at("choices").at(0).at("delta"), json::object());
}

TEST(Answers, CallsInTheFirstFormOfTheApi) {
  AnswerHead legacy = head();
  legacy.functions = true;
  Answer answer;
  Delta call;
  call.call = ToolCallDelta{.index = 0, .name = "f", .arguments = "{\"a\":1}", .complete = true};
  const std::vector<std::string> chunks = call_chunks(legacy, *call.call);
  ASSERT_EQ(chunks.size(), 2U);
  EXPECT_EQ(delta_of(chunks[0]), json::parse(R"({"function_call":{"name":"f","arguments":""}})"));
  EXPECT_EQ(delta_of(chunks[1]), json::parse(R"({"function_call":{"arguments":"{\"a\":1}"}})"));
  answer.add(call);
  const Finished finished{FinishReason::tool_calls, "", usage()};
  const json::value whole = json::parse(completion_json(legacy, answer, finished));
  const json::value& choice = whole.at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "function_call");
  EXPECT_EQ(choice.at("message"), json::parse(R"({"role":"assistant","content":null,
    "function_call":{"name":"f","arguments":"{\"a\":1}"}})"));
  EXPECT_EQ(json::parse(finish_chunk(legacy, finished)).at("choices").at(0).at("finish_reason"),
            "function_call");
}

TEST(Answers, ThinkingUnderBothNames) {
  AnswerHead twice = head();
  twice.reasoning_twice = true;
  EXPECT_EQ(delta_of(delta_chunk(twice, {"r", "", {}})),
            json::parse(R"({"reasoning_content":"r","reasoning":"r"})"));
  Answer answer;
  answer.add({"r", "", {}});
  const json::value whole = json::parse(completion_json(twice, answer, {FinishReason::stop, "", usage()}));
  EXPECT_EQ(whole.at("choices").at(0).at("message").at("reasoning"), "r");
}

TEST(Answers, Logprobs) {
  TokenInfo token;
  token.chosen = TokenInfo::Choice{5, "\xC3", -0.5};
  token.top.push_back(token.chosen);
  token.top.push_back(TokenInfo::Choice{6, "x", -std::numeric_limits<double>::infinity()});
  const json::value chunk = json::parse(delta_chunk(head(true), {"", "c", {token}}));
  EXPECT_EQ(chunk.at("choices").at(0).at("logprobs"),
            json::parse(R"({"content":[{"token":"\ufffd","logprob":-0.5,"bytes":[195],"top_logprobs":[
              {"token":"\ufffd","logprob":-0.5,"bytes":[195]},{"token":"x","logprob":-9999.0,"bytes":[120]}]}],
              "refusal":null})"));
  const json::value thought = json::parse(delta_chunk(head(true), {"r", "", {token}}));
  EXPECT_EQ(thought.at("choices").at(0).at("logprobs").at("content"), json::array());
  EXPECT_EQ(thought.at("choices").at(0).at("logprobs").at("reasoning_content").as_array().size(), 1U);
  EXPECT_EQ(json::parse(delta_chunk(head(false), {"", "c", {token}})).at("choices").at(0).at("logprobs"),
            nullptr);
}

TEST(Answers, Models) {
  EXPECT_EQ(json::parse(models_json({"lily", 9, 4096})), json::parse(R"({"object":"list",
    "models":[{"name":"lily","model":"lily","id":"lily","context_length":4096}],"data":[{"id":"lily",
    "object":"model","created":9,"owned_by":"lily","context_length":4096,"max_model_len":4096,
    "meta":{"n_ctx":4096},"type":"model","display_name":"lily","created_at":"1970-01-01T00:00:09Z"}],
    "has_more":false,"first_id":"lily","last_id":"lily"})"));
}

TEST(Errors, AreOpenAIs) {
  EXPECT_EQ(
      json::parse(to_json(bad_field("n", "no"))),
      json::parse(R"({"error":{"message":"no","type":"invalid_request_error","param":"n","code":null}})"));
  const ApiError over = context_exceeded(5000, 4096);
  EXPECT_EQ(over.status, 400U);
  EXPECT_EQ(over.code, "context_length_exceeded");
  EXPECT_NE(over.message.find("maximum context length is 4096 tokens"), std::string::npos);
  EXPECT_NE(over.message.find("exceeds the available context size"), std::string::npos);
  EXPECT_NE(over.message.find("5000"), std::string::npos);
  EXPECT_EQ(from_error({ErrorKind::limit, "full", {}}).status, 429U);
  EXPECT_TRUE(from_error({ErrorKind::limit, "full", {}}).retry_after);
  EXPECT_EQ(from_error({ErrorKind::internal, "x", {}}).status, 500U);
  EXPECT_EQ(from_error({ErrorKind::invalid_input, "x", {}}).status, 400U);
  EXPECT_EQ(from_error({ErrorKind::cancelled, "x", {}}).status, 503U);
}

TEST(Sse, Framing) {
  EXPECT_EQ(sse_data("{}"), "data: {}\n\n");
  EXPECT_EQ(sse_data("a\nb\r\nc\rd"), "data: a\ndata: b\ndata: c\ndata: d\n\n");
  EXPECT_EQ(sse_data(""), "data: \n\n");
  EXPECT_EQ(sse_event("ping", "{}"), "event: ping\ndata: {}\n\n");
  EXPECT_EQ(sse_comment("keep-alive"), ": keep-alive\n\n");
  EXPECT_EQ(sse_done(), "data: [DONE]\n\n");
}

}  // namespace
}  // namespace lily
