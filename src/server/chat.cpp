#include "server/chat.h"

#include <chrono>

#include "server/jobs.h"
#include "server/sse.h"

namespace lily {
namespace {

class ChatDoor final : public Door {
 public:
  void begin(const std::string& id, int64_t created) override {
    head_.id = "chatcmpl-" + id;
    head_.created = created;
  }
  const std::string& id() const override { return head_.id; }

  ApiResult<PreparedRequest> prepare(const boost::json::value& body, const ServedModel& model) override {
    LILY_TRY(const ChatRequest request, parse_chat_request(body));
    LILY_TRY(GenerationRequest made, make_generation(request, model));
    head_.model = request.model.empty() ? model.name : request.model;
    head_.usage = request.include_usage;
    head_.logprobs = request.logprobs.has_value();
    head_.functions = request.functions;
    head_.reasoning_twice = model.reasoning_twice;
    progress_ = request.progress;
    return PreparedRequest{std::move(made), request.stream};
  }

  void started(const PromptReuse& reuse) override {
    cached_ = reuse.cached;
    started_ = Clock::now();
  }

  std::string whole(const Answer& answer, const Finished& finished) override {
    return completion_json(head_, answer, finished);
  }
  std::string stream_begin() override { return sse_data(role_chunk(head_)); }
  std::string stream_delta(const Delta& delta) override {
    if (!delta.call) {
      return sse_data(delta_chunk(head_, delta));
    }
    std::string events;
    for (const std::string& chunk : call_chunks(head_, *delta.call)) {
      events += sse_data(chunk);
    }
    return events;
  }
  std::string stream_end(const Finished& finished) override {
    std::string events = sse_data(finish_chunk(head_, finished));
    if (head_.usage) {
      events += sse_data(usage_chunk(head_, finished.usage));
    }
    return events + sse_done();
  }
  std::string stream_progress(const PromptProgress& progress) override {
    if (!progress_) {
      return {};
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
    return sse_data(progress_chunk(head_, progress, cached_, seconds));
  }
  std::string stream_failure(const ApiError& error) override { return sse_data(to_json(error)); }
  std::string stream_keep_alive() override { return sse_comment("keep-alive"); }

 private:
  using Clock = std::chrono::steady_clock;
  AnswerHead head_;
  bool progress_ = false;
  uint32_t cached_ = 0;
  Clock::time_point started_ = Clock::now();
};

}  // namespace

std::shared_ptr<Door> make_chat_door() { return std::make_shared<ChatDoor>(); }

}  // namespace lily
