// One API over the engine: what its requests mean and what its answers look like. serve_answer() does the
// rest, the same for all: workers, jobs, streams, keep-alive, clients that leave, the log. Private to
// src/server.
#pragma once

#include <boost/json/value.hpp>
#include <string>

#include "server/http_message.h"
#include "server/openai.h"
#include "server/server.h"

namespace lily {

// A request that was understood.
struct PreparedRequest {
  GenerationRequest generation;
  bool stream = false;
};

// Made for one request, which it may remember. Nothing here is called from two threads at once.
class Door {
 public:
  virtual ~Door() = default;
  // `id` is unique, without a prefix; `created` in seconds since 1970.
  virtual void begin(const std::string& id, int64_t created) = 0;
  virtual const std::string& id() const = 0;  // as clients and the log see it
  // On a worker's thread.
  virtual ApiResult<PreparedRequest> prepare(const boost::json::value& body, const ServedModel& model) = 0;

  // What of the prompt need not be read again; before the first of what follows, unless a stream had to begin
  // while the request waited.
  virtual void started(const PromptReuse& reuse) { static_cast<void>(reuse); }

  // The body of an answer that is not streamed.
  virtual std::string whole(const Answer& answer, const Finished& finished) = 0;
  // Server-sent events, framed. stream_begin() comes once, before the first of the others.
  virtual std::string stream_begin() = 0;
  virtual std::string stream_delta(const Delta& delta) = 0;
  // How far reading the prompt is; empty when the client did not ask for it.
  virtual std::string stream_progress(const PromptProgress& progress) {
    static_cast<void>(progress);
    return {};
  }
  virtual std::string stream_end(const Finished& finished) = 0;
  virtual std::string stream_failure(const ApiError& error) = 0;  // the connection is closed after it
  virtual std::string stream_keep_alive() = 0;                    // in a long silence

  virtual HttpResponse error(const ApiError& error) const { return error_response(error); }
};

}  // namespace lily
