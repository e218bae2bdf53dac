// What the doors share, seen from a client of each: keep-alives, failures, the description of the API.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "server/metrics.h"
#include "server/openapi.h"
#include "server/router.h"
#include "tests/unit/server/serving.h"

namespace lily::test {
namespace {

namespace json = boost::json;

Reply ask(const Serving& serving, const std::string& path, const std::string& body) {
  HttpClient client = serving.client();
  client.post(body, path);
  return client.reply().value_or(Reply{});
}

ServerOptions impatient() {
  ServerOptions options = local_options();
  options.timeouts.keep_alive = std::chrono::milliseconds(20);
  return options;
}

const std::string kMessages =
    R"({"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"x"}]})";
const std::string kResponses = R"({"model":"m","stream":true,"input":"x"})";
const std::string kCompletions = R"({"model":"m","stream":true,"prompt":"x"})";

// What a client gets of a job that is held until `filler` comes, and then answers.
std::string after_a_silence(const std::string& path, const std::string& body, const std::string& filler,
                            const FakeAnswer& answer = say("hello")) {
  Serving serving([&](const GenerationRequest&) { return answer; }, {}, impatient());
  serving.engine().hold(true);
  HttpClient client = serving.client();
  client.post(body, path);
  EXPECT_TRUE(client.comes(filler)) << path;
  serving.engine().hold(false);
  return client.reply().value_or(Reply{}).body;
}

TEST(Doors, SilenceIsFilled) {
  const std::string messages = after_a_silence("/v1/messages", kMessages, "event: ping\n");
  EXPECT_EQ(messages.find("event: message_start\n"), 0U);
  EXPECT_NE(messages.find("event: ping\ndata: {\"type\":\"ping\"}\n\n"), std::string::npos);
  EXPECT_NE(messages.find("event: message_stop"), std::string::npos);
  EXPECT_EQ(messages.find("\n: "), std::string::npos) << "comments do not count for its clients";

  const std::string responses = after_a_silence("/v1/responses", kResponses, ": keep-alive\n");
  EXPECT_EQ(responses.find("event: response.created\n"), 0U);
  EXPECT_NE(responses.find(": keep-alive\n\n"), std::string::npos);
  EXPECT_NE(responses.find("event: response.completed\n"), std::string::npos);

  const std::string completions = after_a_silence("/v1/completions", kCompletions, ": keep-alive\n");
  EXPECT_NE(completions.find(": keep-alive\n\n"), std::string::npos);
  EXPECT_NE(completions.find("data: [DONE]\n\n"), std::string::npos);
}

TEST(Doors, AFailureInAStreamHasTheFormOfItsApi) {
  FakeAnswer breaking = long_answer(3);
  breaking.error = Error{ErrorKind::internal, "the device is gone", {}};
  const std::string messages = after_a_silence("/v1/messages", kMessages, "event: ping\n", breaking);
  EXPECT_NE(messages.find("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\""),
            std::string::npos)
      << messages;
  EXPECT_EQ(messages.find("message_stop"), std::string::npos);
  const std::string responses = after_a_silence("/v1/responses", kResponses, ": keep-alive\n", breaking);
  EXPECT_NE(responses.find("event: response.failed\n"), std::string::npos) << responses;
  EXPECT_EQ(responses.find("response.completed"), std::string::npos);
  const std::string completions =
      after_a_silence("/v1/completions", kCompletions, ": keep-alive\n", breaking);
  EXPECT_NE(completions.find("data: {\"error\":"), std::string::npos);
}

