// Jobs that end before their time: cancelled by the owner at every stage, by drain(), by the end of the
// engine.
#include <gmock/gmock.h>

#include <future>
#include <random>

#include "engine/generation.h"
#include "tests/unit/engine/collector.h"

namespace lily::test {
namespace {

void wait_idle(const Engine& engine) {
  for (int i = 0; i < 20000 && engine.metrics().running + engine.metrics().waiting > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(engine.metrics().running + engine.metrics().waiting, 0U);
}

TEST_F(EngineTest, CancelWhileQueued) {
  control->pass_time = std::chrono::milliseconds(1);
  start({.context = 4096, .sequences = 1, .chunk = 16});
  Collector running, queued;
  const auto first = submit(request(3, 0), running);
  ASSERT_TRUE(running.wait_for<Delta>());
  const auto second = submit(request(3, 0), queued);
  second->cancel();
  EXPECT_EQ(engine->metrics().waiting, 0U);
  EXPECT_EQ(engine->metrics().jobs_cancelled, 1U);
  first->cancel();
  wait_idle(*engine);
  EXPECT_THAT(queued.events(), testing::IsEmpty());
  engine.reset();
  // The queued job never reached the device.
  for (const SeenPass& pass : control->passes()) EXPECT_EQ(pass.size(), 1U);
  EXPECT_EQ(control->states_made, 1);
}

TEST_F(EngineTest, AnAnswerWhoseTimeIsOverEndsWithWhatThereIs) {
  control->pass_time = std::chrono::milliseconds(1);
  start({.context = 65536, .sequences = 2, .chunk = 16});
  GenerationRequest asked = request(3, 0);
  asked.max_seconds = 0.5;  // enough for a first token on a machine that is busy
  Collector events, other;
  const auto companion = submit(request(3, 0), other);
  const auto job = submit(asked, events);
  ASSERT_TRUE(events.wait_end());
  ASSERT_TRUE(events.finished());
  EXPECT_EQ(events.finished()->reason, FinishReason::length);
  EXPECT_GT(events.finished()->usage.completion_tokens, 0U);
  EXPECT_FALSE(events.content().empty());
  events.expect_order();
  ASSERT_TRUE(other.wait_for<Delta>(other.all<Delta>().size() + 3));  // the other one goes on
  companion->cancel();
  wait_idle(*engine);
  EXPECT_EQ(engine->metrics().jobs_finished, 1U);
}

TEST_F(EngineTest, TimeThatIsOverBeforeTheFirstTokenIsAFailure) {
  control->pass_time = std::chrono::milliseconds(2);
  start({.context = 65536, .sequences = 1, .chunk = 16});
  Collector running, reading, waiting;
  GenerationRequest long_prompt = request(60000, 1);
  long_prompt.max_seconds = 0.5;
  const auto first = submit(long_prompt, reading);
  GenerationRequest queued = request(3, 1);
  queued.max_seconds = 0.05;
  const auto second = submit(queued, waiting);
  ASSERT_TRUE(waiting.wait_end());
  ASSERT_TRUE(waiting.failed());
  EXPECT_EQ(waiting.failed()->kind, ErrorKind::timeout);
  EXPECT_THAT(waiting.failed()->message, testing::HasSubstr("still waiting"));
  ASSERT_TRUE(reading.wait_end());
  ASSERT_TRUE(reading.failed());
  EXPECT_THAT(reading.failed()->message, testing::HasSubstr("still being read when its 0.5 seconds"));
  const auto third = submit(request(3, 2), running);  // the place is free again
  ASSERT_TRUE(running.wait_end());
  EXPECT_TRUE(running.finished());
  wait_idle(*engine);
  EXPECT_EQ(engine->metrics().jobs_failed, 2U);
}

TEST_F(EngineTest, MetricsTellHowFarEachSequenceIs) {
  control->pass_time = std::chrono::milliseconds(1);
  start({.context = 4096, .sequences = 2, .chunk = 16});
  Collector events;
  const auto job = submit(request(40, 4000), events);
  ASSERT_TRUE(events.wait_for<Delta>(3));
  const std::vector<SequenceMetrics> running = engine->metrics().sequences;
  ASSERT_EQ(running.size(), 1U);
  EXPECT_EQ(running[0].job, 1U);
  EXPECT_EQ(running[0].prompt_tokens, 40U);
  EXPECT_EQ(running[0].read_tokens, 40U);
  EXPECT_GE(running[0].sampled_tokens, 2U);
  EXPECT_EQ(running[0].max_tokens, 4000U);
  job->cancel();
  wait_idle(*engine);
  for (int i = 0; i < 20000 && !engine->metrics().sequences.empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(engine->metrics().sequences.empty());
}

TEST_F(EngineTest, CancelInPrefillStopsWithinOneStep) {
  control->pass_time = std::chrono::milliseconds(2);
  start({.context = 65536, .sequences = 2, .chunk = 16});
  Collector other, reading;
  const auto companion = submit(request(3, 0), other);
  ASSERT_TRUE(other.wait_for<Delta>());
  const auto job = submit(request(60000, 1), reading);
  ASSERT_TRUE(reading.wait_for<PromptProgress>(3));
  job->cancel();
  const size_t before = control->passes().size();
  ASSERT_TRUE(other.wait_for<Delta>(other.all<Delta>().size() + 10));
  const auto passes = control->passes();
  size_t chunks_after = 0;
  for (size_t i = before; i < passes.size(); ++i) {
    for (const SeenSlice& slice : passes[i]) chunks_after += slice.decode ? 0 : 1;
  }
  EXPECT_LE(chunks_after, 1U);  // the one that was being submitted
  EXPECT_TRUE(reading.all<Finished>().empty());
  EXPECT_TRUE(reading.all<Failed>().empty());
  const size_t seen = reading.events().size();
  ASSERT_TRUE(other.wait_for<Delta>(other.all<Delta>().size() + 3));
  EXPECT_EQ(reading.events().size(), seen);
  companion->cancel();
  wait_idle(*engine);
  EXPECT_EQ(engine->metrics().jobs_cancelled, 2U);
}

TEST_F(EngineTest, CancelInDecodeByDroppingTheHandle) {
  control->pass_time = std::chrono::milliseconds(1);
  start({.context = 65536, .sequences = 2, .chunk = 16});
  Collector events;
  auto job = submit(request(3, 0), events);
  ASSERT_TRUE(events.wait_for<Delta>(5));
  job.reset();
  wait_idle(*engine);
  const size_t passes = control->passes().size();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(control->passes().size(), passes);  // the device rests
  EXPECT_EQ(engine->metrics().jobs_cancelled, 1U);
  EXPECT_EQ(engine->metrics().jobs_finished, 0U);
}

// A job alone on the device is dropped in the middle of a pass, not at its end.
TEST_F(EngineTest, CancelBetweenSubmitAndCollectDropsAPassNobodyWants) {
  control->pass_time = std::chrono::minutes(5);
  start();
  Collector events;
  auto job = submit(request(3, 0), events);
  while (control->passes().size() < 2) std::this_thread::yield();
  job->cancel();
  wait_idle(*engine);
  EXPECT_EQ(control->passes_cancelled, 2);
  EXPECT_TRUE(events.all<Delta>().empty());
  // The dropped state is replaced; the next request works.
  control->pass_time = std::chrono::microseconds(0);
  Collector next;
  const auto again = submit(request(3, 3), next);
  ASSERT_TRUE(next.wait_end());
  EXPECT_TRUE(next.finished());
}

TEST_F(EngineTest, APassThatSomebodyWantsIsNotDropped) {
  control->pass_time = std::chrono::milliseconds(5);
  start({.context = 4096, .sequences = 2, .chunk = 16});
  Collector wanted, unwanted;
  const auto keep = submit(request(3, 0), wanted);
  const auto drop = submit(request(3, 0), unwanted);
  ASSERT_TRUE(unwanted.wait_for<Delta>(3));
  drop->cancel();
  ASSERT_TRUE(wanted.wait_for<Delta>(wanted.all<Delta>().size() + 3));
  EXPECT_EQ(control->passes_cancelled, 0);
}

TEST_F(EngineTest, CancelAfterTheEndChangesNothing) {
  start();
  Collector events;
  const auto job = submit(request(3, 3), events);
  ASSERT_TRUE(events.wait_end());
  wait_idle(*engine);
  job->cancel();
  EXPECT_TRUE(events.finished());
  EXPECT_EQ(engine->metrics().jobs_finished, 1U);
  EXPECT_EQ(engine->metrics().jobs_cancelled, 0U);
}

// As a server does it: the answer is whole, so the handle goes, while the engine is still about to count it.
TEST_F(EngineTest, AJobDroppedAtItsEndHasFinished) {
  start();
  std::promise<void> ended, dropped;
  auto job = engine->submit(request(3, 3), [&, gone = dropped.get_future().share()](const Event& event) {
    if (!std::holds_alternative<Finished>(event)) return;
    ended.set_value();
    gone.wait();
  });
  ASSERT_TRUE(job);
  ended.get_future().wait();
  job->reset();
  dropped.set_value();
  wait_idle(*engine);
  EXPECT_EQ(engine->metrics().jobs_finished, 1U);
  EXPECT_EQ(engine->metrics().jobs_cancelled, 0U);
}

TEST_F(EngineTest, DrainLetsRunningAndWaitingJobsFinish) {
  control->pass_time = std::chrono::milliseconds(1);
  start({.context = 256, .sequences = 2, .chunk = 16});
  std::vector<Collector> events(5);
  std::vector<std::unique_ptr<Job>> jobs;
  for (Collector& collector : events) jobs.push_back(submit(request(20, 10), collector));
  engine->drain(60);
  for (const Collector& collector : events) {
    collector.expect_order();
    EXPECT_TRUE(collector.finished());
  }
  const auto refused = engine->submit(request(3, 1), [](const Event&) { ADD_FAILURE(); });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::cancelled);
}

TEST_F(EngineTest, DrainTellsThoseItDoesNotWaitFor) {
  control->pass_time = std::chrono::minutes(5);
  start({.context = 256, .sequences = 1, .chunk = 16});
  Collector running, waiting;
  const auto first = submit(request(20, 10), running);
  const auto second = submit(request(20, 10), waiting);
  const auto begin = std::chrono::steady_clock::now();
  engine->drain(0.05);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
  for (const Collector* collector : {&running, &waiting}) {
    collector->expect_order();
    ASSERT_TRUE(collector->failed());
    EXPECT_EQ(collector->failed()->kind, ErrorKind::cancelled);
  }
  EXPECT_EQ(engine->metrics().jobs_cancelled, 2U);
}

TEST_F(EngineTest, TheEndOfTheEngineEndsItsJobs) {
  control->pass_time = std::chrono::minutes(5);
  start({.context = 256, .sequences = 1, .chunk = 16});
  Collector running, waiting;
  const auto first = submit(request(20, 10), running);
  const auto second = submit(request(20, 10), waiting);
  ASSERT_TRUE(running.wait_for<Started>());
  const auto begin = std::chrono::steady_clock::now();
  engine.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
  EXPECT_TRUE(running.failed());
  EXPECT_TRUE(waiting.failed());
  first->cancel();  // handles may outlive the engine
}

TEST_F(EngineTest, AnIdleEngineEnds) {
  start();
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  engine.reset();
  EXPECT_TRUE(control->passes().empty());
}

// 200 jobs of random kinds from several threads with random cancels: every job that its owner did not cancel
// ends once and with the answer that it would have had alone.
TEST_F(EngineTest, RandomJobsWithRandomCancels) {
  control->pass_time = std::chrono::microseconds(50);
  control->not_finite = [](const FakeControl::History& history) {
    return history[0] == 99 && history.size() > 30;
  };
  start({.context = 256, .sequences = 5, .chunk = 16}, 200);
  constexpr int kThreads = 4, kJobs = 50;
  std::vector<std::vector<Collector>> events(kThreads);
  for (auto& each : events) each = std::vector<Collector>(kJobs);  // a copy would share its events
  struct Asked {
    size_t prompt;
    uint32_t tokens;
    int32_t first;
    bool cancelled = false;
  };
  std::vector<std::vector<Asked>> asked(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      std::vector<std::unique_ptr<Job>> jobs;
      for (int j = 0; j < kJobs; ++j) {
        Asked a{.prompt = 1 + random() % 100,
                .tokens = 1 + static_cast<uint32_t>(random() % 40),
                .first = random() % 10 == 0 ? 99 : static_cast<int32_t>(random() % 50)};
        a.cancelled = random() % 3 == 0;
        jobs.push_back(submit(request(a.prompt, a.tokens, a.first), events[t][j]));
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 400));
        if (a.cancelled) {
          if (random() % 2 == 0)
            jobs.back()->cancel();
          else
            jobs.back().reset();
        }
        asked[t].push_back(a);
      }
      for (int j = 0; j < kJobs; ++j) {
        if (!asked[t][j].cancelled) {
          EXPECT_TRUE(events[t][j].wait_end());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  engine->drain(60);
  const EngineMetrics metrics = engine->metrics();
  EXPECT_EQ(metrics.jobs_finished + metrics.jobs_failed + metrics.jobs_cancelled, 200U);
  for (int t = 0; t < kThreads; ++t) {
    for (int j = 0; j < kJobs; ++j) {
      const Asked& a = asked[t][j];
      const Collector& seen = events[t][j];
      const auto ends = seen.all<Finished>().size() + seen.all<Failed>().size();
      EXPECT_LE(ends, 1U);
      if (a.cancelled) continue;
      seen.expect_order();
      // What the fake says after this prompt, from its definition.
      const GenerationRequest alone = request(a.prompt, a.tokens, a.first);
      std::vector<int32_t> history = alone.prompt;
      Generation generation(*tokenizer, alone, a.tokens);
      std::string expected;
      const bool fails = a.first == 99 && a.prompt + a.tokens - 1 > 30;
      for (uint32_t i = 0; i < a.tokens && !fails; ++i) {
        history.push_back(fake_next_token(history, 0));
        for (const Delta& delta : generation.push(history.back(), {}).deltas) expected += delta.content;
      }
      EXPECT_EQ(seen.failed().has_value(), fails);
      if (!fails) {
        EXPECT_EQ(seen.content(), expected);
      }
    }
  }
}

}  // namespace
}  // namespace lily::test
