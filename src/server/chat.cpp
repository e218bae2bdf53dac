#include "server/chat.h"

#include <boost/asio/post.hpp>
#include <exception>
#include <optional>

#include "base/log.h"
#include "server/event_channel.h"
#include "server/jobs.h"
#include "server/json_fields.h"
#include "server/openai.h"
#include "server/sse.h"

namespace lily {
namespace {

namespace asio = boost::asio;
template <class T>
using Awaitable = Connection::Awaitable<T>;
using Clock = Connection::Clock;

// One request on its way through the pool of workers, which owns it until it is done.
struct Preparation {
  std::string body;
  std::shared_ptr<const ServedModel> model;
  AnswerHead head;
  bool stream = false;
  GenerationRequest generation;
  std::optional<ApiError> error;

  void run();
  void work();
};

void Preparation::work() {
  ApiResult<boost::json::value> json = parse_body(body);
  body = std::string();
  if (!json) {
    error = json.error();
    return;
  }
  ApiResult<ChatRequest> request = parse_chat_request(*json);
  if (!request) {
    error = request.error();
    return;
  }
  const Plan& plan = model->engine->plan();
  ApiResult<GenerationRequest> made =
      make_generation(*request, *model->tokenizer, model->generation, {plan.context, plan.shape.vocab});
  if (!made) {
    error = made.error();
    return;
  }
  generation = std::move(*made);
  stream = request->stream;
  head.model = request->model.empty() ? model->name : request->model;
  head.usage = request->include_usage;
  head.logprobs = request->logprobs.has_value();
}

// The edge where a fault of lily's own becomes the failure of one request.
void Preparation::run() {
  try {
    work();
  } catch (const std::exception& fault) {
    error =
        from_error(Error{ErrorKind::internal, fmt::format("preparing the request: {}", fault.what()), {}});
  }
}

// What the log line of a request says.
struct Outcome {
  unsigned status = 200;
  bool stream = false;
  size_t prompt_tokens = 0;
  std::string finish = "cancelled";
  Usage usage;
};

void log_request(const std::string& id, const Outcome& outcome, Clock::time_point since) {
  const double seconds = std::chrono::duration<double>(Clock::now() - since).count();
  const Usage& usage = outcome.usage;
  log_info(
      "{} {}{} finish={} prompt={} cached={} completion={} reasoning={} queue={:.3f}s prefill={:.3f}s "
      "decode={:.3f}s total={:.3f}s",
      id, outcome.status, outcome.stream ? " stream" : "", outcome.finish, outcome.prompt_tokens,
      usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens, usage.queue_seconds,
      usage.prefill_seconds, usage.decode_seconds, seconds);
}

// A submitted job and its events; its end is the end of both.
class Generation {
 public:
  explicit Generation(Connection& connection)
      : channel_(
            std::make_shared<EventChannel>(waker(connection), connection.core().options.max_unread_bytes)) {}
  ~Generation() { channel_->close(); }
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  Result<void> submit(Engine& engine, GenerationRequest request) {
    const std::shared_ptr<EventChannel> channel = channel_;
    Result<std::unique_ptr<Job>> job =
        engine.submit(std::move(request), [channel](Event event) { channel->push(std::move(event)); });
    if (!job) {
      return fail(std::move(job).error());
    }
    job_ = std::move(*job);
    return {};
  }
  EventChannel& channel() { return *channel_; }

 private:
  static std::function<void(bool)> waker(Connection& connection) {
    asio::io_context& io = connection.core().io;
    const std::weak_ptr<Connection> weak = connection.weak_from_this();
    return [&io, weak](bool overflowed) {
      asio::post(io, [weak, overflowed] {
        const std::shared_ptr<Connection> alive = weak.lock();
        if (alive && overflowed) {
          alive->close();  // it may be in the middle of a write that does not end
        } else if (alive) {
          alive->notify();
        }
      });
    };
  }
  std::shared_ptr<EventChannel> channel_;
  std::unique_ptr<Job> job_;
};

Awaitable<void> respond_error(Connection& connection, const ApiError& error, Outcome& outcome) {
  outcome.status = error.status;
  outcome.finish = error.code.empty() ? "error" : error.code;
  const HttpResponse response = error_response(error);
  co_await connection.respond(response);
}

// The server-sent events of one answer. The header waits for the first text, so that a job which fails before
// still gets its HTTP status; a long silence ends that wait.
class EventStream {
 public:
  EventStream(Connection& connection, const AnswerHead& head) : connection_(connection), head_(head) {}
  bool open() const { return open_; }

  // What `batch` brings, ready to be written; empty when it brings nothing to send.
  std::string frame(const EventChannel::Batch& batch) {
    std::string events;
    for (const Delta& delta : batch.deltas) {
      if (!delta.call) {
        events += sse_data(delta_chunk(head_, delta));
        continue;
      }
      for (const std::string& chunk : call_chunks(head_, *delta.call)) {
        events += sse_data(chunk);
      }
    }
    if (batch.finished) {
      events += sse_data(finish_chunk(head_, batch.finished->reason));
      if (head_.usage) {
        events += sse_data(usage_chunk(head_, batch.finished->usage));
      }
      events += sse_done();
    } else if (batch.failed) {
      events += sse_data(to_json(from_error(*batch.failed)));
      connection_.close_after_answer();
    }
    std::string out = events.empty() ? std::string() : framed(events);
    if (batch.finished || batch.failed) {
      out += connection_.stream_end();
    }
    return out;
  }
  std::string comment() { return framed(sse_comment("keep-alive")); }

