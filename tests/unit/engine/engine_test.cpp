#include "engine/engine.h"

#include <gmock/gmock.h>

#include <cmath>
#include <future>
#include <mutex>

#include "tests/unit/engine/collector.h"

namespace lily::test {
namespace {

TEST_F(EngineTest, AnswersWithEventsInOrder) {
  start();
  say(40, bytes("Hi!"));
  Collector events;
  GenerationRequest asked = request(40, 3);
  const auto job = submit(asked, events);
  ASSERT_TRUE(events.wait_end());
  events.expect_order();
  EXPECT_EQ(events.content(), "Hi!");
  ASSERT_TRUE(events.finished());
  EXPECT_EQ(events.finished()->reason, FinishReason::length);
  const Usage usage = events.finished()->usage;
  EXPECT_EQ(usage.prompt_tokens, 40U);
  EXPECT_EQ(usage.completion_tokens, 3U);
  std::vector<uint32_t> done;
  for (const PromptProgress& progress : events.all<PromptProgress>()) {
    done.push_back(progress.done);
    EXPECT_EQ(progress.total, 40U);
  }
  EXPECT_EQ(done, (std::vector<uint32_t>{16, 32, 40}));
  // Nothing beyond the limit is computed: 3 chunks and 2 decode rows.
  EXPECT_EQ(control->passes().size(), 5U);
}

TEST_F(EngineTest, TheNextPassIsSubmittedBeforeTheLastIsRead) {
  // When pass t is read, pass t + 1 is on the device, as long as the answer goes on.
  std::vector<size_t> submitted_at_collect;
  control->on_collect = [&](size_t) { submitted_at_collect.push_back(control->passes().size()); };
  start();
  Collector events;
  const auto job = submit(request(3, 6), events);
  ASSERT_TRUE(events.wait_end());
  engine.reset();
  EXPECT_EQ(submitted_at_collect, (std::vector<size_t>{2, 3, 4, 5, 6, 6}));
}

TEST_F(EngineTest, TheBudgetOfThinkingEndsIt) {
  start();
  for (const uint32_t budget : {0U, 1U, 3U, 9U}) {
    control->script = [](const FakeControl::History& history) {
      return std::optional<int32_t>(history.size() % 20 + 'a');
    };
    Collector events;
    GenerationRequest asked = request(20, 16);
    asked.starts_in_think = true;
    asked.thinking_budget = budget;
    asked.think_end = kThinkEnd;
    const auto job = submit(asked, events);
    ASSERT_TRUE(events.wait_end());
    const Usage usage = events.finished()->usage;
    EXPECT_EQ(usage.reasoning_tokens, budget + 1) << "with the marker";
    EXPECT_EQ(usage.completion_tokens, 16U);
    EXPECT_EQ(events.content().size(), 16 - budget - 1);
  }
}

TEST_F(EngineTest, ThinkingThatEndsWithinItsBudgetIsLeftAlone) {
  start();
  std::vector<int32_t> ids = bytes("abc");
  ids.push_back(kThinkEnd);
  for (const int32_t id : bytes("yes")) ids.push_back(id);
  say(20, ids);
  for (const uint32_t budget : {3U, 4U, 5U, 100U}) {
    Collector events;
    GenerationRequest asked = request(20, 7);
    asked.starts_in_think = true;
    asked.thinking_budget = budget;
    asked.think_end = kThinkEnd;
    const auto job = submit(asked, events);
    ASSERT_TRUE(events.wait_end());
    EXPECT_EQ(events.content(), "yes") << budget;
    EXPECT_EQ(events.finished()->usage.reasoning_tokens, 4U);
  }
}

TEST_F(EngineTest, AnAnswerThatEndsWhileItThinksMayGoOn) {
  std::vector<int32_t> ids = {'a', 'b', kEnd, 'y', 'e', 's', kEnd};
  for (const bool close : {false, true}) {
    start();
    std::vector<int32_t> absorbed;
    control->script = [&](const FakeControl::History& history) {
      absorbed.assign(history.begin() + 20, history.end());
      return std::optional(ids.at(std::min(absorbed.size(), ids.size() - 1)));
    };
    Collector events;
    GenerationRequest asked = request(20, 0);
    asked.starts_in_think = true;
    asked.think_end = kThinkEnd;
    asked.stop_ids = {kEnd};
    asked.close_thinking = close;
    const auto job = submit(asked, events);
    ASSERT_TRUE(events.wait_end());
    EXPECT_EQ(events.content(), close ? "yes" : "");
    EXPECT_EQ(events.finished()->reason, FinishReason::stop);
    EXPECT_EQ(events.finished()->usage.completion_tokens, close ? 7U : 3U);
    EXPECT_EQ(events.finished()->usage.reasoning_tokens, 3U);
    EXPECT_EQ(engine->metrics().thinking_closed, close ? 1U : 0U);
    engine.reset();
    if (close) {
      EXPECT_EQ(absorbed.at(2), kThinkEnd) << "instead of what was sampled";
    }
  }
}

TEST_F(EngineTest, ThinkingThatEndsWithACallIsOver) {
  words.emplace_back("<tool_call>\n<function=f>\n</function>\n</tool_call>");
  start();
  const auto tools = std::make_shared<const ToolSchemas>(
      boost::json::parse(R"([{"name": "f", "parameters": {}}])").as_array());
  const int32_t call = *tokenizer->id_of(words.back());
  say(20, {'a', call, kEnd, 'y'});
  Collector events;
  GenerationRequest asked = request(20, 0);
  asked.starts_in_think = asked.close_thinking = true;
  asked.think_end = kThinkEnd;
  asked.stop_ids = {kEnd};
  asked.tools = tools;
  const auto job = submit(asked, events);
  ASSERT_TRUE(events.wait_end());
  EXPECT_EQ(events.finished()->reason, FinishReason::tool_calls);
  EXPECT_EQ(events.finished()->usage.completion_tokens, 3U);
}

TEST_F(EngineTest, AStopFoundLateCostsOneDiscardedToken) {
  start();
  say(3, {'a', 'b', kEnd, 'X', 'Y'});
  Collector events;
  GenerationRequest asked = request(3, 0);
  asked.stop_ids = {kEnd};
  const auto job = submit(asked, events);
  ASSERT_TRUE(events.wait_end());
  engine.reset();
  EXPECT_EQ(events.content(), "ab");
  EXPECT_EQ(events.finished()->reason, FinishReason::stop);
  EXPECT_EQ(events.finished()->usage.completion_tokens, 3U);
  EXPECT_EQ(control->passes().size(), 4U);
}

TEST_F(EngineTest, OneTokenAnswer) {
  start();
  say(1, {'a'});
  Collector events;
  const auto job = submit(request(1, 1), events);
  ASSERT_TRUE(events.wait_end());
  EXPECT_EQ(events.content(), "a");
  EXPECT_EQ(events.finished()->reason, FinishReason::length);
  EXPECT_EQ(events.finished()->usage.completion_tokens, 1U);
  engine.reset();
  EXPECT_EQ(control->passes().size(), 1U);
}

TEST_F(EngineTest, AFullContextEndsWithLength) {
  start({.context = 64, .sequences = 2, .chunk = 16});
  for (const size_t prompt : {1UL, 50UL, 62UL, 63UL}) {
    Collector events;
    const auto job = submit(request(prompt, 0), events);
    ASSERT_TRUE(events.wait_end());
    EXPECT_EQ(events.finished()->reason, FinishReason::length);
    EXPECT_EQ(events.finished()->usage.completion_tokens, 64 - prompt);
  }
  for (const uint32_t max_tokens : {0U, 1U}) {
    auto refused = engine->submit(request(64, max_tokens), [](const Event&) {});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::limit);
  }
}

TEST_F(EngineTest, RefusesWhatItCannotRun) {
  start();
  const auto refused = [&](GenerationRequest asked) {
    auto job =
        engine->submit(std::move(asked), [](const Event&) { ADD_FAILURE() << "an event of a refused job"; });
    EXPECT_FALSE(job);
    return job ? ErrorKind::internal : job.error().kind;
  };
  EXPECT_EQ(refused(request(0, 1)), ErrorKind::invalid_input);
  EXPECT_EQ(refused(request(1000, 1)), ErrorKind::limit);
  GenerationRequest asked = request(3, 1);
  asked.prompt[1] = static_cast<int32_t>(kTiny.vocab);
  EXPECT_EQ(refused(asked), ErrorKind::invalid_input);
  asked.prompt[1] = -1;
  EXPECT_EQ(refused(asked), ErrorKind::invalid_input);
  asked = request(3, 1);
  asked.logit_bias = {{.token = -5, .bias = 1}};
  EXPECT_EQ(refused(asked), ErrorKind::invalid_input);
  asked = request(3, 1);
  asked.logprobs = 21;
  EXPECT_EQ(refused(asked), ErrorKind::invalid_input);
  asked = request(3, 1);
  asked.sampling.mode = Sampling::Mode::none;
  EXPECT_EQ(refused(asked), ErrorKind::invalid_input);
}

TEST_F(EngineTest, StopStringAcrossTokens) {
  words = {"wor", "ld", "Hel", "lo"};
  start();
  say(2, {word("Hel"), word("lo"), ' ', word("wor"), word("ld"), '!'});
  Collector events;
  GenerationRequest asked = request(2, 0);
  asked.stop = {"o w", "world"};
  const auto job = submit(asked, events);
  ASSERT_TRUE(events.wait_end());
  events.expect_order();
  EXPECT_EQ(events.content(), "Hell");
  EXPECT_EQ(events.finished()->stop_string, "o w");
  EXPECT_EQ(events.finished()->reason, FinishReason::stop);
  EXPECT_EQ(events.finished()->usage.completion_tokens, 4U);
}

TEST_F(EngineTest, ThinkingIsReasoning) {
  start();
  std::vector<int32_t> ids = bytes("hm");
  ids.insert(ids.end(), {kThinkEnd, '\n', '\n', 'o', 'k', kEnd});
  say(2, ids);
  Collector events;
  GenerationRequest asked = request(2, 0);
  asked.starts_in_think = true;
  asked.stop_ids = {kEnd};
  const auto job = submit(asked, events);
  ASSERT_TRUE(events.wait_end());
  EXPECT_EQ(events.reasoning(), "hm");
  EXPECT_EQ(events.content(), "ok");
  EXPECT_EQ(events.finished()->usage.reasoning_tokens, 3U);
  EXPECT_EQ(events.finished()->usage.completion_tokens, 8U);
}

TEST_F(EngineTest, LogprobsComeWithTheirText) {
  start();
  std::vector<int32_t> ids = bytes("é!");
  ids.push_back(kEnd);
  say(2, ids);
  Collector events;
  GenerationRequest asked = request(2, 0);
  asked.stop_ids = {kEnd};
  asked.logprobs = 1;
  const auto job = submit(asked, events);
  ASSERT_TRUE(events.wait_end());
  const auto deltas = events.all<Delta>();
  ASSERT_EQ(deltas.size(), 2U);
  ASSERT_EQ(deltas[0].logprobs.size(), 2U);
  EXPECT_EQ(deltas[0].logprobs[0].chosen.bytes, "\xC3");
  EXPECT_EQ(deltas[0].logprobs[1].chosen.bytes, "\xA9");
  ASSERT_EQ(deltas[1].logprobs.size(), 1U);
  const double expected = 8.0 - std::log(std::exp(8.0) + kTiny.vocab - 1);
  EXPECT_NEAR(deltas[1].logprobs[0].chosen.logprob, expected, 1e-6);
  EXPECT_EQ(deltas[1].logprobs[0].top.at(0).token, '!');
  // Logits cross the seam only for rows that are sampled, and only when asked for.
  engine.reset();
  for (const SeenPass& pass : control->passes()) EXPECT_EQ(pass.at(0).logits_rows, 1U);
}

TEST_F(EngineTest, SeedsDecideAndNothingElse) {
  start();
  const auto answer = [&](uint64_t seed) {
    GenerationRequest asked = request(5, 20);
    asked.sampling.mode = Sampling::Mode::random;
    asked.sampling.seed = seed;
    Collector events;
    const auto job = submit(asked, events);
    EXPECT_TRUE(events.wait_end());
    return events.content() + events.reasoning();
  };
  const std::string seven = answer(7);
  EXPECT_EQ(answer(7), seven);
  EXPECT_NE(answer(8), seven);
}

// Each answer, alone and with eight companions of all kinds, is the same, and so is what the device computed
// for it.
TEST_F(EngineTest, CompanionsChangeNothing) {
  const auto run = [&](const std::vector<size_t>& prompts) {
    control = std::make_shared<FakeControl>();
    control->pass_time = std::chrono::microseconds(200);
    start({.context = 512, .sequences = 9, .chunk = 16});
    std::vector<Collector> events(prompts.size());
    std::vector<std::unique_ptr<Job>> jobs;
    for (size_t i = 0; i < prompts.size(); ++i) {
      jobs.push_back(submit(request(prompts[i], 30, static_cast<int32_t>(prompts[i])), events[i]));
    }
    std::vector<std::string> answers;
    for (Collector& collector : events) {
      EXPECT_TRUE(collector.wait_end());
      collector.expect_order();
      answers.push_back(collector.content());
    }
    engine.reset();
    EXPECT_THAT(control->breaches(), testing::IsEmpty());
    return answers;
  };
  const std::vector<size_t> prompts{37, 1, 200, 16, 17, 3, 64, 5, 90};
  const std::vector<std::string> together = run(prompts);
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(run({prompts[i]}), std::vector{together[i]});
}

TEST_F(EngineTest, ALongPromptStallsARunningAnswerForOneChunkAtMost) {
  control->pass_time = std::chrono::microseconds(500);
  start({.context = 4096, .sequences = 3, .chunk = 16});
  Collector answer, long_prompt;
  const auto running = submit(request(4, 0), answer);
  ASSERT_TRUE(answer.wait_for<Delta>());
  const auto reading = submit(request(1600, 2), long_prompt);
  ASSERT_TRUE(long_prompt.wait_end());
  engine.reset();
  size_t shared = 0;
  for (const SeenPass& pass : control->passes()) {
    uint32_t prefill = 0;
    bool decodes = false;
    for (const SeenSlice& slice : pass) {
      if (slice.decode)
        decodes = true;
      else
        prefill += slice.rows;
    }
    EXPECT_LE(prefill, 16U);
    if (decodes && prefill > 0) ++shared;
  }
  EXPECT_EQ(shared, 100U);
}

TEST_F(EngineTest, AFullQueueRefusesOneMore) {
  control->pass_time = std::chrono::milliseconds(2);
  start({.context = 4096, .sequences = 2, .chunk = 16}, 3);
  std::vector<Collector> events(5);
  std::vector<std::unique_ptr<Job>> jobs;
  for (Collector& collector : events) jobs.push_back(submit(request(4, 0), collector));  // 2 run, 3 wait
  auto refused = engine->submit(request(4, 1), [](const Event&) { ADD_FAILURE(); });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::limit);
  ASSERT_TRUE(events[0].wait_for<Delta>(2));
  ASSERT_TRUE(events[1].wait_for<Delta>());
  EXPECT_EQ(engine->metrics().running, 2U);
  EXPECT_EQ(engine->metrics().waiting, 3U);
  jobs[3]->cancel();  // a cancelled waiting job gives its place back at once
  Collector one_more;
  jobs.push_back(submit(request(4, 1), one_more));
  jobs[0]->cancel();
  jobs[1]->cancel();
  jobs[2]->cancel();
  jobs[4]->cancel();
  ASSERT_TRUE(one_more.wait_end());
  EXPECT_TRUE(one_more.finished());
}

