// Answers under way: many at once, slow readers, clients that leave, the end of the server.
#include <gtest/gtest.h>

#include <array>
#include <future>

#include "serving.h"

namespace lily {
namespace {

using namespace test;
using std::chrono::milliseconds;

TEST(Streaming, TheWholeProtocol) {
  Serving serving([](const GenerationRequest&) {
    FakeAnswer answer;
    answer.deltas = {{"Let me", "", {}}, {" see.", "", {}}, {"", "Hi", {}}, {"", " there", {}}};
    return answer;
  });
  HttpClient client = serving.client();
  client.post(stream_body("hello", R"(,"stream_options":{"include_usage":true})"));
  const std::optional<Reply> reply = client.reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(reply->headers.at("content-type").find("text/event-stream"), 0U);
  EXPECT_EQ(reply->headers.at("cache-control"), "no-cache");
  const std::vector<std::string> events = events_of(reply->body);
  ASSERT_GE(events.size(), 6U);
  EXPECT_EQ(events.back(), "[DONE]");
  std::string reasoning, content;
  size_t finishes = 0, usages = 0;
  const boost::json::value first = boost::json::parse(events.front());
  EXPECT_EQ(first.at("choices").at(0).at("delta").at("role"), "assistant");
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const boost::json::value chunk = boost::json::parse(events[i]);
    EXPECT_EQ(chunk.at("id"), first.at("id"));
    EXPECT_EQ(chunk.at("created"), first.at("created"));
    EXPECT_EQ(chunk.at("model"), "m");
    const boost::json::array& choices = chunk.at("choices").as_array();
    if (choices.empty()) {
      ++usages;
      EXPECT_EQ(i + 2, events.size()) << "the usage comes last";
      EXPECT_EQ(chunk.at("usage").at("completion_tokens"), 5);
      continue;
    }
    const boost::json::object& delta = choices[0].at("delta").as_object();
    EXPECT_FALSE(delta.contains("content") && delta.contains("reasoning_content"));
    if (delta.contains("content")) {
      content += delta.at("content").as_string().c_str();
    }
    if (delta.contains("reasoning_content")) {
      reasoning += delta.at("reasoning_content").as_string().c_str();
    }
    finishes += choices[0].at("finish_reason").is_null() ? 0 : 1;
  }
  EXPECT_EQ(reasoning, "Let me see.");
  EXPECT_EQ(content, "Hi there");
  EXPECT_EQ(finishes, 1U);
  EXPECT_EQ(usages, 1U);
  client.post(stream_body("again"));
  const std::optional<Reply> second = client.reply();
  ASSERT_TRUE(second) << "the connection lives on";
  EXPECT_EQ(second->body.find("\"usage\""), std::string::npos) << "no usage unasked";
  EXPECT_NE(boost::json::parse(events_of(second->body).front()).at("id"), first.at("id"));
}

TEST(Streaming, Http10EndsWithTheConnection) {
  Serving serving([](const GenerationRequest&) { return say("old"); });
  HttpClient client = serving.client();
  const std::string body = stream_body("hi");
  client.send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  const std::optional<Reply> reply = client.reply();
  ASSERT_TRUE(reply);
  EXPECT_FALSE(reply->headers.count("transfer-encoding"));
  EXPECT_EQ(content_of(events_of(reply->body)), "old");
}

TEST(Streaming, SixtyFourAtOnceEachItsOwn) {
  FakeEngineOptions engine;
  engine.parallel = 64;
  engine.step = std::chrono::microseconds(500);
  Serving serving(
      [](const GenerationRequest& request) {
        return long_answer(40, std::to_string(request.sampling.seed) + " ");
      },
      engine);
  std::vector<std::future<std::string>> clients;
  for (int i = 0; i < 64; ++i) {
    clients.push_back(std::async(std::launch::async, [&serving, i] {
      HttpClient client = serving.client();
      client.post(stream_body("hi", R"(,"seed":)" + std::to_string(1000 + i)));
      const std::optional<Reply> reply = client.reply();
      return reply ? content_of(events_of(reply->body)) : "";
    }));
  }
  for (int i = 0; i < 64; ++i) {
    std::string expected;
    for (int k = 0; k < 40; ++k) {
      expected += std::to_string(1000 + i) + " ";
    }
    EXPECT_EQ(clients[static_cast<size_t>(i)].get(), expected);
  }
  EXPECT_EQ(serving.engine().counts().finished, 64U);
}

TEST(Streaming, ASlowReaderGetsEverythingAndBlocksNobody) {
  ServerOptions options = local_options();
  options.send_buffer_bytes = 4096;
  const size_t pieces = 400;
  const std::string piece(2000, 'x');
  Serving serving(
      [&](const GenerationRequest& request) {
        return request.sampling.seed == 1 ? long_answer(pieces, piece) : say("quick");
      },
      {}, options);
  HttpClient slow = serving.client(4096);
  slow.post(stream_body("hi", R"(,"seed":1)"));
  ASSERT_TRUE(slow.head());
  // The job ends although its reader has read next to nothing, and others are served meanwhile.
  EXPECT_TRUE(serving.engine().wait_for([](const FakeCounts& counts) { return counts.finished == 1; }));
  HttpClient quick = serving.client();
  quick.post(chat_body("hi", R"(,"seed":2)"));
  EXPECT_EQ(quick.reply()->status, 200);
  std::string body;
  while (std::optional<std::string> chunk = slow.chunk()) {
    if (chunk->empty()) {
      break;
    }
    body += *chunk;
  }
  const std::vector<std::string> events = events_of(body);
  EXPECT_EQ(content_of(events).size(), pieces * piece.size());
  EXPECT_LT(events.size(), pieces / 2) << "pieces are joined for who reads slowly";
}

TEST(Streaming, AReaderThatStopsIsCancelled) {
  ServerOptions options = local_options();
  options.send_buffer_bytes = 4096;
  options.timeouts.write = milliseconds(1000);  // the server too has to wait for a busy machine
  options.timeouts.keep_alive = milliseconds(40);
  FakeEngineOptions engine;
  engine.step = std::chrono::microseconds(200);
  Serving serving([](const GenerationRequest&) { return long_answer(100'000, std::string(2000, 'x')); },
                  engine, options);
  serving.engine().hold(true);
  HttpClient stuck = serving.client(4096);
  stuck.post(stream_body("hi"));
  ASSERT_TRUE(stuck.head());  // with a comment, before there is more than the reader takes
  serving.engine().hold(false);
  EXPECT_TRUE(
      serving.engine().wait_for([](const FakeCounts& counts) { return counts.cancelled_decode == 1; }));
}

TEST(Streaming, AnAnswerThatPilesUpIsCancelled) {
  ServerOptions options = local_options();
  options.send_buffer_bytes = 4096;
  options.max_unread_bytes = 100'000;
  options.timeouts.keep_alive = milliseconds(40);
  Serving serving([](const GenerationRequest&) { return long_answer(10'000, std::string(2000, 'x')); }, {},
                  options);
  serving.engine().hold(true);
  HttpClient stuck = serving.client(4096);
  stuck.post(stream_body("hi"));
  ASSERT_TRUE(stuck.head());  // before anything can pile up, however slow this machine is
  serving.engine().hold(false);
  EXPECT_TRUE(
      serving.engine().wait_for([](const FakeCounts& counts) { return counts.cancelled_decode == 1; }));
}

// A client leaves in `stage`; how: close, reset, or only its sending side.
enum class Leave { close, reset, half_close };
void PrintTo(Leave leave, std::ostream* out) {
  *out << std::array{"close", "reset", "half_close"}[static_cast<size_t>(leave)];
}

class Leaving : public testing::TestWithParam<std::tuple<bool, Leave>> {
 protected:
  void leave(HttpClient& client) {
    switch (std::get<1>(GetParam())) {
      case Leave::close:
        return client.close();
      case Leave::reset:
        return client.reset();
      case Leave::half_close:
        return client.end_sending();
    }
  }
  std::string body() const { return std::get<0>(GetParam()) ? stream_body("hi") : chat_body("hi"); }
};

TEST_P(Leaving, InTheQueue) {
  FakeEngineOptions engine;
  engine.parallel = 1;
  engine.step = milliseconds(2);
  Serving serving([](const GenerationRequest&) { return long_answer(100'000); }, engine);
  HttpClient first = serving.client(), second = serving.client();
  first.post(stream_body("hi"));
  ASSERT_TRUE(first.head());
  second.post(body());
  ASSERT_TRUE(serving.engine().wait_for([](const FakeCounts& counts) { return counts.waiting == 1; }));
  leave(second);
  EXPECT_TRUE(
      serving.engine().wait_for([](const FakeCounts& counts) { return counts.cancelled_waiting == 1; }));
  EXPECT_EQ(serving.engine().counts().running, 1U) << "the other goes on";
}

TEST_P(Leaving, InPrefill) {
  FakeEngineOptions engine;
  engine.step = milliseconds(2);
  Serving serving(
      [](const GenerationRequest&) {
        FakeAnswer answer = say("late");
        answer.prefill_steps = 100'000;
        return answer;
      },
      engine);
  HttpClient client = serving.client();
  client.post(body());
  ASSERT_TRUE(serving.engine().wait_for([](const FakeCounts& counts) { return counts.running == 1; }));
  leave(client);
  EXPECT_TRUE(
      serving.engine().wait_for([](const FakeCounts& counts) { return counts.cancelled_prefill == 1; }));
}

TEST_P(Leaving, InDecode) {
  FakeEngineOptions engine;
  engine.step = milliseconds(1);
  Serving serving(
      [](const GenerationRequest&) {
        FakeAnswer answer = long_answer(100'000);
        answer.prefill_steps = 0;  // what runs decodes
        return answer;
      },
      engine);
  HttpClient client = serving.client();
  client.post(body());
  ASSERT_TRUE(serving.engine().wait_for([](const FakeCounts& counts) { return counts.running == 1; }));
  leave(client);
  EXPECT_TRUE(
      serving.engine().wait_for([](const FakeCounts& counts) { return counts.cancelled_decode == 1; }));
  HttpClient next = serving.client();
  next.get("/health");
  EXPECT_EQ(next.reply()->status, 200);
}

INSTANTIATE_TEST_SUITE_P(Ways, Leaving,
                         testing::Combine(testing::Bool(),
                                          testing::Values(Leave::close, Leave::reset, Leave::half_close)));

TEST(Streaming, KeepAliveCommentsWhileNothingFlows) {
  ServerOptions options = local_options();
  options.timeouts.keep_alive = milliseconds(40);
  Serving serving([](const GenerationRequest&) { return say("done"); }, {}, options);
  serving.engine().hold(true);
  HttpClient client = serving.client();
  client.post(stream_body("hi"));
  ASSERT_TRUE(client.head()) << "the header does not wait for the first token for ever";
  int comments = 0;
  while (comments < 3) {
    const std::optional<std::string> chunk = client.chunk();
    ASSERT_TRUE(chunk);
    comments += chunk->find(": keep-alive") != std::string::npos ? 1 : 0;
  }
  serving.engine().hold(false);
  std::string body;
  while (std::optional<std::string> chunk = client.chunk()) {
    if (chunk->empty()) {
      break;
    }
    body += *chunk;
  }
  EXPECT_EQ(content_of(events_of(body)), "done");
}

TEST(Failures, BeforeTheFirstTextHaveAStatus) {
  Serving serving([](const GenerationRequest&) {
    FakeAnswer answer;
    answer.error = Error{ErrorKind::internal, "the logits are not finite", {}};
    return answer;
  });
  for (const std::string& body : {stream_body("hi"), chat_body("hi")}) {
    HttpClient client = serving.client();
    client.post(body);
    const std::optional<Reply> reply = client.reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 500);
    EXPECT_EQ(boost::json::parse(reply->body).at("error").at("message"), "the logits are not finite");
  }
}

TEST(Failures, InTheMiddleAreAnEvent) {
  ServerOptions options = local_options();
  options.timeouts.keep_alive = milliseconds(40);
  Serving serving(
      [](const GenerationRequest&) {
        FakeAnswer answer = long_answer(3);
        answer.error = Error{ErrorKind::internal, "the logits are not finite", {}};
        return answer;
      },
      {}, options);
  serving.engine().hold(true);
  HttpClient client = serving.client();
  client.post(stream_body("hi"));
  const std::optional<Reply> head = client.head();  // the answer has begun, however slow this machine is
  ASSERT_TRUE(head);
  EXPECT_EQ(head->status, 200);
  serving.engine().hold(false);
  std::string body;
  while (const std::optional<std::string> chunk = client.chunk()) {
    body += *chunk;
  }
  const std::vector<std::string> events = events_of(body);
  EXPECT_EQ(boost::json::parse(events.back()).at("error").at("type"), "server_error");
  EXPECT_TRUE(client.at_end());
}

TEST(Failures, AFullQueueIs429) {
  FakeEngineOptions engine;
  engine.parallel = 1;
  engine.queue = 1;
  engine.step = milliseconds(1);
  Serving serving([](const GenerationRequest&) { return long_answer(100'000); }, engine);
  HttpClient running = serving.client(), waiting = serving.client(), third = serving.client();
  running.post(stream_body("hi"));
  ASSERT_TRUE(running.head());
  waiting.post(stream_body("hi"));
  ASSERT_TRUE(serving.engine().wait_for([](const FakeCounts& counts) { return counts.waiting == 1; }));
  for (const std::string& body : {stream_body("hi"), chat_body("hi")}) {
    third.post(body);
    const std::optional<Reply> reply = third.reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 429);
    EXPECT_TRUE(reply->headers.count("retry-after"));
    EXPECT_EQ(boost::json::parse(reply->body).at("error").at("code"), "queue_full");
  }
}

TEST(Failures, OverlongPromptsAreRefusedBeforeTheStream) {
  Serving serving([](const GenerationRequest&) { return say("x"); });
  HttpClient client = serving.client();
  client.post(stream_body(std::string(5000, 'x')));
  const std::optional<Reply> reply = client.reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 400);
  EXPECT_EQ(boost::json::parse(reply->body).at("error").at("code"), "context_length_exceeded");
  EXPECT_EQ(serving.engine().counts().submitted, 0U);
}

TEST(Ending, DrainLetsAnswersFinishAndTakesNoMore) {
  FakeEngineOptions engine;
  engine.step = milliseconds(2);
  Serving serving([](const GenerationRequest&) { return long_answer(100); }, engine);
  HttpClient running = serving.client(), idle = serving.client();
  idle.get("/health");
  EXPECT_EQ(idle.reply()->status, 200);
  running.post(stream_body("hi"));
  ASSERT_TRUE(running.head());
  std::future<void> drained = std::async(std::launch::async, [&] { serving.server().drain(60); });
  EXPECT_TRUE(idle.at_end()) << "an idle connection is closed";
  std::string body;
  while (std::optional<std::string> chunk = running.chunk()) {
    if (chunk->empty()) {
      break;
    }
    body += *chunk;
  }
  EXPECT_EQ(content_of(events_of(body)).size(), 500U);
  EXPECT_EQ(events_of(body).back(), "[DONE]");
  EXPECT_TRUE(running.at_end());
  drained.get();
  EXPECT_THROW(serving.client(), std::runtime_error) << "nobody listens any more";
}

TEST(Ending, DrainCancelsWhatTakesTooLong) {
  FakeEngineOptions engine;
  engine.step = milliseconds(2);
  Serving serving([](const GenerationRequest&) { return long_answer(100'000); }, engine);
  HttpClient streamed = serving.client(), whole = serving.client();
  streamed.post(stream_body("hi"));
  whole.post(chat_body("hi"));
  ASSERT_TRUE(streamed.head());
  ASSERT_TRUE(serving.engine().wait_for([](const FakeCounts& counts) { return counts.running == 2; }));
  serving.server().drain(0.05);
  std::string body;
  while (std::optional<std::string> chunk = streamed.chunk()) {
    if (chunk->empty()) {
      break;
    }
    body += *chunk;
  }
  EXPECT_EQ(boost::json::parse(events_of(body).back()).at("error").at("code"), "shutting_down");
  const std::optional<Reply> reply = whole.reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 503);
}

TEST(Ending, StopCancelsEverything) {
  FakeEngineOptions engine;
  engine.step = milliseconds(1);
  Serving serving([](const GenerationRequest&) { return long_answer(100'000); }, engine);
  std::vector<HttpClient> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(serving.client());
    clients.back().post(stream_body("hi"));
    ASSERT_TRUE(clients.back().head());
  }
  serving.server().stop();
  EXPECT_TRUE(
      serving.engine().wait_for([](const FakeCounts& counts) { return counts.cancelled_decode == 8; }));
}

}  // namespace
}  // namespace lily
