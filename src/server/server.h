// The HTTP server: the APIs of OpenAI and Anthropic over one engine. One thread runs all connections (run());
// rendering and tokenising happen on a small pool, generation on the engine's thread, so that no client waits
// for another's socket.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "model/plan.h"
#include "text/tokenizer.h"
#include "weights/config.h"

namespace lily {

struct ServerTimeouts {
  using Time = std::chrono::milliseconds;
  Time header{30'000};     // from a request's first byte to the end of its header
  Time body{30'000};       // without a byte of the body
  Time idle{75'000};       // between two requests of a connection
  Time write{30'000};      // for the reader to take 64 KiB; then its job is cancelled
  Time keep_alive{5'000};  // silence of a stream before a comment is sent
  Time linger{2'000};      // to read what a refused client still sends, so that it sees the answer
  Time flush{5'000};       // for the last bytes, after the engine has drained
};

struct ServerOptions {
  std::string host = "127.0.0.1";     // a name or an address, of IPv4 or IPv6
  uint16_t port = 8080;               // 0 = any free one: see Server::port()
  std::vector<std::string> api_keys;  // empty = none is asked for
  bool allow_anonymous = false;       // listen beyond this machine without an API key
  std::string allowed_origin = "*";   // of CORS; empty = no such header
  uint64_t max_body_bytes = Limits::kMaxBodyBytes;
  uint64_t max_total_body_bytes = 256U << 20;  // of all requests read or prepared at a time; then 503
  uint32_t max_header_bytes = 64U << 10;
  uint32_t max_connections = 1'024;      // one more is answered with 503
  uint32_t max_unread_bytes = 8U << 20;  // of an answer that its reader does not take; then it is cancelled
  uint32_t workers = 2;                  // threads that render and tokenise
  uint32_t send_buffer_bytes = 0;        // of a socket; 0 = the system's
  bool log_prompts = false;              // the text of conversations goes into the log
  ServerTimeouts timeouts;
};

// What is served once it is loaded. Engine and tokenizer must outlive run().
struct ServedModel {
  std::string name;  // the id of /v1/models
  Engine* engine = nullptr;
  const Tokenizer* tokenizer = nullptr;
  GenerationConfig generation;   // defaults of absent fields, and the ids that end an answer
  uint32_t max_answer = 0;       // tokens; 0 = what the context leaves
  double max_seconds = 0;        // of a request, waiting included; 0 = no limit
  bool parse_special = false;    // the text of messages may hold control tokens
  bool reasoning_twice = false;  // the thinking is sent as `reasoning` too
  bool close_thinking = false;   // an answer that ends while it thinks goes on with its content
  // What a request does that does not say so.
  bool enable_thinking = true;
  bool preserve_thinking = false;
  bool recall = true;  // answers in a history are put back as they were generated: text/recall.h
};

class Server {
 public:
  // Listens at once: until attach(), /health and completions answer 503. Refuses an address that other
  // machines can reach when there is neither an API key nor allow_anonymous.
  static Result<std::unique_ptr<Server>> listen(ServerOptions options);
  ~Server();  // only after run() has returned, or if it was never called

  uint16_t port() const;
  std::string url() const;  // "http://127.0.0.1:8080", "http://[::1]:8080"

  // Serves on the calling thread until drain() or stop().
  void run();

  // Any thread may call these. A signal handler may not.
  void attach(ServedModel model);
  // Accepts nothing more, lets running answers finish for up to `seconds`, cancels the rest and tells its
  // clients, then ends run(). Blocks until that is so.
  void drain(double seconds);
  void stop();  // cancels everything, closes every connection and ends run()

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lily
