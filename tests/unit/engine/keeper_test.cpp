// What the engine keeps between requests, seen from outside: which tokens the device computes, and that the
// answers stay the same.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "engine/keeper.h"
#include "tests/unit/engine/collector.h"

namespace lily::test {
namespace {

class KeeperTest : public EngineTest {
 protected:
  void start_keeping(uint64_t checkpoints = 100, uint32_t sequences = 4) {
    cache_bytes = checkpoints;
    start({.context = 16'384, .sequences = sequences, .chunk = 16});
  }

  struct Asked {
    std::vector<int32_t> tokens;  // prompt, then the answer
    std::string text;
    Usage usage;
    PromptReuse reuse;
  };
  // Runs one request to its end. The fake answers with bytes, so the text gives the tokens back.
  Asked ask(std::vector<int32_t> prompt, uint32_t answer = 4, std::vector<uint32_t> marks = {}) {
    GenerationRequest asked = request(1, answer);
    asked.prompt = std::move(prompt);
    asked.marks = std::move(marks);
    Asked result{.tokens = asked.prompt, .text = {}, .usage = {}, .reuse = {}};
    said = answered(asked.prompt, answer);
    Collector events;
    const auto job = submit(std::move(asked), events);
    EXPECT_TRUE(events.wait_end());
    EXPECT_TRUE(events.finished());
    if (!events.finished()) return result;
    result.text = events.content();
    result.usage = events.finished()->usage;
    result.reuse = events.all<Started>().front().reuse;
    result.tokens.insert(result.tokens.end(), said.begin(), said.end());
    return result;
  }
  // The tokens that the fake answers: what a device that kept nothing would say.
  static std::vector<int32_t> answered(std::vector<int32_t> history, uint32_t count) {
    std::vector<int32_t> answer;
    for (uint32_t i = 0; i < count; ++i) {
      answer.push_back(letter(history));
      history.push_back(answer.back());
    }
    return answer;
  }
  // Depends on the whole history, and is a letter, so that text and tokens are one to one.
  static int32_t letter(const FakeControl::History& history) {
    return 'a' + fake_next_token(history, 0) % 26;
  }
  static std::vector<int32_t> numbers(int32_t count, int32_t first = 0) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < count; ++i) tokens.push_back((first + i * 7) % 200);
    return tokens;
  }
  void SetUp() override {
    control->script = [](const FakeControl::History& history) { return std::optional(letter(history)); };
  }
  std::string text_of(std::vector<int32_t> prompt, uint32_t count) const {
    std::string text;
    for (const int32_t token : answered(std::move(prompt), count)) text += static_cast<char>(token);
    return text;
  }
  uint64_t computed() const { return engine->metrics().prompt_tokens; }