TEST_F(EngineTest, WithoutAQueueTheRunningPlacesCanBeFilled) {
  start({.context = 256, .sequences = 2, .chunk = 16}, 0);
  for (int i = 0; i < 20; ++i) {
    Collector a, b;
    const auto first = submit(request(3, 2), a);
    const auto second = submit(request(3, 2), b);
    ASSERT_TRUE(a.wait_end());
    ASSERT_TRUE(b.wait_end());
    // The place is free a moment after the last event.
    while (engine->metrics().running > 0) std::this_thread::yield();
  }
}

TEST_F(EngineTest, NotFiniteLogitsEndThatRequestOnly) {
  control->not_finite = [](const FakeControl::History& history) {
    return history[0] == 13 && history.size() >= 8;
  };
  start();
  Collector bad, good, after;
  const auto first = submit(request(5, 50, 13), bad);
  const auto second = submit(request(5, 50, 1), good);
  ASSERT_TRUE(bad.wait_end());
  ASSERT_TRUE(good.wait_end());
  bad.expect_order();
  ASSERT_TRUE(bad.failed());
  EXPECT_EQ(bad.failed()->kind, ErrorKind::internal);
  EXPECT_THAT(bad.failed()->message, testing::HasSubstr("not finite"));
  EXPECT_TRUE(good.finished());
  // The state is not used again; the next request gets a new one and works.
  const auto third = submit(request(5, 50, 1), after);
  ASSERT_TRUE(after.wait_end());
  EXPECT_EQ(after.content(), good.content());
  EXPECT_EQ(engine->metrics().jobs_failed, 1U);
}

