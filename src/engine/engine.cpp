#include "engine/engine.h"

#include <algorithm>
#include <thread>

#include "engine/mailbox.h"
#include "engine/runner.h"

namespace lily {
namespace {

Result<void> check_ids(std::string_view what, std::span<const int32_t> ids, uint32_t vocab) {
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<uint32_t>(id) >= vocab) {
      return fail(ErrorKind::invalid_input, "{}: expected token ids under {}, found {}", what, vocab, id);
    }
  }
  return {};
}

Result<void> check_request(const GenerationRequest& request, const Plan& plan) {
  if (request.prompt.empty())
    return fail(ErrorKind::invalid_input, "the prompt is empty: expected a token at least");
  if (request.prompt.size() >= plan.context) {
    return fail(ErrorKind::limit,
                "the prompt has {} tokens: the context of {} tokens must hold it and one more",
                request.prompt.size(), plan.context);
  }
  LILY_TRY_VOID(check_ids("prompt", request.prompt, plan.shape.vocab));
  for (const LogitBias& bias : request.logit_bias) {
    LILY_TRY_VOID(check_ids("logit_bias", std::span(&bias.token, 1), plan.shape.vocab));
  }
  if (request.sampling.mode == Sampling::Mode::none) {
    return fail(ErrorKind::invalid_input, "a request must sample: the mode is none");
  }
  if (request.logprobs.value_or(0) > Limits::kMaxTopLogprobs) {
    return fail(ErrorKind::invalid_input, "top_logprobs: expected at most {}, found {}",
                Limits::kMaxTopLogprobs, *request.logprobs);
  }
  return {};
}

class JobHandle final : public Job {
 public:
  JobHandle(std::shared_ptr<Mailbox> mailbox, std::shared_ptr<JobRecord> record)
      : mailbox_(std::move(mailbox)), record_(std::move(record)) {}
  ~JobHandle() override { JobHandle::cancel(); }
  JobHandle(const JobHandle&) = delete;
  JobHandle& operator=(const JobHandle&) = delete;
  bool cancel() override { return mailbox_->cancel(*record_); }

 private:
  std::shared_ptr<Mailbox> mailbox_;
  std::shared_ptr<JobRecord> record_;
};

class EngineImpl final : public Engine {
 public:
  EngineImpl(std::shared_ptr<Backend> backend, const Plan& plan, uint32_t queue)
      : backend_(std::move(backend)),
        plan_(plan),
        mailbox_(std::make_shared<Mailbox>(plan.sequences + queue)) {}
  ~EngineImpl() override {
    mailbox_->stop();
    if (thread_.joinable()) thread_.join();
  }
  EngineImpl(const EngineImpl&) = delete;
  EngineImpl& operator=(const EngineImpl&) = delete;

  Result<void> start(const Tokenizer& tokenizer, const EngineOptions& options) {
    LILY_TRY(runner_, Runner::create(*backend_, plan_, tokenizer, *mailbox_, options));
    thread_ = std::thread([this] { runner_->run(); });
    return {};
  }

  Result<std::unique_ptr<Job>> submit(GenerationRequest request, EventSink sink) override {
    LILY_TRY_VOID(check_request(request, plan_));
    auto record = std::make_shared<JobRecord>(std::move(request), std::move(sink));
    LILY_TRY_VOID(mailbox_->submit(record));
    return std::make_unique<JobHandle>(mailbox_, std::move(record));
  }

  EngineMetrics metrics() const override {
    EngineMetrics metrics = mailbox_->metrics();
    metrics.cache.disk = runner_->disk_metrics();
    return metrics;
  }
  const TokenMemory* memory() const override { return runner_->memory(); }
  const Plan& plan() const override { return plan_; }
  const DeviceInfo& device() const override { return backend_->device(); }

  void drain(double seconds) override {
    mailbox_->refuse_new_jobs();
    if (mailbox_->wait_until_idle(seconds)) return;
    mailbox_->end_all();
    // The device drops what it computes between two blocks: this ends soon.
    mailbox_->wait_until_idle(std::numeric_limits<double>::max());
  }

 private:
  // Destroyed in reverse: the thread has ended before the states go, and they before the backend.
  std::shared_ptr<Backend> backend_;
  const Plan plan_;
  std::shared_ptr<Mailbox> mailbox_;
  std::unique_ptr<Runner> runner_;
  std::thread thread_;
};

}  // namespace

std::string_view to_string(PromptReuse::Result result) {
  constexpr std::string_view kNames[] = {"off", "hit", "partial", "miss"};
  return kNames[static_cast<size_t>(result)];
}

std::string_view to_string(PromptReuse::Why why) {
  constexpr std::string_view kNames[] = {"all", "new", "parted", "dropped", "failed"};
  return kNames[static_cast<size_t>(why)];
}

Result<std::unique_ptr<Engine>> Engine::create(std::shared_ptr<Backend> backend, const Plan& plan,
                                               const Tokenizer& tokenizer, const EngineOptions& options) {
  if (options.queue > Limits::kMaxQueue) {
    return fail(ErrorKind::invalid_input, "queue: expected at most {} waiting requests, found {}",
                Limits::kMaxQueue, options.queue);
  }
  auto engine = std::make_unique<EngineImpl>(std::move(backend), plan, options.queue);
  LILY_TRY_VOID(engine->start(tokenizer, options));
  return engine;
}

}  // namespace lily
