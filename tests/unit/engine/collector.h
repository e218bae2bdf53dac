// What a test of the engine needs: a plan, an engine over the fake, and a sink that remembers.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "engine/engine.h"
#include "tests/support/fake_backend.h"
#include "tests/support/tiny_tokenizer.h"

namespace lily::test {

// The events of one job. Shared with its sink, so that it may outlive everything else.
class Collector {
 public:
  EventSink sink() {
    return [data = data_](Event event) {
      const std::lock_guard lock(data->mutex);
      data->events.push_back(std::move(event));
      data->changed.notify_all();
    };
  }
  // Waits until `count` events of type E came; false after a minute.
  template <class E>
  bool wait_for(size_t count = 1) {
    std::unique_lock lock(data_->mutex);
    return data_->changed.wait_for(lock, std::chrono::minutes(1), [&] { return count_of<E>() >= count; });
  }
  bool wait_end() {
    std::unique_lock lock(data_->mutex);
    return data_->changed.wait_for(lock, std::chrono::minutes(1),
                                   [&] { return count_of<Finished>() + count_of<Failed>() > 0; });
  }
  std::vector<Event> events() const {
    const std::lock_guard lock(data_->mutex);
    return data_->events;
  }
  template <class E>
  std::vector<E> all() const {
    std::vector<E> found;
    for (const Event& event : events()) {
      if (const E* e = std::get_if<E>(&event)) found.push_back(*e);
    }
    return found;
  }
  std::string content() const {
    std::string text;
    for (const Delta& delta : all<Delta>()) text += delta.content;
    return text;
  }
  std::string reasoning() const {
    std::string text;
    for (const Delta& delta : all<Delta>()) text += delta.reasoning;
    return text;
  }
  std::optional<Finished> finished() const {
    const auto found = all<Finished>();
    return found.empty() ? std::nullopt : std::optional(found.front());
  }
  std::optional<Error> failed() const {
    const auto found = all<Failed>();
    return found.empty() ? std::nullopt : std::optional(found.front().error);
  }
  // Started first, then progress and deltas, then one last event; nothing after it.
  void expect_order() const {
    const auto seen = events();
    ASSERT_FALSE(seen.empty());
    for (size_t i = 0; i < seen.size(); ++i) {
      const bool last = std::holds_alternative<Finished>(seen[i]) || std::holds_alternative<Failed>(seen[i]);
      EXPECT_EQ(last, i + 1 == seen.size()) << "event " << i << " of " << seen.size();
      if (std::holds_alternative<Started>(seen[i])) {
        EXPECT_EQ(i, 0U);
      }
      if (std::holds_alternative<Finished>(seen[i])) {
        EXPECT_TRUE(std::holds_alternative<Started>(seen[0]));
      }
      if (const auto* delta = std::get_if<Delta>(&seen[i])) {
        EXPECT_NE(delta->reasoning.empty(), delta->content.empty());
      }
    }
  }

 private:
  struct Data {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Event> events;
  };
  template <class E>
  size_t count_of() const {
    return static_cast<size_t>(std::ranges::count_if(
        data_->events, [](const Event& event) { return std::holds_alternative<E>(event); }));
  }
  std::shared_ptr<Data> data_ = std::make_shared<Data>();
};

class EngineTest : public testing::Test {
 protected:
  void TearDown() override {
    engine.reset();
    EXPECT_EQ(control->breaches(), std::vector<std::string>{});
    EXPECT_EQ(control->live_states(), 0);
  }

  // Makes the engine; set `control` and `words` before.
  void start(const PlanOptions& options = {.context = 256, .sequences = 4, .chunk = 16},
             uint32_t queue = 64) {
    Result<Plan> made = make_plan(kTiny, options);
    ASSERT_TRUE(made) << made.error().text();
    tokenizer = make_tiny_tokenizer(words);
    ASSERT_TRUE(tokenizer);
    auto created = Engine::create(
        std::make_unique<FakeBackend>(*made, control), *made, *tokenizer,
        EngineOptions{
            .queue = queue, .cache_bytes = cache_bytes, .disk = disk, .unsaved_seconds = unsaved_seconds});
    ASSERT_TRUE(created) << created.error().text();
    engine = *std::move(created);
  }

  static GenerationRequest request(size_t prompt, uint32_t max_tokens, int32_t first = 1) {
    GenerationRequest request;
    for (size_t i = 0; i < prompt; ++i) request.prompt.push_back(first + static_cast<int32_t>(i % 7));
    request.max_tokens = max_tokens;
    request.sampling.mode = Sampling::Mode::greedy;
    return request;
  }

  std::unique_ptr<Job> submit(GenerationRequest asked, Collector& collector) {
    auto job = engine->submit(std::move(asked), collector.sink());
    EXPECT_TRUE(job) << (job ? "" : job.error().text());
    return job ? *std::move(job) : nullptr;
  }

  // The same; once `read` tokens of the prompt are read the owner cancels it, from a thread of its own, and
  // `first` is called just before.
  std::unique_ptr<Job> submit_and_leave(
      GenerationRequest asked, Collector& collector, uint32_t read, std::function<void()> first = [] {}) {
    std::promise<Job*> made;
    auto job = engine->submit(std::move(asked), [own = made.get_future().share(), sink = collector.sink(),
                                                 read, first](Event event) {
      const auto* progress = std::get_if<PromptProgress>(&event);
      const bool leaves = progress != nullptr && progress->done == read;
      sink(std::move(event));
      if (!leaves) return;
      first();
      std::thread([&] { own.get()->cancel(); }).join();
    });
    EXPECT_TRUE(job) << (job ? "" : job.error().text());
    made.set_value(job ? job->get() : nullptr);
    return job ? *std::move(job) : nullptr;
  }

  // Makes the model say `ids` after a prompt of `prompt` tokens, then hashes.
  void say(size_t prompt, std::vector<int32_t> ids) {
    control->script = [=](const FakeControl::History& history) -> std::optional<int32_t> {
      const size_t i = history.size() - prompt;
      return i < ids.size() ? std::optional(ids[i]) : std::nullopt;
    };
  }
  static std::vector<int32_t> bytes(std::string_view text) {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  // The id of a word of `words`.
  int32_t word(const std::string& text) const {
    return kFirstWord + static_cast<int32_t>(std::ranges::find(words, text) - words.begin());
  }

  std::shared_ptr<FakeControl> control = std::make_shared<FakeControl>();
  uint64_t cache_bytes = 0;  // set before start()
  std::optional<DiskOptions> disk;
  double unsaved_seconds = 1e9;
  std::vector<std::string> words;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Engine> engine;
};

}  // namespace lily::test
