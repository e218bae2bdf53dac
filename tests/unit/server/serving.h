// A server over a scripted engine, on a free port of this machine, for one test.
#pragma once

#include <boost/json/parse.hpp>
#include <memory>
#include <string>
#include <thread>

#include "server/server.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/fake_engine.h"
#include "tests/support/http_client.h"

namespace lily::test {

inline ServerOptions local_options() {
  ServerOptions options;
  options.port = 0;
  return options;
}

class Serving {
 public:
  explicit Serving(FakeEngine::Script script, FakeEngineOptions engine = {},
                   ServerOptions options = local_options(), bool attach = true)
      : engine_(std::move(script), engine), tokenizer_(byte_tokenizer()) {
    Result<std::unique_ptr<Server>> server = Server::listen(std::move(options));
    if (!server) {
      throw std::runtime_error(server.error().text());
    }
    server_ = std::move(*server);
    thread_ = std::thread([this] { server_->run(); });
    if (attach) {
      this->attach();
    }
  }
  ~Serving() {
    server_->stop();
    thread_.join();
  }
  void attach() {
    GenerationConfig generation;
    generation.stop_ids = {kImEnd};
    server_->attach(ServedModel{"owner/small", &engine_, tokenizer_.get(), generation});
  }
  FakeEngine& engine() { return engine_; }
  Server& server() { return *server_; }
  HttpClient client(int receive_buffer = 0) const { return HttpClient(server_->port(), receive_buffer); }

 private:
  FakeEngine engine_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

inline std::string chat_body(const std::string& text, const std::string& fields = "") {
  return R"({"model":"m","messages":[{"role":"user","content":")" + text + "\"}]" + fields + "}";
}
inline std::string stream_body(const std::string& text, const std::string& fields = "") {
  return chat_body(text, R"(,"stream":true)" + fields);
}

// An answer of `count` pieces of content.
inline FakeAnswer long_answer(size_t count, const std::string& piece = "word ") {
  FakeAnswer answer;
  answer.deltas.assign(count, Delta{"", piece, {}});
  return answer;
}

// The content of a stream's chunks, put together.
inline std::string content_of(const std::vector<std::string>& events) {
  std::string out;
  for (const std::string& event : events) {
    if (event == "[DONE]") {
      continue;
    }
    const boost::json::value chunk = boost::json::parse(event);
    const boost::json::array& choices = chunk.at("choices").as_array();
    if (!choices.empty()) {
      if (const boost::json::value* content = choices[0].at("delta").as_object().if_contains("content")) {
        out += std::string(content->as_string().c_str());
      }
    }
  }
  return out;
}

}  // namespace lily::test