TEST(Doors, ABusyServerSaysSoInTheFormOfItsApi) {
  FakeEngineOptions engine;
  engine.queue = 1;
  engine.parallel = 1;
  engine.step = std::chrono::milliseconds(1);
  Serving serving([](const GenerationRequest&) { return long_answer(100'000); }, engine);
  HttpClient running = serving.client(), waiting = serving.client();
  running.post(kMessages, "/v1/messages");
  ASSERT_TRUE(running.head());
  waiting.post(kMessages, "/v1/messages");
  ASSERT_TRUE(serving.engine().wait_for([](const FakeCounts& counts) { return counts.waiting == 1; }));
  const Reply refused = ask(serving, "/v1/messages", kMessages);
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(json::parse(refused.body).at("error").at("type"), "rate_limit_error");
  EXPECT_EQ(refused.headers.count("retry-after"), 1U);
}

TEST(Doors, NothingIsThereBeforeTheModel) {
  Serving serving([](const GenerationRequest&) { return say("x"); }, {}, local_options(), false);
  for (const char* path : {"/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/v1/completions"}) {
    const Reply reply = ask(serving, path, "{}");
    EXPECT_EQ(reply.status, 503) << path;
    EXPECT_TRUE(json::parse(reply.body).as_object().contains("error")) << path;
  }
}

// Blanks between calls are no text of their own.
TEST(Doors, BlanksAroundCallsAreNoBlocks) {
  const auto script = [](const GenerationRequest&) {
    FakeAnswer answer;
    for (uint32_t i = 0; i < 2; ++i) {
      Delta call;
      call.call = ToolCallDelta{i, "f", "{}", true};
      answer.deltas.push_back(Delta{"", "\n", {}});
      answer.deltas.push_back(call);
    }
    answer.deltas.push_back(Delta{"", "\n", {}});
    answer.reason = FinishReason::tool_calls;
    return answer;
  };
  Serving serving(script);
  const std::string messages = ask(serving, "/v1/messages", kMessages).body;
  EXPECT_EQ(messages.find("text_delta"), std::string::npos) << messages;
  EXPECT_NE(messages.find("\"index\":1"), std::string::npos);
  EXPECT_EQ(messages.find("\"index\":2"), std::string::npos);
  const std::string responses = ask(serving, "/v1/responses", kResponses).body;
  EXPECT_EQ(responses.find("output_text"), std::string::npos) << responses;
}

// What comes from a request or a model and is sent as JSON again.
TEST(Doors, IntegersBeyond64BitsAreSentAsTheyAre) {
  const std::string digits = "123456789012345678901234567890";
  Serving serving([&](const GenerationRequest&) {
    FakeAnswer answer;
    Delta call;
    call.call = ToolCallDelta{0, "f", "{\"n\": " + digits + "}", true};
    answer.deltas.push_back(call);
    answer.reason = FinishReason::tool_calls;
    return answer;
  });
  const std::string message =
      ask(serving, "/v1/messages", R"({"max_tokens":9,"messages":[{"role":"user","content":"x"}]})").body;
  EXPECT_NE(message.find("\"input\":{\"n\":" + digits + "}"), std::string::npos) << message;
  const std::string fields = R"({"input":"x","metadata":{"big":)" + digits + R"(},"stream":)";
  for (const char* stream : {"false", "true"}) {
    const std::string response = ask(serving, "/v1/responses", fields + stream + "}").body;
    EXPECT_NE(response.find("\"metadata\":{\"big\":" + digits + "}"), std::string::npos) << response;
  }
}

TEST(Doors, TheDescriptionHasEveryPath) {
  const json::value document = json::parse(openapi_document());
  const json::object& paths = document.at("paths").as_object();
  size_t routes = 0;
  for (int i = 0; i < static_cast<int>(Route::unknown); ++i) {
    const auto route = static_cast<Route>(i);
    const std::string path = route_path(route);
    if (path.empty()) {
      continue;  // the page, and one model
    }
    ++routes;
    const json::value* entry = paths.if_contains(path);
    ASSERT_NE(entry, nullptr) << path;
    const bool post = allowed_methods(route).find("POST") != std::string_view::npos;
    EXPECT_EQ(entry->as_object().contains("post"), post) << path;
    EXPECT_EQ(match_route(path).route, route);
  }
  EXPECT_EQ(paths.size(), routes + 2);
}

TEST(Metrics, BucketsHoldWhatIsAtMostTheirBound) {
  Histogram histogram({0.5, 1});
  for (const double seconds : {0.1, 0.5, 0.7, 1.0, 5.0}) {
    histogram.observe(seconds);
  }
  std::string text;
  histogram.write(text, "h", "help");
  EXPECT_EQ(text,
            "# HELP h help\n# TYPE h histogram\nh_bucket{le=\"0.5\"} 2\nh_bucket{le=\"1\"} 4\n"
            "h_bucket{le=\"+Inf\"} 5\nh_sum 7.3\nh_count 5\n");
}

}  // namespace
}  // namespace lily::test
