// An Engine without a model: every job says what a script tells it to, one step at a time, on a thread of its
// own. For tests of what stands before the engine.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "engine/engine.h"

namespace lily::test {

struct FakeAnswer {
  uint32_t prefill_steps = 1;
  std::vector<Delta> deltas;  // one per step
  FinishReason reason = FinishReason::stop;
  std::optional<Error> error;  // instead of Finished
};

inline FakeAnswer say(std::string content, std::string reasoning = "") {
  FakeAnswer answer;
  if (!reasoning.empty()) {
    answer.deltas.push_back(Delta{std::move(reasoning), "", {}});
  }
  if (!content.empty()) {
    answer.deltas.push_back(Delta{"", std::move(content), {}});
  }
  return answer;
}

struct FakeEngineOptions {
  uint32_t parallel = 64;
  uint32_t queue = 64;
  uint32_t context = 4096;
  std::chrono::microseconds step{0};
};

struct FakeCounts {
  uint32_t submitted = 0, finished = 0, failed = 0;
  uint32_t cancelled_waiting = 0, cancelled_prefill = 0, cancelled_decode = 0;
  uint32_t running = 0, waiting = 0;
  uint32_t cancelled() const { return cancelled_waiting + cancelled_prefill + cancelled_decode; }
};

class FakeEngine : public Engine {
 public:
  using Script = std::function<FakeAnswer(const GenerationRequest&)>;

  explicit FakeEngine(Script script, FakeEngineOptions options = {})
      : script_(std::move(script)), options_(options) {
    PlanOptions plan;
    plan.context = options.context;
    plan_ = *make_plan(kTiny, plan);
    thread_ = std::thread([this] { loop(); });
  }
  ~FakeEngine() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  Result<std::unique_ptr<Job>> submit(GenerationRequest request, EventSink sink) override {
    FakeAnswer answer = script_(request);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (draining_) {
      return fail(ErrorKind::cancelled, "draining");
    }
    if (running_.size() >= options_.parallel && waiting_.size() >= options_.queue) {
      return fail(ErrorKind::limit, "the queue is full: {} requests wait", waiting_.size());
    }
    auto state = std::make_shared<State>();
    state->sink = std::move(sink);
    state->answer = std::move(answer);
    state->prompt_tokens = static_cast<uint32_t>(request.prompt.size());
    last_ = std::move(request);
    ++counts_.submitted;
    waiting_.push_back(state);
    changed_.notify_all();
    return std::unique_ptr<Job>(new Handle(*this, state));
  }
  EngineMetrics metrics() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    EngineMetrics metrics;
    metrics.running = static_cast<uint32_t>(running_.size());
    metrics.waiting = static_cast<uint32_t>(waiting_.size());
    metrics.jobs_finished = counts_.finished;
    metrics.jobs_failed = counts_.failed;
    metrics.jobs_cancelled = counts_.cancelled();
    return metrics;
  }
  const Plan& plan() const override { return plan_; }
  const DeviceInfo& device() const override { return device_; }
  void drain(double seconds) override {
    std::unique_lock<std::mutex> lock(mutex_);
    draining_ = true;
    changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                      [this] { return running_.empty() && waiting_.empty(); });
    for (auto* list : {&running_, &waiting_}) {
      for (const auto& state : *list) {
        state->sink(Failed{Error{ErrorKind::cancelled, "the engine stops", {}}});
        state->over = true;
        ++counts_.failed;
      }
      list->clear();
    }
  }

  // No job makes a step while held.
  void hold(bool on) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      held_ = on;
    }
    changed_.notify_all();
  }
  FakeCounts counts() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    FakeCounts counts = counts_;
    counts.running = static_cast<uint32_t>(running_.size());
    counts.waiting = static_cast<uint32_t>(waiting_.size());
    return counts;
  }
  GenerationRequest last() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return last_;
  }
  // Until `holds(counts())`; false after a minute.
  bool wait_for(const std::function<bool(const FakeCounts&)>& holds) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!holds(counts())) {
      if (std::chrono::steady_clock::now() > deadline) {
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

 private:
  struct State {
    EventSink sink;
    FakeAnswer answer;
    uint32_t prompt_tokens = 0;
    uint32_t prefilled = 0;
    size_t said = 0;
    uint32_t thought = 0;
    bool over = false;
    bool cancelled = false;
  };
  using States = std::deque<std::shared_ptr<State>>;

  class Handle : public Job {
   public:
    Handle(FakeEngine& engine, std::shared_ptr<State> state) : engine_(engine), state_(std::move(state)) {}
    ~Handle() override { Handle::cancel(); }
    bool cancel() override { return engine_.cancel(state_); }

   private:
    FakeEngine& engine_;
    std::shared_ptr<State> state_;
  };

  bool cancel(const std::shared_ptr<State>& state) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state->over) {
      return state->cancelled;
    }
    state->over = state->cancelled = true;
    const auto waits = std::find(waiting_.begin(), waiting_.end(), state);
    if (waits != waiting_.end()) {
      ++counts_.cancelled_waiting;
      waiting_.erase(waits);
    } else {
      ++(state->said == 0 ? counts_.cancelled_prefill : counts_.cancelled_decode);
      running_.erase(std::find(running_.begin(), running_.end(), state));
    }
    changed_.notify_all();
    return true;
  }

  // One step of one job; true: it is over. With the lock: a cancelled job sees no event after cancel().
  bool step(State& state) {
    if (state.prefilled < state.answer.prefill_steps) {
      ++state.prefilled;
      state.sink(PromptProgress{state.prefilled, state.answer.prefill_steps});
      return false;
    }
    if (state.said < state.answer.deltas.size()) {
      const Delta& delta = state.answer.deltas[state.said++];
      state.thought += delta.reasoning.empty() ? 0 : 1;
      state.sink(delta);
      return false;
    }
    state.over = true;
    if (state.answer.error) {
      ++counts_.failed;
      state.sink(Failed{*state.answer.error});
      return true;
    }
    ++counts_.finished;
    Usage usage;
    usage.prompt_tokens = state.prompt_tokens;
    usage.completion_tokens = static_cast<uint32_t>(state.said) + 1;
    usage.reasoning_tokens = state.thought;
    state.sink(Finished{state.answer.reason, "", usage});
    return true;
  }

  void loop() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] {
        return stopping_ || (!held_ && (!running_.empty() || (!waiting_.empty() && options_.parallel > 0)));
      });
      if (stopping_) {
        return;
      }
      while (running_.size() < options_.parallel && !waiting_.empty()) {
        running_.push_back(waiting_.front());
        waiting_.pop_front();
        running_.back()->sink(Started{});
      }
      States left;
      for (const auto& state : running_) {
        if (!step(*state)) {
          left.push_back(state);
        }
      }
      running_ = std::move(left);
      changed_.notify_all();
      if (options_.step.count() > 0) {
        changed_.wait_for(lock, options_.step, [this] { return stopping_; });
      } else {
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
      }
    }
  }

  const Script script_;
  const FakeEngineOptions options_;
  Plan plan_{};
  DeviceInfo device_{"fake", "no device", 0, 0, {}};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  States waiting_, running_;
  FakeCounts counts_;
  GenerationRequest last_;
  bool held_ = false, draining_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace lily::test
