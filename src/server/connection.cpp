#include "server/connection.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <exception>

#include "base/log.h"
#include "server/answering.h"
#include "server/body_tool.h"
#include "server/doors.h"
#include "server/openai.h"
#include "server/openapi.h"
#include "server/page.h"
#include "server/props.h"

namespace lily {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr size_t kWriteBytes = 64U << 10;
constexpr std::chrono::seconds kPeerCheck{1};
constexpr size_t kMaxLingerBytes = 256U << 20;

}  // namespace

Connection::Connection(Socket socket, Core& core)
    : socket_(std::move(socket)),
      core_(core),
      wake_(core.io),
      write_deadline_(core.io),
      input_bound_(core.options.max_header_bytes + 2 * kReadBytes) {}

Connection::~Connection() {
  release_body();
  core_.connections.erase(this);
}

void Connection::start() {
  core_.connections.emplace(this, weak_from_this());
  std::shared_ptr<Connection> self = shared_from_this();
  asio::co_spawn(
      core_.io, [self]() -> Awaitable<void> { return self->serve(); },
      [self](std::exception_ptr error) {
        try {
          if (error) {
            std::rethrow_exception(error);
          }
        } catch (const std::exception& fault) {
          log_error("a connection failed: {}", fault.what());
        }
        self->close();
      });
}

void Connection::close() {
  closed_ = true;
  error_code ignored;
  socket_.close(ignored);
  notify();
}

void Connection::begin_drain() {
  if (idle_) {
    close();
  }
  keep_alive_ = false;
}