 private:
  std::string framed(const std::string& events) {
    if (open_) {
      return connection_.stream_piece(events);
    }
    open_ = true;
    HttpResponse header;
    header.content_type = "text/event-stream; charset=utf-8";
    header.headers.emplace_back("Cache-Control", "no-cache");
    header.headers.emplace_back("X-Accel-Buffering", "no");
    return connection_.stream_header(header) + connection_.stream_piece(sse_data(role_chunk(head_)) + events);
  }
  Connection& connection_;
  const AnswerHead& head_;
  bool open_ = false;
};

Awaitable<void> stream_answer(Connection& connection, Generation& generation, const AnswerHead& head,
                              Outcome& outcome) {
  EventStream stream(connection, head);
  const std::chrono::milliseconds keep_alive = connection.core().options.timeouts.keep_alive;
  Clock::time_point last = Clock::now();
  while (!connection.gone()) {
    EventChannel::Batch batch = generation.channel().take();
    if (batch.failed) {
      const ApiError error = from_error(*batch.failed);
      if (!stream.open()) {
        co_await respond_error(connection, error, outcome);
        co_return;
      }
      outcome.finish = error.code.empty() ? "error" : error.code;
    }
    std::string bytes = stream.frame(batch);
    if (bytes.empty() && Clock::now() >= last + keep_alive) {
      bytes = stream.comment();
    }
    if (!bytes.empty()) {
      const bool written = co_await connection.write(std::move(bytes));
      if (!written) {
        co_return;
      }
      last = Clock::now();
    }
    if (batch.finished) {
      outcome.usage = batch.finished->usage;
      outcome.finish = to_string(batch.finished->reason);
    }
    if (batch.finished || batch.failed) {
      co_return;
    }
    co_await connection.wait(last + keep_alive);
  }
}

Awaitable<void> whole_answer(Connection& connection, Generation& generation, const AnswerHead& head,
                             Outcome& outcome) {
  Answer answer;
  while (!connection.gone()) {
    EventChannel::Batch batch = generation.channel().take();
    for (Delta& delta : batch.deltas) {
      answer.add(std::move(delta));
    }
    if (batch.failed) {
      const ApiError error = from_error(*batch.failed);
      co_await respond_error(connection, error, outcome);
      co_return;
    }
    if (batch.finished) {
      outcome.usage = batch.finished->usage;
      const HttpResponse response = json_response(completion_json(head, answer, *batch.finished));
      const bool written = co_await connection.respond(response);
      if (written) {
        outcome.finish = to_string(batch.finished->reason);
      }
      co_return;
    }
    co_await connection.wait(Clock::time_point::max());
  }
}

Awaitable<void> run_job(Connection& connection, const std::shared_ptr<Preparation>& job, Outcome& outcome) {
  std::function<void()> work = [job] { job->run(); };
  const bool prepared = co_await connection.on_worker(std::move(work));
  if (!prepared) {
    co_return;
  }
  if (job->error) {
    co_await respond_error(connection, *job->error, outcome);
    co_return;
  }
  if (connection.core().draining) {
    const ApiError error = shutting_down();
    co_await respond_error(connection, error, outcome);
    co_return;
  }
  outcome.stream = job->stream;
  outcome.prompt_tokens = job->generation.prompt.size();
  Generation generation(connection);
  const Result<void> submitted = generation.submit(*job->model->engine, std::move(job->generation));
  if (!submitted) {
    const ApiError error = from_error(submitted.error());
    co_await respond_error(connection, error, outcome);
    co_return;
  }
  if (job->stream) {
    co_await stream_answer(connection, generation, job->head, outcome);
  } else {
    co_await whole_answer(connection, generation, job->head, outcome);
  }
  if (generation.channel().take().overflowed) {
    outcome.finish = "slow_reader";
  }
}

}  // namespace

Awaitable<void> serve_chat(Connection& connection) {
  const Clock::time_point since = Clock::now();
  const std::shared_ptr<Preparation> job = std::make_shared<Preparation>();
  job->head.id = connection.core().new_id("chatcmpl-");
  job->head.created =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  job->model = connection.core().model();
  Outcome outcome;
  if (!job->model) {
    const ApiError error = loading();
    co_await respond_error(connection, error, outcome);
  } else if (connection.core().draining) {
    const ApiError error = shutting_down();
    co_await respond_error(connection, error, outcome);
  } else {
    job->body = connection.take_body();
    connection.watch_for_end(true);
    co_await run_job(connection, job, outcome);
    connection.watch_for_end(false);
  }
  log_request(job->head.id, outcome, since);
}

}  // namespace lily