TEST_F(EngineTest, NotFiniteLogitsInThePromptEndTheRequest) {
  control->not_finite = [](const FakeControl::History& history) { return history.size() == 32; };
  start();
  Collector bad;
  const auto job = submit(request(50, 5), bad);
  ASSERT_TRUE(bad.wait_end());
  EXPECT_TRUE(bad.failed());
  EXPECT_EQ(bad.all<Delta>().size(), 0U);
}

TEST_F(EngineTest, ARefusedPassEndsOnlyTheRequestItWasRefusedFor) {
  control->pass_time = std::chrono::microseconds(500);
  control->fail_submit = [](const Pass& pass) -> std::optional<Error> {
    for (const Slice& slice : pass.slices) {
      if (!slice.tokens.empty() && slice.tokens[0] == 66)
        return Error{ErrorKind::internal, "I dislike 66", {}};
    }
    return std::nullopt;
  };
  start();
  Collector good, bad, alone;
  const auto first = submit(request(5, 100, 1), good);
  ASSERT_TRUE(good.wait_for<Delta>());
  const auto second = submit(request(5, 100, 66), bad);
  ASSERT_TRUE(bad.wait_end());
  ASSERT_TRUE(good.wait_end());
  ASSERT_TRUE(bad.failed());
  EXPECT_EQ(bad.failed()->message, "I dislike 66");
  ASSERT_TRUE(good.finished());
  EXPECT_EQ(good.finished()->usage.completion_tokens, 100U);
  const auto third = submit(request(5, 100, 1), alone);
  ASSERT_TRUE(alone.wait_end());
  EXPECT_EQ(alone.content(), good.content());
}

