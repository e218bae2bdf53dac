#include "server/answering.h"

#include <boost/asio/post.hpp>
#include <exception>
#include <optional>

#include "base/log.h"
#include "server/event_channel.h"
#include "server/json_fields.h"
#include "server/openai.h"
#include "text/tool_schemas.h"

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
  std::shared_ptr<Door> door;
  PreparedRequest request;
  bool log_prompts = false;
  std::string prompt_text;  // for the log, when it may have it
  std::optional<ApiError> error;

  void run();
  void work();
};

void Preparation::work() {
  ApiResult<boost::json::value> json = parse_body(body);
  body = std::string();
  ApiResult<PreparedRequest> prepared = json ? door->prepare(*json, *model) : fail(json.error());
  if (!prepared) {
    error = prepared.error();
    return;
  }
  request = std::move(*prepared);
  if (log_prompts) {
    prompt_text = model->tokenizer->decode(request.generation.prompt, false);
  }
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
  PromptReuse reuse;
  std::string finish = "left";  // until there is a job: its client left before
  Usage usage;
  Answer answer;  // of a stream only when its text is logged

  void end(const Finished& finished) {
    usage = finished.usage;
    finish = to_string(finished.reason);
  }
};

// Text of a conversation, on one line.
void log_text(const Door& door, std::string_view what, std::string_view text) {
  std::string escaped;
  append_json_escaped(escaped, text);
  log_info("{} {}: \"{}\"", door.id(), what, escaped);
}

void log_answer(const Door& door, const Answer& answer) {
  log_text(door, "reasoning", answer.reasoning);
  log_text(door, "content", answer.content);
  for (const ParsedCall& call : answer.calls) {
    log_text(door, "call", fmt::format("{}({})", call.name, call.arguments));
  }
}

// What was kept of a prompt and why not more: "partial(parted in turn 5 user)".
std::string describe(const PromptReuse& reuse) {
  if (reuse.result == PromptReuse::Result::off) {
    return std::string(to_string(reuse.result));
  }
  std::string text = fmt::format("{}({}", to_string(reuse.result), to_string(reuse.why));
  if (reuse.why == PromptReuse::Why::parted && !reuse.role.empty()) {
    text += fmt::format(" in turn {} {}", reuse.turn, reuse.role);
  }
  return text + (reuse.from_disk ? ")+disk" : ")");
}

