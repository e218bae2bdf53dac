// Tool calls on their way out: whole and streamed.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <set>

#include "tests/unit/server/serving.h"

namespace lily::test {
namespace {

namespace json = boost::json;

const std::string kTools =
    R"(,"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":)"
    R"({"city":{"type":"string"}}}}}])";

Delta call_delta(uint32_t index, std::string name, std::string arguments, bool complete = false) {
  Delta delta;
  delta.call = ToolCallDelta{index, std::move(name), std::move(arguments), complete};
  return delta;
}

Reply ask(const Serving& serving, const std::string& body) {
  HttpClient client = serving.client();
  client.post(body);
  return client.reply().value_or(Reply{});
}

FakeAnswer two_calls() {
  FakeAnswer answer = say("Looking.", "hm");
  for (uint32_t i = 0; i < 2; ++i) {
    answer.deltas.push_back(call_delta(i, "get_weather", ""));
    answer.deltas.push_back(call_delta(i, "", "{\"city\": "));
    answer.deltas.push_back(call_delta(i, "", i == 0 ? "\"Oslo\"" : "\"Rome\""));
    answer.deltas.push_back(call_delta(i, "", "}"));
    answer.deltas.push_back(call_delta(i, "", "", true));
  }
  answer.reason = FinishReason::tool_calls;
  return answer;
}

TEST(ToolCalls, Whole) {
  Serving serving([](const GenerationRequest&) { return two_calls(); });
  const Reply reply = ask(serving, chat_body("x", kTools));
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json::value body = json::parse(reply.body);
  const json::value& choice = body.at("choices").at(0);
  const json::value& message = choice.at("message");
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  EXPECT_EQ(message.at("content"), "Looking.");
  const json::array& calls = message.at("tool_calls").as_array();
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0].at("type"), "function");
  EXPECT_EQ(calls[0].at("function").at("name"), "get_weather");
  EXPECT_EQ(calls[0].at("function").at("arguments"), R"({"city": "Oslo"})");
  EXPECT_EQ(calls[1].at("function").at("arguments"), R"({"city": "Rome"})");
  EXPECT_NE(calls[0].at("id"), calls[1].at("id"));
  EXPECT_TRUE(serving.engine().last().tools != nullptr);
}

TEST(ToolCalls, WithoutTextTheContentIsNull) {
  Serving serving([](const GenerationRequest&) {
    FakeAnswer answer;
    answer.deltas = {call_delta(0, "get_weather", "{}", true)};
    answer.reason = FinishReason::tool_calls;
    return answer;
  });
  const json::value body = json::parse(ask(serving, chat_body("x", kTools)).body);
  EXPECT_TRUE(body.at("choices").at(0).at("message").at("content").is_null());
}

TEST(ToolCalls, ACallThatWasCutOffIsLeftOut) {
  Serving serving([](const GenerationRequest&) {
    FakeAnswer answer;
    answer.deltas = {call_delta(0, "get_weather", "{\"city\": \"Os")};
    answer.reason = FinishReason::length;
    return answer;
  });
  const json::value body = json::parse(ask(serving, chat_body("x", kTools)).body);
  const json::value& choice = body.at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "length");
  EXPECT_EQ(choice.at("message").at("content"), "");
  EXPECT_FALSE(choice.at("message").as_object().contains("tool_calls"));
}

// The first delta of a call has index, id, type and name; the others index and arguments alone, and no null.
TEST(ToolCalls, Streamed) {
  Serving serving([](const GenerationRequest&) { return two_calls(); });
  const Reply reply = ask(serving, stream_body("x", kTools));
  std::string arguments[2];
  std::set<std::string> ids;
  int firsts = 0, finishes = 0;
  for (const std::string& event : events_of(reply.body)) {
    if (event == "[DONE]") continue;
    const json::value chunk = json::parse(event);
    const json::object& choice = chunk.at("choices").at(0).as_object();
    if (!choice.at("finish_reason").is_null()) {
      ++finishes;
      EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
    }
    const json::object& delta = choice.at("delta").as_object();
    if (!delta.contains("tool_calls")) continue;
    EXPECT_EQ(delta.size(), 1U) << "nothing else in the delta of a call";
    const json::object& call = delta.at("tool_calls").at(0).as_object();
    const auto index = static_cast<size_t>(call.at("index").as_int64());
    const json::object& function = call.at("function").as_object();
    if (arguments[index].empty() && call.contains("id")) {
      ++firsts;
      ids.insert(call.at("id").as_string().c_str());
      EXPECT_EQ(call.at("type"), "function");
      EXPECT_EQ(function.at("name"), "get_weather");
      EXPECT_EQ(function.at("arguments"), "");
    } else {
      EXPECT_EQ(call.size(), 2U);
      EXPECT_EQ(function.size(), 1U);
      arguments[index] += function.at("arguments").as_string().c_str();
    }
  }
  EXPECT_EQ(firsts, 2);
  EXPECT_EQ(finishes, 1);
  EXPECT_EQ(ids.size(), 2U);
  EXPECT_EQ(arguments[0], R"({"city": "Oslo"})");
  EXPECT_EQ(arguments[1], R"({"city": "Rome"})");
}

TEST(ToolCalls, FieldsOfTheRequestReachTheEngine) {
  Serving serving([](const GenerationRequest&) { return say("ok"); });
  const auto asked = [&](const std::string& fields) {
    EXPECT_EQ(ask(serving, chat_body("x", fields)).status, 200);
    return serving.engine().last();
  };
  using Calls = GenerationRequest::Calls;
  EXPECT_EQ(asked("").tools, nullptr);
  EXPECT_EQ(asked(R"(,"tools":[])").tools, nullptr);
  EXPECT_EQ(asked(kTools).calls, Calls::many);
  EXPECT_EQ(asked(kTools + R"(,"parallel_tool_calls":false)").calls, Calls::one);
  EXPECT_EQ(asked(kTools + R"(,"parallel_tool_calls":true,"tool_choice":"auto")").calls, Calls::many);
  EXPECT_EQ(asked(kTools + R"(,"tool_choice":"none")").calls, Calls::dropped);
}

}  // namespace
}  // namespace lily::test