Connection::Awaitable<void> Connection::wait(Clock::time_point deadline) {
  // Nothing is read while the input is full, so that the end of it would not be seen: look for it instead.
  const bool look = watching_ && !reading_ && !closed_;
  if (!woken_) {
    wake_.expires_at(look ? std::min(deadline, Clock::now() + kPeerCheck) : deadline);
    error_code ignored;
    co_await wake_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  woken_ = false;
  if (look && peer_has_closed()) {
    close();
  }
}

uint64_t Connection::client() const {
  boost::system::error_code ec;
  const auto peer = socket_.remote_endpoint(ec);
  return std::hash<std::string>()((ec ? "" : peer.address().to_string()) + "\n" + request_.bearer);
}

bool Connection::peer_has_closed() {
#ifdef POLLRDHUP
  constexpr short kClosed = POLLRDHUP | POLLHUP | POLLERR;
#else
  constexpr short kClosed = POLLHUP | POLLERR;
#endif
  pollfd socket{socket_.native_handle(), static_cast<short>(kClosed), 0};
  return socket_.is_open() && ::poll(&socket, 1, 0) > 0 && (socket.revents & kClosed) != 0;
}

void Connection::notify() {
  woken_ = true;
  wake_.cancel();
}

void Connection::watch_for_end(bool on) {
  watching_ = on;
  if (on && ended_) {
    close();
  }
}

// Whether there is room for a body of which `bytes` are known to come or have come.
bool Connection::count_body(uint64_t bytes) {
  const uint64_t others = core_.body_bytes - body_bytes_;
  if (bytes <= body_bytes_) {
    return true;
  }
  if (others > 0 && others + bytes > core_.options.max_total_body_bytes) {  // one always has room
    return false;
  }
  core_.body_bytes = others + bytes;
  body_bytes_ = bytes;
  return true;
}

void Connection::release_body() {
  core_.body_bytes -= body_bytes_;
  body_bytes_ = 0;
}

// Keeps one read under way as long as there is room for what it brings.
void Connection::pump() {
  if (reading_ || ended_ || closed_ || input_.size() >= input_bound_) {
    return;
  }
  reading_ = true;
  std::shared_ptr<Connection> self = shared_from_this();
  socket_.async_read_some(asio::buffer(read_buffer_),
                          [self](const error_code& ec, size_t bytes) { self->on_read(ec, bytes); });
}

void Connection::on_read(const error_code& ec, size_t bytes) {
  reading_ = false;
  if (!ec) {
    input_.append(read_buffer_.data(), bytes);
    pump();
  } else {
    ended_ = true;
    if (watching_ || ec != asio::error::eof) {
      close();
    }
  }
  notify();
}

Connection::Awaitable<bool> Connection::on_worker(std::function<void()> work) {
  struct Task {
    std::function<void()> work;
    bool done = false;  // on the thread of run() only
    std::atomic<bool> wanted{true};
  };
  const auto task = std::make_shared<Task>();
  task->work = std::move(work);
  const std::weak_ptr<Connection> weak = weak_from_this();
  asio::io_context& io = core_.io;
  asio::post(core_.workers, [task, weak, &io] {
    if (task->wanted) {  // not for a client that has gone while it waited for a worker
      task->work();
    }
    asio::post(io, [task, weak] {
      task->done = true;
      if (const std::shared_ptr<Connection> self = weak.lock()) {
        self->notify();
      }
    });
  });
  while (!task->done && !closed_) {
    co_await wait(Clock::time_point::max());
  }
  task->wanted = false;
  co_return task->done && !closed_;
}

Connection::Awaitable<bool> Connection::write(std::string bytes) {
  const std::weak_ptr<Connection> weak = weak_from_this();
  for (size_t at = 0; at < bytes.size(); at += kWriteBytes) {
    if (closed_) {
      co_return false;
    }
    const uint64_t number = ++write_number_;
    write_deadline_.expires_after(core_.options.timeouts.write);
    write_deadline_.async_wait([weak, number](const error_code& ec) {
      const std::shared_ptr<Connection> self = weak.lock();
      if (!ec && self && self->write_number_ == number) {
        log_debug("a client did not read in time: closed");
        self->close();
      }
    });
    const asio::const_buffer piece(bytes.data() + at, std::min(kWriteBytes, bytes.size() - at));
    error_code failed;
    co_await asio::async_write(socket_, piece, asio::redirect_error(asio::use_awaitable, failed));
    ++write_number_;
    write_deadline_.cancel();
    if (failed) {
      close();
      co_return false;
    }
  }
  co_return true;
}

Framing Connection::framing(bool chunked) const {
  Framing framing;
  framing.http11 = request_.http11;
  framing.keep_alive = keep_alive_;
  framing.head = request_.method == "HEAD";
  framing.chunked = chunked;
  framing.allowed_origin = core_.access.allowed_origin;
  return framing;
}

Connection::Awaitable<bool> Connection::respond(const HttpResponse& response) {
  std::string bytes = serialize(response, framing(false));
  const bool written = co_await write(std::move(bytes));
  co_return written;
}

std::string Connection::stream_header(const HttpResponse& response) {
  const Framing chunked = framing(true);
  keep_alive_ =
      keep_alive_ && request_.http11;  // HTTP/1.0 knows the end of the body by the end of the connection
  return serialize(response, chunked);
}

std::string Connection::stream_piece(std::string_view data) const {
  return request_.http11 ? http_chunk(data) : std::string(data);
}

std::string_view Connection::stream_end() const {
  return request_.http11 ? http_last_chunk() : std::string_view();
}

Connection::Awaitable<void> Connection::serve() {
  pump();
  if (core_.connections.size() > core_.options.max_connections) {
    ApiError busy = shutting_down();
    busy.message = "This server has as many connections as it takes.";
    busy.code = "too_many_connections";
    busy.retry_after = 1;
    co_await refuse(busy);
  } else {
    while (!closed_) {
      const Got got = co_await read_request();
      if (got == Got::end) {
        break;
      }
      if (got == Got::request) {
        co_await dispatch();
      }
      release_body();
      if (!keep_alive_ || core_.draining) {
        linger_ = linger_ || !input_.empty();
        break;
      }
    }
  }
  if (linger_ && !closed_) {
    co_await linger();
  }
  close();
}

Connection::Awaitable<Connection::Got> Connection::refuse(const ApiError& error) {
  log_info("{} {} -> {}: {}", request_.method.empty() ? "-" : request_.method,
           request_.path.empty() ? "-" : printable(request_.path), error.status, error.message);
  keep_alive_ = false;
  linger_ = true;
  const HttpResponse response = route_error(match_.route, error);
  co_await respond(response);
  co_return Got::end;
}

// The next request, whole; or its answer where the header is enough for it.
Connection::Awaitable<Connection::Got> Connection::read_request() {
  const ServerTimeouts& timeouts = core_.options.timeouts;
  request_ = HttpRequest{};
  match_ = RouteMatch{};
  idle_ = true;
  HttpParser parser(HttpParser::Limits{core_.options.max_header_bytes, core_.options.max_body_bytes});
  Clock::time_point deadline = Clock::now() + timeouts.idle;
  while (!closed_) {
    if (idle_) {
      input_.erase(0, input_.find_first_not_of("\r\n"));  // blank lines between requests
      if (!input_.empty()) {
        idle_ = false;
        deadline = Clock::now() + timeouts.header;
      }
    }
    const HttpParser::State before = parser.state();
    const size_t taken = idle_ ? 0 : parser.feed(input_);
    input_.erase(0, taken);
    pump();
    if (parser.state() == HttpParser::State::failed) {
      const Got refused = co_await refuse(parser.error());
      co_return refused;
    }
    if (before == HttpParser::State::header && parser.state() != before) {
      const Got got = co_await on_header(parser);
      if (got != Got::request) {
        co_return got;
      }
    }
    if (!count_body(parser.body_bytes())) {
      const Got refused = co_await refuse(too_many_bytes());
      co_return refused;
    }
    if (parser.state() == HttpParser::State::done) {
      request_.body = std::move(parser.request().body);
      co_return Got::request;
    }
    if (taken > 0) {
      deadline = before == HttpParser::State::header && parser.state() == before
                     ? deadline
                     : Clock::now() + timeouts.body;
      continue;
    }
    if (input_.size() >= input_bound_) {
      const ApiError endless = bad_field("", "This is not a valid HTTP request: a line of it does not end.");
      const Got refused = co_await refuse(endless);
      co_return refused;
    }
    if (ended_ || (idle_ && core_.draining)) {
      co_return Got::end;
    }
    if (Clock::now() >= deadline) {
      if (idle_) {
        co_return Got::end;
      }
      ApiError late = bad_field("", "The request did not arrive in time.");
      late.status = 408;
      const Got refused = co_await refuse(late);
      co_return refused;
    }
    co_await wait(deadline);
  }
  co_return Got::end;
}

// Got::request: read on.
Connection::Awaitable<Connection::Got> Connection::on_header(HttpParser& parser) {
  request_ = std::move(parser.request());
  keep_alive_ = keep_alive_ && request_.keep_alive;
  match_ = match_route(request_.path);
  const std::optional<HttpResponse> settled = answer_from_header(request_, match_, core_.access);
  if (settled) {
    log_info("{} {} -> {}", request_.method, printable(request_.path), settled->status);
    if (request_.has_body) {  // it will not be read
      keep_alive_ = false;
      linger_ = true;
    }
    co_await respond(*settled);
    co_return keep_alive_ ? Got::answered : Got::end;
  }
  if (request_.expects_continue && request_.has_body && input_.empty()) {
    std::string interim = "HTTP/1.1 100 Continue\r\n\r\n";
    co_await write(std::move(interim));
  }
  co_return Got::request;
}

HttpResponse Connection::simple_answer() const {
  if (match_.route == Route::page) {
    return page_response();
  }
  if (match_.route == Route::openapi) {
    return openapi_response();
  }
  const std::shared_ptr<const ServedModel> model = core_.model();
  if (match_.route == Route::health) {
    const bool up = model && !core_.draining;
    HttpResponse response = json_response(up      ? R"({"status":"ok"})"
                                          : model ? R"({"status":"draining"})"
                                                  : R"({"status":"loading"})");
    response.status = up ? 200 : 503;
    if (!model) {
      response.headers.emplace_back("Retry-After", "2");
    }
    return response;
  }
  if (match_.route == Route::metrics) {
    HttpResponse response;
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = metrics_text(core_.counts, core_.connections.size(), model.get());
    return response;
  }
  if (!model) {
    return error_response(loading());
  }
  if (match_.route == Route::props) {
    return json_response(props_json(*model));
  }
  if (match_.route == Route::slots) {
    return json_response(slots_json(*model));
  }
  const ModelCard card{model->name, core_.created, model->engine->plan().context};
  if (match_.route == Route::model && match_.argument != card.id) {
    ApiError error;
    error.status = 404;
    error.message = fmt::format("The model '{}' does not exist; this server has '{}'.",
                                printable(match_.argument), card.id);
    error.param = "model";
    error.code = "model_not_found";
    return error_response(error);
  }
  const bool codex = request_.query.find("client_version=") != std::string::npos;
  return json_response(match_.route == Route::model ? model_json(card) : models_json(card, codex));
}

Connection::Awaitable<void> Connection::dispatch() {
  if (std::shared_ptr<Door> door = make_door(match_.route)) {
    co_await serve_answer(*this, std::move(door));
    co_return;
  }
  if (const BodyTool tool = body_tool(match_.route)) {
    co_await serve_body_tool(*this, tool);
    co_return;
  }
  const HttpResponse response = simple_answer();
  log_debug("{} {} -> {}", request_.method, printable(request_.path), response.status);
  co_await respond(response);
}

// A socket that is closed with unread bytes resets the connection, and the client may lose the answer: read
// on for a while.
Connection::Awaitable<void> Connection::linger() {
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  const Clock::time_point deadline = Clock::now() + core_.options.timeouts.linger;
  size_t dropped = 0;
  while (!ended_ && !closed_ && dropped < kMaxLingerBytes && Clock::now() < deadline) {
    dropped += input_.size();
    input_.clear();
    pump();
    co_await wait(deadline);
  }
}

}  // namespace lily
