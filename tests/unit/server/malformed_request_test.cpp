// Every malformed request has its own error, and the error names the field.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/json_fields.h"
#include "server/openai.h"

namespace lily {
namespace {

struct Case {
  const char* name;
  std::string body;
  std::string param;
  std::string says;  // part of the message
};
void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

// A good request with `fields` added.
std::string with(const std::string& fields) {
  return R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}";
}
std::string messages(const std::string& list) { return R"({"messages":[)" + list + "]}"; }
std::string user(const std::string& content) {
  return messages(R"({"role":"user","content":)" + content + "}");
}
std::string assistant(const std::string& fields) {
  return messages(R"({"role":"user","content":"hi"},{"role":"assistant",)" + fields + "}");
}
std::string call(const std::string& call) { return assistant(R"("tool_calls":[)" + call + "]"); }

// "0","1",... or "0":1,"1":1,...
std::string keys(size_t count, const char* value) {
  std::string out;
  for (size_t i = 0; i < count; ++i) {
    out += i == 0 ? "\"" : ",\"";
    out += std::to_string(i);
    out += "\"";
    out += value;
  }
  return out;
}

std::vector<Case> body_cases() {
  return {
      {"empty", "", "", "is empty"},
      {"not_json", "{", "", "not valid JSON"},
      {"two_values", "{} {}", "", "not valid JSON"},
      {"invalid_utf8", "{\"messages\":\"\xff\"}", "", "not valid UTF-8 at byte 13"},
      {"too_deep", std::string(5000, '[') + std::string(5000, ']'), "", "not valid JSON"},
      {"array", "[]", "", "must be a JSON object, not an array"},
      {"string", "\"hi\"", "", "must be a JSON object, not a string"},
      {"null", "null", "", "must be a JSON object, not null"},
      {"model_number", with(R"("model":7)"), "model", "must be a string, not a number"},
  };
}

std::vector<Case> message_cases() {
  return {
      {"none", "{}", "messages", "is missing"},
      {"null", R"({"messages":null})", "messages", "is missing"},
      {"empty", R"({"messages":[]})", "messages", "is empty"},
      {"string", R"({"messages":"hi"})", "messages", "must be an array, not a string"},
      {"object", R"({"messages":{}})", "messages", "must be an array, not an object"},
      {"entry_string", messages(R"("hi")"), "messages[0]", "must be an object, not a string"},
      {"entry_null", messages("null"), "messages[0]", "must be an object, not null"},
      {"no_role", messages(R"({"content":"hi"})"), "messages[0].role", "is missing"},
      {"role_number", messages(R"({"role":1,"content":"hi"})"), "messages[0].role", "must be a string"},
      {"role_critic", messages(R"({"role":"critic","content":"hi"})"), "messages[0].role", "is 'critic'"},
      {"second_role", messages(R"({"role":"user","content":"a"},{"role":"bot"})"), "messages[1].role",
       "is 'bot'"},
      {"content_number", user("5"), "messages[0].content", "not a number"},
      {"content_object", user(R"({"type":"text","text":"x"})"), "messages[0].content", "not an object"},
      {"content_bool", user("true"), "messages[0].content", "not a boolean"},
      {"part_number", user("[1]"), "messages[0].content[0]", "not a number"},
      {"part_no_text", user(R"([{"type":"text"}])"), "messages[0].content[0].text", "is missing"},
      {"part_text_number", user(R"([{"type":"text","text":1}])"), "messages[0].content[0].text",
       "must be a string"},
      {"part_type_number", user(R"([{"type":1}])"), "messages[0].content[0].type", "must be a string"},
      {"part_unknown", user(R"([{"type":"poem","poem":"x"}])"), "messages[0].content[0].type", "'poem'"},
      {"part_no_type", user(R"([{"a":"x"}])"), "messages[0].content[0].type", "is missing"},
      {"refusal_number", assistant(R"("content":[{"type":"refusal","refusal":1}])"),
       "messages[1].content[0].refusal", "must be a string"},
      {"image_url", user(R"([{"type":"text","text":"?"},{"type":"image_url","image_url":{"url":"data:,"}}])"),
       "messages[0].content[1]", "image_url"},
      {"input_image", user(R"([{"type":"input_image"}])"), "messages[0].content[0]", "input_image"},
      {"image_no_type", user(R"([{"image_url":"data:,"}])"), "messages[0].content[0]", "reads text only"},
      {"audio", user(R"([{"type":"input_audio"}])"), "messages[0].content[0]", "input_audio"},
      {"file", user(R"([{"type":"file"}])"), "messages[0].content[0]", "'file'"},
      {"video_in_tool",
       messages(R"({"role":"user","content":"x"},{"role":"tool","content":[{"type":"video"}]})"),
       "messages[1].content[0]", "'video'"},
      {"reasoning_number", assistant(R"("reasoning_content":1)"), "messages[1].reasoning_content",
       "must be a string"},
      {"reasoning_list", assistant(R"("reasoning":[])"), "messages[1].reasoning", "must be a string"},
      {"calls_object", assistant(R"("tool_calls":{})"), "messages[1].tool_calls", "must be an array"},
      {"call_string", call(R"("x")"), "messages[1].tool_calls[0]", "must be an object"},
      {"call_no_function", call(R"({"id":"a"})"), "messages[1].tool_calls[0].function", "is missing"},
      {"call_id_number", call(R"({"id":1,"function":{"name":"f"}})"), "messages[1].tool_calls[0].id",
       "must be a string"},
      {"call_no_name", call(R"({"function":{"arguments":"{}"}})"), "messages[1].tool_calls[0].function.name",
       "is missing"},
      {"call_function_string", call(R"({"function":"f"})"), "messages[1].tool_calls[0].function",
       "must be an object"},
      {"legacy_call", assistant(R"("function_call":"f")"), "messages[1].function_call", "must be an object"},
  };
}

std::vector<Case> number_cases() {
  return {
      {"stream_string", with(R"("stream":"yes")"), "stream", "must be a boolean, not a string"},
      {"stream_options_list", with(R"("stream_options":[])"), "stream_options", "must be an object"},
      {"include_usage_number", with(R"("stream_options":{"include_usage":1})"),
       "stream_options.include_usage", "must be a boolean"},
      {"max_tokens_zero", with(R"("max_tokens":0)"), "max_tokens", "at least 1"},
      {"max_tokens_negative", with(R"("max_tokens":-2)"), "max_tokens", "at least -1, not -2"},
      {"max_tokens_fraction", with(R"("max_tokens":1.5)"), "max_tokens", "must be an integer, not 1.5"},
      {"max_tokens_string", with(R"("max_tokens":"10")"), "max_tokens", "not a string"},
      {"max_completion_tokens_zero", with(R"("max_completion_tokens":0)"), "max_completion_tokens",
       "at least 1"},
      {"temperature_low", with(R"("temperature":-0.1)"), "temperature", "at least 0"},
      {"temperature_high", with(R"("temperature":2.1)"), "temperature", "at most 2, not 2.1"},
      {"temperature_string", with(R"("temperature":"hot")"), "temperature", "must be a number"},
      {"temperature_huge", with(R"("temperature":1e400)"), "temperature", "at most 2"},
      {"top_p_high", with(R"("top_p":1.01)"), "top_p", "at most 1"},
      {"top_p_low", with(R"("top_p":-1)"), "top_p", "at least 0"},
      {"min_p_high", with(R"("min_p":2)"), "min_p", "at most 1"},
      {"top_k_low", with(R"("top_k":-2)"), "top_k", "at least -1"},
      {"top_k_fraction", with(R"("top_k":0.5)"), "top_k", "must be an integer"},
      {"seed_string", with(R"("seed":"x")"), "seed", "not a string"},
      {"seed_fraction", with(R"("seed":0.25)"), "seed", "must be an integer"},
      {"presence", with(R"("presence_penalty":2.5)"), "presence_penalty", "at most 2"},
      {"frequency", with(R"("frequency_penalty":-2.5)"), "frequency_penalty", "at least -2"},
      {"repetition_zero", with(R"("repetition_penalty":0)"), "repetition_penalty", "above 0"},
      {"repeat_penalty", with(R"("repeat_penalty":11)"), "repeat_penalty", "at most 10"},
      {"n_two", with(R"("n":2)"), "n", "must be 1"},
      {"n_zero", with(R"("n":0)"), "n", "must be 1"},
      {"logprobs_number", with(R"("logprobs":5)"), "logprobs", "must be a boolean"},
      {"top_logprobs_alone", with(R"("top_logprobs":5)"), "top_logprobs", "needs 'logprobs'"},
      {"top_logprobs_high", with(R"("logprobs":true,"top_logprobs":21)"), "top_logprobs",
       "from 0 to 20, not 21"},
      {"logit_bias_list", with(R"("logit_bias":[])"), "logit_bias", "must be an object"},
      {"logit_bias_key", with(R"("logit_bias":{"cat":1})"), "logit_bias.cat", "expected a token id"},
      {"logit_bias_negative", with(R"("logit_bias":{"-1":1})"), "logit_bias.-1", "expected a token id"},
      {"logit_bias_value", with(R"("logit_bias":{"5":101})"), "logit_bias.5", "at most 100"},
      {"logit_bias_string", with(R"("logit_bias":{"5":"1"})"), "logit_bias.5", "must be a number"},
      {"logit_bias_many", with("\"logit_bias\":{" + keys(1025, ":1") + "}"), "logit_bias", "1025 entries"},
      {"stop_number", with(R"("stop":5)"), "stop", "not a number"},
      {"stop_entry", with(R"("stop":["a",5])"), "stop[1]", "not a number"},
      {"stop_many", with("\"stop\":[" + keys(17, "") + "]"), "stop", "17 strings"},
      {"stop_long", with("\"stop\":\"" + std::string(1025, 'x') + "\""), "stop", "1025 bytes"},
  };
}

std::vector<Case> feature_cases() {
  const std::string tool = R"({"type":"function","function":{"name":"f","parameters":{}}})";
  return {
      {"tools_object", with(R"("tools":{})"), "tools", "must be an array"},
      {"tool_string", with(R"("tools":["f"])"), "tools[0]", "must be an object"},
      {"tool_type", with(R"("tools":[{"type":"web_search"}])"), "tools[0].type", "'web_search'"},
      {"tool_no_function", with(R"("tools":[{"type":"function"}])"), "tools[0].function", "is missing"},
      {"tool_no_name", with("\"tools\":[" + tool + R"(,{"type":"function","function":{}}])"),
       "tools[1].function.name", "is missing"},
      {"tool_name_number", with(R"("tools":[{"type":"function","function":{"name":1}}])"),
       "tools[0].function.name", "must be a string"},
      {"tool_parameters", with(R"("tools":[{"type":"function","function":{"name":"f","parameters":"x"}}])"),
       "tools[0].function.parameters", "must be an object"},
      {"choice_number", with(R"("tool_choice":1)"), "tool_choice", "not a number"},
      {"choice_word", with(R"("tool_choice":"maybe")"), "tool_choice", "'maybe'"},
      {"choice_any", with("\"tools\":[" + tool + R"(],"tool_choice":"any")"), "tool_choice", "'any' needs"},
      {"choice_required", with("\"tools\":[" + tool + R"(],"tool_choice":"required")"), "tool_choice",
       "constrained decoding"},
      {"choice_named",
       with("\"tools\":[" + tool + R"(],"tool_choice":{"type":"function","function":{"name":"f"}})"),
       "tool_choice", "constrained decoding"},
      {"choice_undeclared",
       with("\"tools\":[" + tool + R"(],"tool_choice":{"type":"function","function":{"name":"g"}})"),
       "tool_choice", "names 'g', which is not among the tools"},
      {"choice_no_function", with(R"("tool_choice":{"type":"function"})"), "tool_choice.function",
       "is missing"},
      {"choice_no_name", with(R"("tool_choice":{"function":{}})"), "tool_choice.function.name", "is missing"},
      {"parallel", with(R"("parallel_tool_calls":"no")"), "parallel_tool_calls", "must be a boolean"},
      {"functions_twice", with("\"tools\":[" + tool + R"(],"functions":[{"name":"f"}])"), "functions",
       "send one of them"},
      {"functions_no_name", with(R"("functions":[{"name":"f"},{}])"), "functions[1].name", "is missing"},
      {"functions_text", with(R"("functions":["f"])"), "functions[0]", "must be an object"},
      {"function_call_named", with(R"("functions":[{"name":"f"}],"function_call":{"name":"f"})"),
       "function_call", "constrained decoding"},
      {"function_call_undeclared", with(R"("functions":[{"name":"f"}],"function_call":{"name":"g"})"),
       "function_call", "names 'g'"},
      {"progress", with(R"("return_progress":"yes")"), "return_progress", "must be a boolean"},
      {"format_string", with(R"("response_format":"json")"), "response_format", "must be an object"},
      {"format_json", with(R"("response_format":{"type":"json_object"})"), "response_format",
       "constrained decoding"},
      {"format_schema", with(R"("response_format":{"type":"json_schema","json_schema":{}})"),
       "response_format", "'json_schema' needs constrained decoding"},
      {"grammar", with(R"("grammar":"root ::= 'a'")"), "grammar", "'grammar' needs constrained decoding"},
      {"json_schema", with(R"("json_schema":{})"), "json_schema", "constrained decoding"},
      {"guided_json", with(R"("guided_json":{"type":"object"})"), "guided_json", "constrained decoding"},
      {"guided_choice", with(R"("guided_choice":["a"])"), "guided_choice", "constrained decoding"},
      {"structured_outputs", with(R"("structured_outputs":{"regex":"a"})"), "structured_outputs",
       "constrained decoding"},
      {"format_type", with(R"("response_format":{"type":"xml"})"), "response_format.type", "'xml'"},
      {"format_no_type", with(R"("response_format":{})"), "response_format.type", "missing"},
      {"kwargs_list", with(R"("chat_template_kwargs":[])"), "chat_template_kwargs", "must be an object"},
      {"kwargs_thinking", with(R"("chat_template_kwargs":{"enable_thinking":"no"})"),
       "chat_template_kwargs.enable_thinking", "must be a boolean"},
      {"kwargs_preserve", with(R"("chat_template_kwargs":{"preserve_thinking":1})"),
       "chat_template_kwargs.preserve_thinking", "must be a boolean"},
      {"enable_thinking", with(R"("enable_thinking":0)"), "enable_thinking", "must be a boolean"},
      {"preserve_thinking", with(R"("preserve_thinking":0)"), "preserve_thinking", "must be a boolean"},
      {"think_number", with(R"("think":1)"), "think", "must be a boolean"},
      {"effort_word", with(R"("reasoning_effort":"extreme")"), "reasoning_effort", "'extreme'"},
      {"effort_number", with(R"("reasoning_effort":3)"), "reasoning_effort", "must be a string"},
      {"reasoning_effort_word", with(R"("reasoning":{"effort":"extreme"})"), "reasoning.effort", "'extreme'"},
      {"reasoning_budget", with(R"("reasoning":{"max_tokens":"many"})"), "reasoning.max_tokens",
       "must be an integer"},
      {"budget", with(R"("thinking_token_budget":-2)"), "thinking_token_budget", "at least -1"},
      {"budget_word", with(R"("thinking_budget":"low")"), "thinking_budget", "must be an integer"},
      {"continue_user", with(R"("continue_final_message":true)"), "continue_final_message",
       "of the assistant"},
      {"continue_string", with(R"("continue_final_message":"x")"), "continue_final_message",
       "must be a boolean"},
      {"generation_prompt", with(R"("add_generation_prompt":1)"), "add_generation_prompt",
       "must be a boolean"},
  };
}

class Malformed : public testing::TestWithParam<Case> {};

TEST_P(Malformed, IsRefusedByName) {
  const Case& test = GetParam();
  const ApiResult<boost::json::value> json = parse_body(test.body);
  ApiError error;
  if (json) {
    const ApiResult<ChatRequest> request = parse_chat_request(*json);
    ASSERT_FALSE(request) << test.body;
    error = request.error();
  } else {
    error = json.error();
  }
  EXPECT_EQ(error.status, 400U);
  EXPECT_EQ(error.type, "invalid_request_error");
  EXPECT_EQ(error.param, test.param);
  EXPECT_NE(error.message.find(test.says), std::string::npos) << error.message;
}

std::string name_of(const testing::TestParamInfo<Case>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Body, Malformed, testing::ValuesIn(body_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Messages, Malformed, testing::ValuesIn(message_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Numbers, Malformed, testing::ValuesIn(number_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Features, Malformed, testing::ValuesIn(feature_cases()), name_of);

}  // namespace
}  // namespace lily