TEST_F(EngineTest, ADeviceErrorEndsTheRequestsOfItsPassAndTheEngineGoesOn) {
  for (const bool throws : {false, true}) {
    control = std::make_shared<FakeControl>();
    if (throws) {
      control->on_collect = [](size_t pass) {
        if (pass == 3) throw std::runtime_error("a fuse blew");
      };
    } else {
      control->fail_collect = [](size_t pass) -> std::optional<Error> {
        if (pass == 3) return Error{ErrorKind::internal, "a fuse blew", {}};
        return std::nullopt;
      };
    }
    start();
    Collector bad, good;
    const auto first = submit(request(5, 50), bad);
    ASSERT_TRUE(bad.wait_end());
    ASSERT_TRUE(bad.failed());
    EXPECT_THAT(bad.failed()->message, testing::HasSubstr("a fuse blew"));
    const auto second = submit(request(5, 50), good);
    ASSERT_TRUE(good.wait_end());
    EXPECT_TRUE(good.finished());
    engine.reset();
    EXPECT_THAT(control->breaches(), testing::IsEmpty());
  }
}

TEST_F(EngineTest, WithoutMemoryForAnotherStateTheRequestFails) {
  control->fail_new_state = [](int state) -> std::optional<Error> {
    if (state == 1) return Error{ErrorKind::out_of_memory, "no room", {}};
    return std::nullopt;
  };
  control->pass_time = std::chrono::microseconds(500);
  start();
  Collector good, bad, later;
  const auto first = submit(request(5, 50), good);
  ASSERT_TRUE(good.wait_for<Delta>());
  const auto second = submit(request(5, 50), bad);
  ASSERT_TRUE(bad.wait_end());
  EXPECT_EQ(bad.failed()->kind, ErrorKind::out_of_memory);
  const auto third = submit(request(5, 50), later);
  ASSERT_TRUE(later.wait_end());
  EXPECT_TRUE(later.finished());
  ASSERT_TRUE(good.wait_end());
  EXPECT_TRUE(good.finished());
}

