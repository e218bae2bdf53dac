// One client's connection: reads requests one after the other, gives each to its handler, writes the answers.
// All of it runs on the thread of Server::run(). Bytes are read all the time, up to a bound, so that a client
// that goes away is noticed while its answer is being made. Private to src/server.
#pragma once

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "server/core.h"
#include "server/http_message.h"
#include "server/http_parser.h"

namespace lily {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;
  using Socket = boost::asio::ip::tcp::socket;
  template <class T>
  using Awaitable = boost::asio::awaitable<T>;

  Connection(Socket socket, Core& core);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void start();
  void close();        // at any moment: what waits or writes returns
  void begin_drain();  // closes when idle, otherwise after the answer in progress

  // For handlers, inside the connection's coroutine.
  Core& core() { return core_; }
  const HttpRequest& request() const { return request_; }
  uint64_t client() const;  // one number for all requests from an address with one key
  std::string take_body() { return std::move(request_.body); }
  void release_body();  // it is not held any more: others may send theirs
  // Runs `work`, which must not throw, on the pool of workers; false: the client has gone meanwhile, and what
  // `work` holds lives until it is done.
  Awaitable<bool> on_worker(std::function<void()> work);
  // Until notify() or `deadline`. May return early: look again at what was waited for.
  Awaitable<void> wait(Clock::time_point deadline);
  void notify();
  // While on, a client that closes its side has gone: the connection is closed. Off: it may still read.
  void watch_for_end(bool on);
  bool gone() const { return closed_; }
  void close_after_answer() { keep_alive_ = false; }

  Awaitable<bool> respond(const HttpResponse& response);
  // A streamed answer: the header to send before the first piece; each piece framed; what ends it.
  std::string stream_header(const HttpResponse& response);
  std::string stream_piece(std::string_view data) const;
  std::string_view stream_end() const;
  // Everything, or false: the client is gone or did not read in time.
  Awaitable<bool> write(std::string bytes);

 private:
  enum class Got { request, answered, end };
  Awaitable<void> serve();
  Awaitable<Got> read_request();
  Awaitable<Got> on_header(HttpParser& parser);
  Awaitable<Got> refuse(const ApiError& error);
  Awaitable<void> dispatch();
  Awaitable<void> linger();
  HttpResponse simple_answer() const;
  void pump();
  bool peer_has_closed();
  bool count_body(uint64_t bytes);
  void on_read(const boost::system::error_code& ec, size_t bytes);
  Framing framing(bool chunked) const;

  static constexpr size_t kReadBytes = 64U << 10;
  Socket socket_;
  Core& core_;
  boost::asio::steady_timer wake_;
  boost::asio::steady_timer write_deadline_;
  uint64_t write_number_ = 0;
  std::array<char, kReadBytes> read_buffer_;
  std::string input_;  // read, not yet parsed
  const size_t input_bound_;
  HttpRequest request_;
  RouteMatch match_;
  uint64_t body_bytes_ = 0;  // counted in Core::body_bytes
  bool reading_ = false;
  bool ended_ = false;   // the client has closed its side
  bool closed_ = false;  // and we ours
  bool woken_ = false;
  bool watching_ = false;
  bool idle_ = true;  // between two requests
  bool keep_alive_ = true;
  bool linger_ = false;
};

}  // namespace lily