  std::vector<int32_t> said;
};

TEST_F(KeeperTest, TheNextTurnReadsOnlyWhatIsNew) {
  start_keeping();
  const Asked first = ask(numbers(300), 10);
  EXPECT_EQ(first.usage.cached_tokens, 0U);
  std::vector<int32_t> prompt = first.tokens;
  const auto more = numbers(20, 3);
  prompt.insert(prompt.end(), more.begin(), more.end());
  const uint64_t before = computed();
  const Asked second = ask(prompt, 5);
  EXPECT_EQ(second.text, text_of(prompt, 5));
  // The last token of the first answer was sampled and never fed back.
  EXPECT_EQ(second.usage.cached_tokens, 309U);
  EXPECT_EQ(second.usage.prompt_tokens, 330U);
  EXPECT_EQ(computed() - before, 21U);
  EXPECT_EQ(engine->metrics().cache.hits, 1U);
}

// When an answer has ended, a pass that nobody wants any more still holds its state. The client need not
// wait.
TEST_F(KeeperTest, TheNextTurnMayComeAtOnce) {
  control->pass_time = std::chrono::milliseconds(15);
  start_keeping();
  const Asked first = ask(numbers(30), 6);
  EXPECT_EQ(engine->memory()->known(first.tokens), first.tokens.size()) << "when its client hears of the end";
  std::vector<int32_t> prompt = first.tokens;
  prompt.push_back(7);
  const Asked second = ask(prompt, 3);
  EXPECT_GE(second.usage.cached_tokens, 35U);
  EXPECT_EQ(second.text, text_of(prompt, 3));
}

// A server lets go of a job as soon as it hears of its end: the state, which is still in a pass, is kept all
// the same.
TEST_F(KeeperTest, AClientThatLeavesWithTheLastEventLosesNothing) {
  control->pass_time = std::chrono::milliseconds(5);
  start_keeping();
  GenerationRequest asked = request(1, 6);
  asked.prompt = numbers(100);
  std::promise<Job*> made;
  std::shared_future<Job*> job = made.get_future().share();
  std::promise<void> ended;
  auto handle = engine->submit(asked, [&](const Event& event) {
    if (!std::holds_alternative<Finished>(event)) return;
    std::thread([&] { job.get()->cancel(); }).join();
    ended.set_value();
  });
  ASSERT_TRUE(handle);
  made.set_value(handle->get());
  ended.get_future().wait();
  std::vector<int32_t> prompt = asked.prompt;
  const auto answer = answered(asked.prompt, 6);
  prompt.insert(prompt.end(), answer.begin(), answer.end());
  prompt.push_back(3);
  EXPECT_GE(ask(prompt, 2).usage.cached_tokens, 105U);
  EXPECT_EQ(control->passes_cancelled, 0);
}

// The pass that is dropped with its client leaves its state unusable.
TEST_F(KeeperTest, AClientThatLeavesWhileItsPromptIsReadFindsWhatWasRead) {
  constexpr size_t kLast = 30;  // the pass in which it leaves
  unsaved_seconds = 0.005;
  control->pass_time = std::chrono::milliseconds(3);
  std::promise<Job*> made;
  control->on_collect = [&, job = made.get_future().share()](size_t pass) {
    if (pass == kLast) std::thread([&] { job.get()->cancel(); }).join();
  };
  start_keeping();
  GenerationRequest asked = request(1, 6);
  asked.prompt = numbers(1600);
  Collector events;
  const auto job = submit(asked, events);
  made.set_value(job.get());
  while (engine->metrics().jobs_cancelled == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const Asked again = ask(asked.prompt, 6);
  EXPECT_GT(control->passes_cancelled, 0);
  // Two passes until a copy is due, and one on the device until it can be made.
  EXPECT_GE(again.usage.cached_tokens, (kLast - 3) * 16);
  EXPECT_LE(again.usage.cached_tokens, kLast * 16);
  EXPECT_EQ(again.text, text_of(asked.prompt, 6));
  engine.reset();
  EXPECT_EQ(control->checkpoints_alive, 0);
}

// It asks for the same while the pass that is dropped, and the one behind it, still hold the state.
TEST_F(KeeperTest, AClientThatLeavesAndAsksAgainAtOnceFindsWhatWasRead) {
  constexpr size_t kLast = 30;
  unsaved_seconds = 0.005;
  control->pass_time = std::chrono::milliseconds(3);
  GenerationRequest asked = request(1, 6);
  asked.prompt = numbers(1600);
  Collector events, again;
  std::promise<Job*> made;
  std::unique_ptr<Job> second;
  control->on_collect = [&, job = made.get_future().share()](size_t pass) {
    if (pass != kLast) return;
    std::thread([&] {
      job.get()->cancel();
      second = submit(asked, again);
    }).join();
  };
  start_keeping();
  const auto job = submit(asked, events);
  made.set_value(job.get());
  ASSERT_TRUE(again.wait_end());
  ASSERT_TRUE(again.finished());
  EXPECT_EQ(control->passes_cancelled, 2) << "of a state that had failed already one pass was on its way";
  EXPECT_GE(again.finished()->usage.cached_tokens, (kLast - 3) * 16);
  EXPECT_EQ(again.content(), text_of(asked.prompt, 6));
}

// In company the pass is not dropped, and the state has read the whole prompt: too much for who asks for the
// same again.
TEST_F(KeeperTest, AClientThatLeavesWithTheEndOfItsPromptFindsTheBeginning) {
  unsaved_seconds = 0.05;
  control->pass_time = std::chrono::milliseconds(2);
  start_keeping();
  Collector other, events;
  const auto companion = submit(request(3, 0), other);
  ASSERT_TRUE(other.wait_for<Delta>());
  GenerationRequest asked = request(1, 6);
  asked.prompt = numbers(1600);
  const auto job = submit_and_leave(asked, events, 1600 - 16);
  ASSERT_TRUE(job);
  ASSERT_TRUE(events.wait_for<PromptProgress>(99));
  const Asked again = ask(asked.prompt, 6);
  EXPECT_GT(again.usage.cached_tokens, 1000U);
  EXPECT_EQ(again.text, text_of(asked.prompt, 6));
  EXPECT_EQ(control->passes_cancelled, 0);
  companion->cancel();
}

TEST_F(KeeperTest, AnExactRepeatReadsFromTheLastMark) {
  start_keeping();
  const Asked first = ask(numbers(300), 10, {100, 297});
  const Asked second = ask(numbers(300), 10, {100, 297});
  EXPECT_EQ(second.usage.cached_tokens, 297U);
  EXPECT_EQ(second.text, first.text);
}

TEST_F(KeeperTest, AnEditGoesBackToTheMarkBeforeIt) {
  start_keeping();
  ask(numbers(300), 4, {100, 200, 297});
  std::vector<int32_t> edited = numbers(300);
  edited[250] = 199;
  const Asked second = ask(edited, 10, {100, 200, 297});
  EXPECT_EQ(second.usage.cached_tokens, 200U);
  EXPECT_EQ(second.reuse.known, 250U);
  EXPECT_EQ(second.reuse.kept_token, numbers(300)[250]);
  EXPECT_EQ(second.reuse.prompt_token, 199);
  EXPECT_EQ(second.text, text_of(edited, 10));
}

TEST_F(KeeperTest, LongPromptsAreKeptEveryFewThousandTokens) {
  start_keeping();
  ask(numbers(7000), 1);
  std::vector<int32_t> edited = numbers(7000);
  edited[6500] = 199;
  EXPECT_EQ(ask(edited, 3).usage.cached_tokens, 3 * Keeper::kEvery);
  edited[5000] = 198;
  const Asked third = ask(edited, 3);
  EXPECT_EQ(third.usage.cached_tokens, 2 * Keeper::kEvery);
  EXPECT_EQ(third.text, text_of(edited, 3));
  EXPECT_EQ(engine->metrics().cache.partial, 2U);
}

TEST_F(KeeperTest, ChunksAreCutAtMarksAlikeColdAndWarm) {
  const auto cuts = [&](uint64_t budget) {
    control = std::make_shared<FakeControl>();
    SetUp();
    start_keeping(budget);
    ask(numbers(200), 1, {70, 150});
    std::vector<int32_t> edited = numbers(200);
    edited[140] = 199;
    ask(edited, 1, {70, 150});
    std::vector<uint32_t> ends;
    for (const SeenPass& pass : control->passes()) {
      for (const SeenSlice& slice : pass) ends.push_back(slice.position + slice.rows);
    }
    engine.reset();
    return ends;
  };
  const std::vector<uint32_t> whole{16, 32, 48, 64, 70, 80, 96, 112, 128, 144, 150, 160, 176, 192, 200};
  std::vector<uint32_t> warm = whole;
  warm.insert(warm.end(), whole.begin() + 5, whole.end());
  EXPECT_EQ(cuts(100), warm);
}

TEST_F(KeeperTest, MarksThatWouldSpareFewTokensAreLeftOut) {
  const Plan plan = *make_plan(kTiny, {});
  FakeBackend backend(plan, control);
  const auto made =
      Keeper::create(backend, plan, {.cache_bytes = 1}, ReadingRule({}, *make_tiny_tokenizer()));
  ASSERT_TRUE(made);
  const Keeper& keeper = **made;
  GenerationRequest asked = request(5000, 1);
  asked.marks = {30, 100, 130, 2040, 4900, 4990, 4998};
  const Reading any;
  using Stops = std::vector<uint32_t>;
  EXPECT_EQ(keeper.stops(asked, any, 0, 256), (Stops{130, 2048, 4096, 4900, 4998}));
  EXPECT_EQ(keeper.stops(asked, any, 100, 256), (Stops{2048, 4096, 4900, 4998}));
  EXPECT_EQ(keeper.stops(asked, any, 4990, 256), Stops{});
  EXPECT_EQ(keeper.stops(asked, any, 0, 1000), (Stops{130, 2040, 3000, 4900, 4998}));
  // The end of the system turn goes before a mark that is near it: other conversations begin with it too.
  asked.turns = {{0, "system"}, {4960, "user"}, {4996, "assistant"}};
  asked.marks = {4960, 4998};
  EXPECT_EQ(keeper.stops(asked, any, 0, 256), (Stops{2048, 4096, 4960}));
  asked.turns[0].role = "user";
  EXPECT_EQ(keeper.stops(asked, any, 0, 256), (Stops{2048, 4096, 4998}));
}

TEST_F(KeeperTest, WithoutABudgetNothingIsKept) {
  start_keeping(0);
  ask(numbers(300), 4, {100});
  EXPECT_EQ(ask(numbers(300), 4, {100}).usage.cached_tokens, 0U);
  EXPECT_EQ(engine->metrics().cache.checkpoints, 0U);
  EXPECT_EQ(control->checkpoints_alive, 1);  // the empty one
}

TEST_F(KeeperTest, TheBudgetHoldsAndCountsWhatItDrops) {
  start_keeping(6);  // the empty one is one of them
  for (int32_t i = 0; i < 20; ++i) ask(numbers(200, i), 2, {70, 140});
  // Who asked was told the end before what the answer leaves was kept, and others dropped for it.
  const auto patience = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (control->checkpoints_alive > 6 && std::chrono::steady_clock::now() < patience)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_LE(control->checkpoints_alive, 6);
  const CacheMetrics metrics = engine->metrics().cache;
  EXPECT_GE(metrics.checkpoints, 4U);
  EXPECT_GE(metrics.evictions, 50U);
  EXPECT_EQ(metrics.misses, 20U);
}

// A state that waits for a sequence is made anew in a moment: what was read is worth more.
TEST_F(KeeperTest, StatesThatWaitGoBeforeCheckpoints) {
  control->state_cost = 3;
  start_keeping(4 * 3 + 1 + 4);  // four that run, the empty checkpoint, and what the four leave
  std::vector<Collector> events(4);
  std::vector<std::unique_ptr<Job>> jobs;
  for (int32_t i = 0; i < 4; ++i)
    jobs.push_back(submit(request(100, 40, 10 * i), events[static_cast<size_t>(i)]));
  for (Collector& one : events) ASSERT_TRUE(one.wait_end());
  EXPECT_EQ(control->states_made, 4);
  for (int32_t i = 0; i < 8; ++i) ask(numbers(200, i), 2);
  engine->drain(60);
  EXPECT_EQ(control->live_states(), 1);
  EXPECT_GE(engine->metrics().cache.checkpoints, 10U);
  EXPECT_EQ(engine->metrics().cache.evictions, 0U);
}

TEST_F(KeeperTest, ACancelledPromptIsResumedWhereItsLastCheckpointLies) {
  start_keeping();
  control->pass_time = std::chrono::microseconds(500);
  Collector events;
  GenerationRequest asked = request(1, 4);
  asked.prompt = numbers(4000);
  auto job = submit(asked, events);
  ASSERT_TRUE(events.wait_for<PromptProgress>(140));  // 2,240 tokens
  job->cancel();
  job.reset();
  const Asked again = ask(numbers(4000), 4);
  EXPECT_GE(again.usage.cached_tokens, Keeper::kEvery);
  EXPECT_EQ(again.text, text_of(numbers(4000), 4));
}

TEST_F(KeeperTest, ACheckpointThatCannotBeResumedCostsTimeNotTheRequest) {
  std::atomic<bool> lost = false;
  control->fail_resume = [&](uint32_t length) { return lost && length > 0; };
  start_keeping();
  ask(numbers(300), 4);
  lost = true;
  const Asked second = ask(numbers(320), 4);
  EXPECT_EQ(second.usage.cached_tokens, 0U);
  EXPECT_EQ(second.text, text_of(numbers(320), 4));
}

TEST_F(KeeperTest, CompanionsChangeNothing) {
  start_keeping(30, 4);
  // Conversations that share a beginning, each asked again and again, four at once.
  struct Talk {
    std::vector<int32_t> prompt;
    std::unique_ptr<Job> job;
    std::unique_ptr<Collector> events;
  };
  std::vector<Talk> talks(8);
  for (size_t i = 0; i < talks.size(); ++i) {
    talks[i].prompt = numbers(140);
    talks[i].prompt.push_back(static_cast<int32_t>(i));
  }
  for (int round = 0; round < 6; ++round) {
    for (Talk& talk : talks) {
      GenerationRequest asked = request(1, 9);
      asked.prompt = talk.prompt;
      asked.marks = {70, static_cast<uint32_t>(talk.prompt.size() - 2)};
      talk.events = std::make_unique<Collector>();
      talk.job = submit(std::move(asked), *talk.events);
    }
    for (Talk& talk : talks) {
      ASSERT_TRUE(talk.events->wait_end());
      EXPECT_EQ(talk.events->content(), text_of(talk.prompt, 9)) << "round " << round;
      const auto answer = answered(talk.prompt, 9);
      talk.prompt.insert(talk.prompt.end(), answer.begin(), answer.end());
      talk.prompt.push_back(round);
    }
  }
  EXPECT_GT(engine->metrics().cache.tokens, 0U);
}

}  // namespace
}  // namespace lily::test