TEST_F(EngineTest, ADeviceThatCannotHoldAStateIsRefusedAtOnce) {
  control->fail_new_state = [](int) { return Error{ErrorKind::out_of_memory, "no room", {}}; };
  Result<Plan> plan = make_plan(kTiny, {.context = 64, .sequences = 1, .chunk = 16});
  tokenizer = make_tiny_tokenizer();
  const auto created = Engine::create(std::make_unique<FakeBackend>(*plan, control), *plan, *tokenizer, {});
  ASSERT_FALSE(created);
  EXPECT_EQ(created.error().message, "no room");
}

TEST_F(EngineTest, ASinkThatThrowsCancelsItsJobAlone) {
  start();
  auto job = engine->submit(request(5, 50), [](const Event& event) {
    if (std::holds_alternative<Delta>(event)) throw std::runtime_error("full");
  });
  ASSERT_TRUE(job);
  Collector good;
  const auto other = submit(request(5, 50), good);
  ASSERT_TRUE(good.wait_end());
  EXPECT_TRUE(good.finished());
  engine->drain(20);
  EXPECT_EQ(engine->metrics().jobs_cancelled, 1U);
}

TEST_F(EngineTest, StatesAreReusedFromTheStart) {
  start({.context = 256, .sequences = 2, .chunk = 16});
  Collector first;
  {
    const auto job = submit(request(20, 30), first);
    ASSERT_TRUE(first.wait_end());
  }
  for (int i = 0; i < 10; ++i) {
    Collector again;
    const auto job = submit(request(20, 30), again);
    ASSERT_TRUE(again.wait_end());
    EXPECT_EQ(again.content(), first.content());
  }
  engine.reset();
  EXPECT_LE(control->states_made, 2);
}