void log_request(const std::string& id, const Outcome& outcome, Clock::time_point since) {
  const double seconds = std::chrono::duration<double>(Clock::now() - since).count();
  const Usage& usage = outcome.usage;
  // Where the prompt parts from what is kept, and the tokens there: the kept one and its own.
  const PromptReuse& reuse = outcome.reuse;
  const std::string parted = reuse.kept_token < 0 ? ""
                                                  : fmt::format(" parted={}:{}/{}", reuse.known,
                                                                reuse.kept_token, reuse.prompt_token);
  log_info(
      "{} {}{} finish={} prompt={} cached={} cache={}{} recalled={} completion={} reasoning={} queue={:.3f}s "
      "prefill={:.3f}s decode={:.3f}s total={:.3f}s",
      id, outcome.status, outcome.stream ? " stream" : "", outcome.finish, outcome.prompt_tokens,
      reuse.cached, describe(reuse), parted, reuse.recalled, usage.completion_tokens, usage.reasoning_tokens,
      usage.queue_seconds, usage.prefill_seconds, usage.decode_seconds, seconds);
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
  bool cancel() { return job_->cancel(); }

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

std::string finish_of(const ApiError& error) { return error.code.empty() ? "error" : error.code; }

Awaitable<void> respond_error(Connection& connection, const Door& door, const ApiError& error,
                              Outcome& outcome) {
  outcome.status = error.status;
  outcome.finish = finish_of(error);
  const HttpResponse response = door.error(error);
  co_await connection.respond(response);
}

// The server-sent events of one answer. The header waits for the first text, so that a job which fails before
// still gets its HTTP status; a long silence ends that wait.
class EventStream {
 public:
  EventStream(Connection& connection, Door& door) : connection_(connection), door_(door) {}
  bool open() const { return open_; }

  // What `batch` brings, ready to be written; empty when it brings nothing to send.
  std::string frame(const EventChannel::Batch& batch) {
    std::string events = batch.progress ? door_.stream_progress(*batch.progress) : std::string();
    const bool begins = !open_ && (brings_text(batch) || !events.empty());
    const std::string begin = begins ? door_.stream_begin() : std::string();
    for (const Delta& delta : batch.deltas) {
      events += door_.stream_delta(delta);
    }
    if (batch.finished) {
      events += door_.stream_end(*batch.finished);
    } else if (batch.failed) {
      events += door_.stream_failure(from_error(*batch.failed));
      connection_.close_after_answer();
    }
    std::string out = framed(begin + events);
    if (batch.finished || batch.failed) {
      out += connection_.stream_end();
    }
    return out;
  }
  std::string keep_alive() {
    std::string begin = open_ ? std::string() : door_.stream_begin();
    return framed(begin + door_.stream_keep_alive());
  }

 private:
  static bool brings_text(const EventChannel::Batch& batch) {
    return !batch.deltas.empty() || batch.finished || batch.failed;
  }
  std::string framed(const std::string& events) {
    if (events.empty()) {
      return {};
    }
    if (open_) {
      return connection_.stream_piece(events);
    }
    open_ = true;
    HttpResponse header;
    header.content_type = "text/event-stream; charset=utf-8";
    header.headers.emplace_back("Cache-Control", "no-cache");
    header.headers.emplace_back("X-Accel-Buffering", "no");
    const std::string head = connection_.stream_header(header);
    return head + connection_.stream_piece(events);
  }
  Connection& connection_;
  Door& door_;
  bool open_ = false;
};

Awaitable<void> stream_answer(Connection& connection, Generation& generation, Door& door, Outcome& outcome) {
  EventStream stream(connection, door);
  const std::chrono::milliseconds keep_alive = connection.core().options.timeouts.keep_alive;
  Clock::time_point last = Clock::now();
  while (!connection.gone()) {
    EventChannel::Batch batch = generation.channel().take();
    if (batch.started) {
      door.started(batch.reuse);
      outcome.reuse = batch.reuse;
    }
    if (batch.failed) {
      const ApiError error = from_error(*batch.failed);
      if (!stream.open()) {
        co_await respond_error(connection, door, error, outcome);
        co_return;
      }
      outcome.finish = finish_of(error);
    }
    if (batch.finished) {
      outcome.end(*batch.finished);
    }
    std::string bytes = stream.frame(batch);
    if (bytes.empty() && Clock::now() >= last + keep_alive) {
      bytes = stream.keep_alive();
    }
    if (connection.core().options.log_prompts) {
      for (Delta& delta : batch.deltas) {
        outcome.answer.add(std::move(delta));
      }
    }
    if (!bytes.empty()) {
      const bool written = co_await connection.write(std::move(bytes));
      if (!written) {
        co_return;
      }
      last = Clock::now();
    }
    if (batch.finished || batch.failed) {
      co_return;
    }
    co_await connection.wait(last + keep_alive);
  }
}

Awaitable<void> whole_answer(Connection& connection, Generation& generation, Door& door, Outcome& outcome) {
  Answer& answer = outcome.answer;
  while (!connection.gone()) {
    EventChannel::Batch batch = generation.channel().take();
    if (batch.started) {
      door.started(batch.reuse);
      outcome.reuse = batch.reuse;
    }
    for (Delta& delta : batch.deltas) {
      answer.add(std::move(delta));
    }
    if (batch.failed) {
      const ApiError error = from_error(*batch.failed);
      co_await respond_error(connection, door, error, outcome);
      co_return;
    }
    if (batch.finished) {
      outcome.end(*batch.finished);
      const HttpResponse response = json_response(door.whole(answer, *batch.finished));
      co_await connection.respond(response);
      co_return;
    }
    co_await connection.wait(Clock::time_point::max());
  }
}

// Whose client has left: what became of the job, as the engine counts it. Its last event may not be here yet.
void settle(Generation& generation, Outcome& outcome) {
  const bool open = outcome.finish.empty();
  const bool cancelled = open && generation.cancel();
  const EventChannel::Batch rest = generation.channel().take();
  if (rest.overflowed) {
    outcome.finish = "slow_reader";
  } else if (cancelled) {
    outcome.finish = "cancelled";
  } else if (open && rest.finished) {
    outcome.end(*rest.finished);
  } else if (open) {
    outcome.finish = rest.failed ? finish_of(from_error(*rest.failed)) : "unread";
  }
}

Awaitable<void> run_job(Connection& connection, const std::shared_ptr<Preparation>& job, Outcome& outcome) {
  Door& door = *job->door;
  std::function<void()> work = [job] { job->run(); };
  const bool prepared = co_await connection.on_worker(std::move(work));
  connection.release_body();
  if (!prepared) {
    co_return;
  }
  if (job->error) {
    co_await respond_error(connection, door, *job->error, outcome);
    co_return;
  }
  if (connection.core().draining) {
    const ApiError error = shutting_down();
    co_await respond_error(connection, door, error, outcome);
    co_return;
  }
  if (job->log_prompts) {
    log_text(door, "prompt", job->prompt_text);
  }
  outcome.stream = job->request.stream;
  outcome.prompt_tokens = job->request.generation.prompt.size();
  job->request.generation.client = connection.client();
  Generation generation(connection);
  const Result<void> submitted = generation.submit(*job->model->engine, std::move(job->request.generation));
  if (!submitted) {
    const ApiError error = from_error(submitted.error());
    co_await respond_error(connection, door, error, outcome);
    co_return;
  }
  outcome.finish.clear();
  if (job->request.stream) {
    co_await stream_answer(connection, generation, door, outcome);
  } else {
    co_await whole_answer(connection, generation, door, outcome);
  }
  settle(generation, outcome);
  if (job->log_prompts) {
    log_answer(door, outcome.answer);
  }
}

}  // namespace

Awaitable<void> serve_answer(Connection& connection, std::shared_ptr<Door> door) {
  const Clock::time_point since = Clock::now();
  const std::shared_ptr<Preparation> job = std::make_shared<Preparation>();
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  door->begin(connection.core().new_id(), std::chrono::duration_cast<std::chrono::seconds>(now).count());
  job->door = door;
  job->model = connection.core().model();
  job->log_prompts = connection.core().options.log_prompts;
  Outcome outcome;
  if (!job->model) {
    const ApiError error = loading();
    co_await respond_error(connection, *door, error, outcome);
  } else if (connection.core().draining) {
    const ApiError error = shutting_down();
    co_await respond_error(connection, *door, error, outcome);
  } else {
    job->body = connection.take_body();
    connection.watch_for_end(true);
    co_await run_job(connection, job, outcome);
    connection.watch_for_end(false);
  }
  log_request(door->id(), outcome, since);
  const double seconds = std::chrono::duration<double>(Clock::now() - since).count();
  connection.core().counts.end({route_path(match_route(connection.request().path).route), outcome.status,
                                outcome.finish, seconds, outcome.usage});
}

}  // namespace lily
