// The HTTP side over real sockets: what is not about the answer itself.
#include <gtest/gtest.h>

#include "serving.h"

namespace lily {
namespace {

using namespace test;
using std::chrono::milliseconds;

FakeAnswer hello(const GenerationRequest&) { return say("Hello"); }

TEST(Http, WholeAnswer) {
  Serving serving([](const GenerationRequest&) { return say("Hi.", "Thinking"); });
  HttpClient client = serving.client();
  ASSERT_TRUE(client.post(chat_body("hello")));
  const std::optional<Reply> reply = client.reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(reply->headers.at("content-type"), "application/json");
  EXPECT_EQ(reply->headers.at("access-control-allow-origin"), "*");
  const boost::json::value body = boost::json::parse(reply->body);
  EXPECT_EQ(body.at("model"), "m");
  EXPECT_EQ(body.at("choices").at(0).at("message").at("content"), "Hi.");
  EXPECT_EQ(body.at("choices").at(0).at("message").at("reasoning_content"), "Thinking");
  EXPECT_EQ(body.at("usage").at("completion_tokens_details").at("reasoning_tokens"), 1);
}

TEST(Http, KeepsTheConnectionAndServesWhatIsPipelined) {
  Serving serving([](const GenerationRequest& request) {
    return say("tokens " + std::to_string(request.prompt.size()));
  });
  HttpClient client = serving.client();
  std::string all;
  for (int i = 0; i < 5; ++i) {
    const std::string body =
        chat_body(std::string(static_cast<size_t>(i), 'x'), i % 2 == 0 ? "" : R"(,"stream":true)");
    all += "\r\nPOST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body;
    all += "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
  }
  ASSERT_TRUE(client.send(all));
  for (int i = 0; i < 5; ++i) {
    const std::optional<Reply> answer = client.reply();
    ASSERT_TRUE(answer) << i;
    EXPECT_EQ(answer->status, 200);
    EXPECT_NE(answer->body.find("tokens"), std::string::npos);
    const std::optional<Reply> health = client.reply();
    ASSERT_TRUE(health) << i;
    EXPECT_EQ(health->body, R"({"status":"ok"})");
  }
}

TEST(Http, ThePageIsServedBeforeTheModelAndNeedsNothingElse) {
  ServerOptions options = local_options();
  options.api_keys = {"k"};
  Serving serving(hello, {}, std::move(options), false);
  HttpClient client = serving.client();
  ASSERT_TRUE(client.get("/") && client.get("/v1/models"));
  const std::optional<Reply> page = client.reply();
  ASSERT_TRUE(page);
  EXPECT_EQ(page->status, 200);
  EXPECT_EQ(page->headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(page->headers.at("x-content-type-options"), "nosniff");
  const std::string& policy = page->headers.at("content-security-policy");
  EXPECT_EQ(policy.find("default-src 'none'; script-src 'sha256-"), 0U) << policy;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos) << policy;
  EXPECT_EQ(page->body.find("<!doctype html>"), 0U);
  EXPECT_EQ(page->body.substr(page->body.size() - 8), "</html>\n");
  for (const char* outside :
       {" src=", "url(", "@import", "<link rel=\"stylesheet\"", "importScripts", "import("}) {
    EXPECT_EQ(page->body.find(outside), std::string::npos) << outside;
  }
  EXPECT_EQ(client.reply()->status, 401);
}

TEST(Http, AHalfClosedClientStillGetsItsPlainAnswers) {
  Serving serving(hello);
  HttpClient client = serving.client();
  ASSERT_TRUE(client.get("/health") && client.get("/v1/models"));
  client.end_sending();
  EXPECT_EQ(client.reply()->status, 200);
  EXPECT_EQ(client.reply()->status, 200);
  EXPECT_TRUE(client.at_end());
}

TEST(Http, BodiesInSmallPieces) {
  Serving serving(hello);
  for (const bool chunked : {false, true}) {
    const std::string body = chat_body("a body in pieces");
    std::string head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n";
    std::string wire;
    if (chunked) {
      head += "Transfer-Encoding: chunked\r\n\r\n";
      for (const char c : body) {
        wire += std::string("1\r\n") + c + "\r\n";
      }
      wire += "0\r\n\r\n";
    } else {
      head += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n";
      wire = body;
    }
    HttpClient client = serving.client();
    const std::string all = head + wire;
    for (size_t i = 0; i < all.size(); i += 3) {
      ASSERT_TRUE(client.send(std::string_view(all).substr(i, 3)));
      if (i % 60 == 0) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
    const std::optional<Reply> reply = client.reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 200) << reply->body;
  }
}

TEST(Http, Expect100Continue) {
  Serving serving(hello);
  HttpClient client = serving.client();
  const std::string body = chat_body("hi");
  const std::string head =
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: ";
  ASSERT_TRUE(client.send(head + std::to_string(body.size()) + "\r\n\r\n"));
  EXPECT_EQ(client.reply()->status, 100);
  ASSERT_TRUE(client.send(body));
  EXPECT_EQ(client.reply()->status, 200);

  ASSERT_TRUE(client.send(head + "99999999999\r\n\r\n"));
  EXPECT_EQ(client.reply()->status, 413) << "no body is asked for when it is too large";
  HttpClient other = serving.client();
  ASSERT_TRUE(other.get("/health", "GET", "Expect: cake\r\n"));
  EXPECT_EQ(other.reply()->status, 417);
}

TEST(Http, LimitsOfHeaderAndBody) {
  ServerOptions options = local_options();
  options.max_body_bytes = 1000;
  options.max_header_bytes = 2000;
  Serving serving(hello, {}, options);
  {
    HttpClient client = serving.client();
    ASSERT_TRUE(
        client.post(chat_body(std::string(500'000, 'x'))));  // sent whole, although it is refused at once
    const std::optional<Reply> reply = client.reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 413);
    EXPECT_EQ(boost::json::parse(reply->body).at("error").at("code"), "body_too_large");
    EXPECT_TRUE(client.at_end());
  }
  {
    HttpClient client = serving.client();
    client.send(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2000\r\n" +
        std::string(0x2000, 'x'));
    EXPECT_EQ(client.reply()->status, 413);
  }
  {
    HttpClient client = serving.client();
    client.get("/health", "GET", "X: " + std::string(100'000, 'x') + "\r\n");
    EXPECT_EQ(client.reply()->status, 431);
  }
  {
    HttpClient client = serving.client();
    client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;" +
                std::string(400'000, 'x'));
    const std::optional<Reply> reply = client.reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 400) << "a line that does not end";
  }
  EXPECT_EQ(serving.engine().counts().submitted, 0U);
}

TEST(Http, BodiesTogetherHaveALimit) {
  ServerOptions options = local_options();
  options.max_total_body_bytes = 3000;
  Serving serving(hello, {}, options);
  HttpClient first = serving.client();
  const std::string large = chat_body(std::string(5000, 'x'));  // one is taken whatever its size
  const std::string head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: ";
  ASSERT_TRUE(first.send(head + std::to_string(large.size()) + "\r\n\r\n" + large.substr(0, 100)));
  HttpClient second = serving.client();
  std::optional<Reply> refused;
  for (int i = 0; i < 10'000 && (!refused || refused->status == 200); ++i) {  // until the first was seen
    HttpClient other = serving.client();
    other.post(chat_body("hi"));
    refused = other.reply();
    std::this_thread::sleep_for(milliseconds(5));
  }
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->headers.at("retry-after"), "1");
  EXPECT_EQ(boost::json::parse(refused->body).at("error").at("code"), "too_many_bytes");
  ASSERT_TRUE(first.send(large.substr(100)));
  EXPECT_EQ(first.reply()->status, 400) << "too long for the context, but read";
  second.post(chat_body("hi"));
  EXPECT_EQ(second.reply()->status, 200) << "there is room again";
}

TEST(Http, BadRequests) {
  Serving serving(hello);
  for (const char* text : {"nonsense\r\n\r\n", "GET / HTTP/3.0\r\n\r\n",
                           "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
                           "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"}) {
    HttpClient client = serving.client();
    client.send(text);
    const std::optional<Reply> reply = client.reply();
    ASSERT_TRUE(reply) << text;
    EXPECT_EQ(reply->status, 400) << text;
    EXPECT_EQ(boost::json::parse(reply->body).at("error").at("type"), "invalid_request_error");
    EXPECT_TRUE(client.at_end());
  }
}

TEST(Http, MethodsAndPaths) {
  Serving serving(hello);
  HttpClient client = serving.client();
  const auto status = [&](const char* path, const char* method, bool has_body = true) {
    client.get(path, method);
    const std::optional<Reply> reply = client.reply(has_body);
    return reply ? *reply : Reply{};
  };
  EXPECT_EQ(status("/nothing", "GET").status, 404);
  EXPECT_EQ(status("/v1/chat/completions", "GET").status, 405);
  EXPECT_EQ(status("/v1/chat/completions", "DELETE").headers.at("allow"), "POST, OPTIONS");
  const Reply head = status("/v1/models", "HEAD", false);
  EXPECT_EQ(head.status, 200);
  EXPECT_GT(std::stoi(head.headers.at("content-length")), 10);
  client.get("/v1/chat/completions", "OPTIONS",
             "Origin: http://a\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: "
             "authorization,x-y\r\n");
  const std::optional<Reply> preflight = client.reply();
  EXPECT_EQ(preflight->status, 204);
  EXPECT_EQ(preflight->headers.at("access-control-allow-headers"), "authorization,x-y");
  EXPECT_EQ(preflight->headers.at("access-control-allow-methods"), "POST, OPTIONS");
  EXPECT_EQ(preflight->headers.at("access-control-allow-origin"), "*");
  EXPECT_EQ(status("/health", "GET").status, 200) << "one connection took all of it";
}

TEST(Http, Models) {
  Serving serving(hello);
  HttpClient client = serving.client();
  client.get("/v1/models");
  const boost::json::value list = boost::json::parse(client.reply()->body);
  EXPECT_EQ(list.at("object"), "list");
  EXPECT_EQ(list.at("data").at(0).at("id"), "owner/small");
  EXPECT_EQ(list.at("data").at(0).at("context_length"), 4096);
  EXPECT_EQ(list.at("data").at(0).at("max_model_len"), 4096);
  EXPECT_EQ(list.at("data").at(0).at("meta").at("n_ctx"), 4096);
  EXPECT_EQ(list.at("models").as_array().size(), 1U);
  client.get("/v1/models?client_version=0.155.1");
  const boost::json::value codex = boost::json::parse(client.reply()->body);
  EXPECT_TRUE(codex.at("models").as_array().empty());
  EXPECT_EQ(codex.at("data"), list.at("data"));
  for (const char* path : {"/v1/models/owner/small", "/v1/models/owner%2Fsmall", "/models/owner/small"}) {
    client.get(path);
    EXPECT_EQ(boost::json::parse(client.reply()->body).at("id"), "owner/small") << path;
  }
  client.get("/v1/models/other%ff");
  const std::optional<Reply> reply = client.reply();
  EXPECT_EQ(reply->status, 404);
  EXPECT_EQ(boost::json::parse(reply->body).at("error").at("code"), "model_not_found");
}

TEST(Http, WhileTheModelLoads) {
  Serving serving(hello, {}, local_options(), false);
  HttpClient client = serving.client();
  client.get("/health");
  EXPECT_EQ(client.reply()->status, 503);
  client.get("/v1/models");
  EXPECT_EQ(client.reply()->status, 503);
  client.post(chat_body("hi"));
  const std::optional<Reply> reply = client.reply();
  EXPECT_EQ(reply->status, 503);
  EXPECT_EQ(boost::json::parse(reply->body).at("error").at("code"), "loading");
  EXPECT_TRUE(reply->headers.count("retry-after"));
  client.post("{}", "/tokenize");
  EXPECT_EQ(client.reply()->status, 503);
  serving.attach();
  client.get("/health");
  EXPECT_EQ(client.reply()->status, 200);
  client.post(chat_body("hi"));
  EXPECT_EQ(client.reply()->status, 200);
}

TEST(Http, ApiKeys) {
  ServerOptions options = local_options();
  options.api_keys = {"one", "two"};
  Serving serving(hello, {}, options);
  HttpClient client = serving.client();
  const auto status = [&](const char* path, const char* header) {
    client.get(path, "GET", header);
    return client.reply()->status;
  };
  EXPECT_EQ(status("/health", ""), 200);
  EXPECT_EQ(status("/v1/models", ""), 401);
  EXPECT_EQ(status("/v1/models", "Authorization: Bearer wrong\r\n"), 401);
  EXPECT_EQ(status("/v1/models", "Authorization: Basic one\r\n"), 401);
  EXPECT_EQ(status("/v1/models", "Authorization: Bearer two\r\n"), 200);
  EXPECT_EQ(status("/v1/models", "X-Api-Key: one\r\n"), 200);
  client.post(chat_body("hi"));
  const std::optional<Reply> reply = client.reply();
  EXPECT_EQ(reply->status, 401);
  EXPECT_EQ(boost::json::parse(reply->body).at("error").at("code"), "invalid_api_key");
}

TEST(Http, TimeOuts) {
  // One that is short at a time: on a busy machine this client is slow too.
  const auto reply_to = [](std::string_view sent, milliseconds ServerTimeouts::* which) {
    ServerOptions options = local_options();
    options.timeouts.*which = milliseconds(80);
    Serving serving(hello, {}, options);
    HttpClient client = serving.client();
    client.send(sent);
    return client.reply();
  };
  EXPECT_FALSE(reply_to("", &ServerTimeouts::idle)) << "an idle connection is closed without a word";
  EXPECT_EQ(reply_to("GET /health HT", &ServerTimeouts::header)->status, 408);
  const std::string begun = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{";
  EXPECT_EQ(reply_to(begun, &ServerTimeouts::body)->status, 408);
}

TEST(Http, TooManyConnections) {
  ServerOptions options = local_options();
  options.max_connections = 2;
  Serving serving(hello, {}, options);
  HttpClient first = serving.client(), second = serving.client();
  first.get("/health");
  EXPECT_EQ(first.reply()->status, 200);
  second.get("/health");
  EXPECT_EQ(second.reply()->status, 200);
  HttpClient third = serving.client();
  EXPECT_EQ(third.reply()->status, 503);
  first.close();
  second.close();
  std::optional<Reply> taken;
  for (int i = 0; i < 10'000 && (!taken || taken->status == 503); ++i) {  // until the server has seen it
    HttpClient fourth = serving.client();
    fourth.get("/health");
    taken = fourth.reply();
    std::this_thread::sleep_for(milliseconds(5));
  }
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->status, 200);
}

TEST(Http, TextTools) {
  Serving serving(hello);
  HttpClient client = serving.client();
  client.post(R"({"content":"ab"})", "/tokenize");
  EXPECT_EQ(client.reply()->body, R"({"tokens":[97,98]})");
  client.post(R"({"tokens":[97,98]})", "/detokenize");
  EXPECT_EQ(client.reply()->body, R"({"content":"ab"})");
  client.post(chat_body("hi"), "/apply-template");
  EXPECT_NE(client.reply()->body.find("<|im_start|>user"), std::string::npos);
  client.post("{", "/tokenize");
  EXPECT_EQ(client.reply()->status, 400);
}

TEST(Listening, SaysWhy) {
  ServerOptions options = local_options();
  options.host = "0.0.0.0";
  const Result<std::unique_ptr<Server>> exposed = Server::listen(options);
  ASSERT_FALSE(exposed);
  EXPECT_NE(exposed.error().message.find("--allow-anonymous"), std::string::npos);
  options.allow_anonymous = true;
  EXPECT_TRUE(Server::listen(options));
  options.allow_anonymous = false;
  options.api_keys = {"k"};
  EXPECT_TRUE(Server::listen(options));

  const Result<std::unique_ptr<Server>> first = Server::listen(local_options());
  ASSERT_TRUE(first);
  ServerOptions taken = local_options();
  taken.port = (*first)->port();
  const Result<std::unique_ptr<Server>> second = Server::listen(taken);
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().message.find(std::to_string(taken.port)), std::string::npos);

  options = local_options();
  options.host = "no.such.host.invalid";
  const Result<std::unique_ptr<Server>> nowhere = Server::listen(options);
  ASSERT_FALSE(nowhere);
  EXPECT_NE(nowhere.error().message.find("no.such.host.invalid"), std::string::npos);
}

TEST(Listening, Ipv6) {
  ServerOptions options = local_options();
  options.host = "::1";
  const Result<std::unique_ptr<Server>> server = Server::listen(options);
  if (!server) {
    GTEST_SKIP() << "no IPv6 here: " << server.error().message;
  }
  EXPECT_EQ((*server)->url(), "http://[::1]:" + std::to_string((*server)->port()));
}

}  // namespace
}  // namespace lily