TEST_F(EngineTest, MetricsAddUp) {
  start();
  Collector a, b;
  const auto first = submit(request(40, 7), a);
  const auto second = submit(request(10, 5), b);
  ASSERT_TRUE(a.wait_end());
  ASSERT_TRUE(b.wait_end());
  engine->drain(20);
  const EngineMetrics metrics = engine->metrics();
  EXPECT_EQ(metrics.prompt_tokens, 50U);
  EXPECT_EQ(metrics.completion_tokens, 12U);
  EXPECT_EQ(metrics.jobs_finished, 2U);
  EXPECT_EQ(metrics.running + metrics.waiting, 0U);
  EXPECT_EQ(metrics.passes, metrics.bytes_read);
  EXPECT_EQ(engine->device().name, "fake");
}

// One client has five requests in the queue when another one comes.
TEST_F(EngineTest, ClientsThatWaitTakeTurns) {
  std::promise<void> all_asked;
  control->on_collect = [asked = all_asked.get_future().share()](size_t) { asked.wait(); };
  start({.context = 256, .sequences = 1, .chunk = 16});
  std::mutex mutex;
  std::vector<int> order;
  std::vector<std::unique_ptr<Job>> jobs;
  std::vector<std::promise<void>> ended(7);
  const auto ask = [&](int number, uint64_t client) {
    GenerationRequest asked = request(20, 8);
    asked.client = client;
    auto job = engine->submit(std::move(asked), [&, number](const Event& event) {
      if (std::holds_alternative<Started>(event)) {
        const std::lock_guard lock(mutex);
        order.push_back(number);
      }
      if (std::holds_alternative<Finished>(event)) ended[static_cast<size_t>(number)].set_value();
    });
    ASSERT_TRUE(job);
    jobs.push_back(*std::move(job));
  };
  for (int i = 0; i < 5; ++i) ask(i, 1);
  ask(5, 2);
  ask(6, 2);
  all_asked.set_value();
  for (auto& one : ended) one.get_future().wait();
  const auto place = [&](int number) { return std::ranges::find(order, number) - order.begin(); };
  EXPECT_LE(place(5), 2);
  EXPECT_LE(place(6), 4);
  for (int i = 0; i < 4; ++i) EXPECT_LT(place(i), place(i + 1)) << "each client's own in their order";
}

}  // namespace
}  // namespace lily::test
