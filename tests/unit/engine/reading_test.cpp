// How prompts are read, and that answers do not depend on what was kept: random conversations over a device
// whose next token depends on how each token before it was read.
#include "engine/reading.h"

#include <atomic>
#include <filesystem>
#include <iostream>
#include <random>
#include <thread>

#include "tests/unit/engine/collector.h"
#include "text/chat_template.h"
#include "text/recall.h"

namespace lily::test {
namespace {

using Tokens = std::vector<int32_t>;
constexpr uint32_t kUnit = 8;
constexpr uint32_t kSingleRows = 5;
constexpr ReadingTraits kTraits{.single_rows = kSingleRows, .unit = kUnit};
const std::vector<std::string> kWords{"<|im_start|>", "<think>", "<tool_call>", "</tool_call>"};
const std::string kOpening = "<|im_start|>assistant\n";

class ReadingTest : public testing::Test {
 protected:
  // The places of `text` where the way of reading changes, in bytes of the text.
  std::vector<uint32_t> changes(const std::string& text) const {
    const Tokens tokens = tokenizer->encode(text);
    const Reading reading = rule.read(tokens);
    std::vector<uint32_t> found;
    for (uint32_t at = reading.next_change(0); at < tokens.size(); at = reading.next_change(at)) {
      EXPECT_EQ(reading.single(at), found.size() % 2 == 0);
      EXPECT_NE(reading.single(at), reading.single(at - 1));
      const auto before = tokenizer->decode(std::span(tokens).first(at), false);
      found.push_back(static_cast<uint32_t>(before.size()));
    }
    return found;
  }
  using Changes = std::vector<uint32_t>;

  std::unique_ptr<Tokenizer> tokenizer = make_tiny_tokenizer(kWords);
  const ReadingRule rule{kTraits, *tokenizer};
};

TEST_F(ReadingTest, WhatTheModelMayHaveSaidIsReadAsSingleRows) {
  const std::string user = "<|im_start|>user\nHello<|im_end|>\n";
  const std::string said = "<think>\nHm.\n</think>\n\nWell.<|im_end|>\n";
  const auto open = static_cast<uint32_t>(user.size() + kOpening.size());
  EXPECT_EQ(changes(user), Changes{});
  EXPECT_EQ(changes(user + kOpening), Changes{});
  EXPECT_EQ(changes(user + kOpening + "<think>\n"), Changes{open});
  EXPECT_EQ(changes(user + kOpening + "<think>\n\n</think>\n\n"), Changes{open});
  const auto end = static_cast<uint32_t>(open + said.size());
  EXPECT_EQ(changes(user + kOpening + said), Changes{open});
  EXPECT_EQ(changes(user + kOpening + said + user), (Changes{open, end}));
  EXPECT_EQ(changes(user + kOpening + "Well.<|im_end|>\n" + user), Changes{});
  // The line break behind the end is none where something else stands there.
  EXPECT_EQ(changes(user + kOpening + "<think>a<|im_end|>" + user), (Changes{open, open + 18}));
  // A "<think>" anywhere else begins nothing.
  EXPECT_EQ(changes("<|im_start|>user\n<think>\nHello<|im_end|>\n"), Changes{});
  EXPECT_EQ(changes(user + kOpening + " <think>\n"), Changes{});
  EXPECT_EQ(changes("assistant\n<think>\n"), Changes{});
  // Nothing but its end ends what the model says.
  EXPECT_EQ(changes(kOpening + "<think>" + kOpening + "<think>"), Changes{22});
}

// What a token is read as depends on the tokens up to it.
TEST_F(ReadingTest, EveryBeginningIsReadAlike) {
  const std::string turn = "<|im_start|>user\nHi<|im_end|>\n" + kOpening;
  const Tokens tokens =
      tokenizer->encode(turn + "<think>a</think>b<|im_end|>\n" + turn + "c<|im_end|>\n" + turn + "<think>d");
  const Reading whole = rule.read(tokens);
  for (uint32_t length = 1; length <= tokens.size(); ++length) {
    const Reading part = rule.read(std::span(tokens).first(length));
    for (uint32_t at = 0; at < length; ++at) ASSERT_EQ(part.single(at), whole.single(at)) << at;
    ASSERT_EQ(part.keeps(length), whole.keeps(length));
    ASSERT_EQ(part.keeps(length), length % kUnit == 0 || whole.single(length - 1));
    uint32_t before = length;
    while (!whole.keeps(before)) --before;
    ASSERT_EQ(whole.kept_before(length), before);
  }
  EXPECT_EQ(whole.kept_before(0), 0U);
}

TEST_F(ReadingTest, AnAnswerIsKeptWhereAPromptWouldBeReadSo) {
  const Tokens open = tokenizer->encode("<|im_start|>user\nHello<|im_end|>\n" + kOpening);
  const auto keeps = [&](std::string_view more, std::string_view answer) {
    Tokens tokens = open;
    for (const int32_t id : tokenizer->encode(more)) tokens.push_back(id);
    const size_t prompt = tokens.size();
    for (const int32_t id : tokenizer->encode(answer)) tokens.push_back(id);
    return rule.keeps(tokens, prompt);
  };
  EXPECT_TRUE(keeps("<think>", ""));
  EXPECT_TRUE(keeps("<think>", "Hm.</think>"));
  EXPECT_TRUE(keeps("<think>", "Hm.</think>Well.<|im_end|>"));
  EXPECT_TRUE(keeps("", "<think>Hm."));
  EXPECT_FALSE(keeps("", "Well."));
  EXPECT_FALSE(keeps("<think>", "Hm.<|im_end|>x")) << "behind its end nothing is an answer";
  EXPECT_FALSE(keeps("<think>Hm.<|im_end|>\nWell", ". And so on."));
  const ReadingRule any({}, *tokenizer);
  EXPECT_FALSE(any.matters());
  EXPECT_TRUE(any.keeps(open, 3));
  EXPECT_EQ(any.name(), "");
  EXPECT_NE(rule.name(), ReadingRule({.single_rows = 4, .unit = 2 * kUnit}, *tokenizer).name());
  EXPECT_EQ(rule.name(), ReadingRule({.single_rows = 9, .unit = kUnit}, *tokenizer).name());
}

TEST_F(ReadingTest, ATokenizerWithoutTurnsHasNone) {
  const auto plain = make_tiny_tokenizer();
  const ReadingRule without(kTraits, *plain);
  const Reading reading = without.read(plain->encode("<|im_start|>assistant\n<think>\n"));
  EXPECT_EQ(reading.next_change(0), UINT32_MAX);
  EXPECT_EQ(reading.as(3), ReadAs::many);
  EXPECT_EQ(Reading().as(3), ReadAs::by_number);
}

// ---- Conversations --------------------------------------------------------------------------------------
// What a device says after these tokens that were read so: letters, sometimes the end of thinking or of the
// answer.
int32_t said_after(const FakeControl::History& history, const HowRead& how) {
  FakeControl::History seen = history;
  seen.insert(seen.end(), how.begin(), how.end());
  const int32_t drawn = fake_next_token(seen, 0);
  if (drawn >= 240) return kEnd;
  if (drawn >= 215) return kThinkEnd;
  return drawn >= 180 ? ' ' : 'a' + drawn % 26;
}

struct Answer {
  std::string reasoning, content;
  bool operator==(const Answer&) const = default;
};

// An engine over the double.
struct Served {
  Served(const Tokenizer& tokenizer, uint32_t chunk, const EngineOptions& options, bool tells = true) {
    control->reading = kTraits;
    control->tells_reading = tells;
    control->script_read = said_after;
    plan = *make_plan(kTiny, {.context = 16'384, .sequences = 4, .chunk = chunk});
    auto made = Engine::create(std::make_unique<FakeBackend>(plan, control), plan, tokenizer, options);
    EXPECT_TRUE(made) << made.error().text();
    engine = *std::move(made);
  }
  ~Served() {
    engine.reset();
    EXPECT_EQ(control->breaches(), std::vector<std::string>{});
  }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  Answer ask(const GenerationRequest& request) const {
    Collector events;
    const auto job = engine->submit(request, events.sink());
    EXPECT_TRUE(job) << job.error().text();
    EXPECT_TRUE(events.wait_end());
    EXPECT_TRUE(events.finished());
    return {events.reasoning(), events.content()};
  }
  // Leaves once `read` tokens of the prompt are read.
  void ask_and_leave(const GenerationRequest& request, uint32_t read) const {
    // Shared: an event may be on its way when the job is cancelled.
    const auto far = std::make_shared<std::atomic<bool>>(false);
    auto job = engine->submit(request, [far, read](const Event& event) {
      const auto* progress = std::get_if<PromptProgress>(&event);
      const bool reached = progress != nullptr && progress->done >= read;
      if (reached || std::holds_alternative<Finished>(event)) *far = true;
    });
    ASSERT_TRUE(job);
    while (!*far) std::this_thread::yield();
    job->reset();
  }

  std::shared_ptr<FakeControl> control = std::make_shared<FakeControl>();
  Plan plan{};
  std::unique_ptr<Engine> engine;
};

// A client: asks, returns what it was told in its own way, edits, branches, asks again, uses tools, leaves.
class Client {
 public:
  Client(const Tokenizer& tokenizer, uint32_t seed) : tokenizer_(tokenizer), random_(seed) {
    preserve_ = chance(3);
    returns_ = below(3);
    tools_ = std::make_shared<ToolSchemas>(parse_json(R"([{"name": "look"}])")->as_array());
    if (!chance(3)) messages_.push_back(text("system", below(200)));
  }

  // The next request, and whether its client leaves while it is read.
  GenerationRequest next(const TokenMemory* memory) {
    const uint32_t deed = below(10);
    if (deed == 0 && messages_.size() > 4) messages_.resize(messages_.size() - 2 * below(2));  // branch
    if (deed == 1) edit();
    if (messages_.empty() || messages_.back().role == "assistant" || messages_.back().role == "system") {
      const bool result = !messages_.empty() && messages_.back().role == "assistant" && chance(2);
      messages_.push_back(text(result ? "tool" : "user", chance(12) ? 2500 : below(120)));
      if (result && chance(3)) messages_.push_back(text("tool", below(60)));
      asked_ |= !result;
    }  // else the same again
    if (!asked_) messages_.back().role = "user", asked_ = true;
    TemplateOptions options;
    options.tolerant = true;
    options.preserve_thinking = preserve_;
    options.enable_thinking = !chance(3);
    const RenderedPrompt rendered = *render({messages_, {}}, options);
    PromptTokens prompt = tokenize(rendered, tokenizer_);
    GenerationRequest request;
    if (memory != nullptr)
      request.recalled = recall_answers(prompt, messages_, {*memory, tokenizer_, tools_});
    recalled += request.recalled;
    request.prompt = prompt.ids;
    request.marks = prompt.marks;
    request.turns = prompt.turns;
    request.starts_in_think = rendered.starts_in_think;
    request.max_tokens = 1 + below(chance(2) ? 60 : 8);
    request.stop_ids = {kEnd};
    request.sampling.mode = Sampling::Mode::greedy;
    if (chance(6)) {
      request.thinking_budget = below(6);
      request.think_end = kThinkEnd;
    }
    return request;
  }
  void told(const Answer& answer) {
    Message message{"assistant", {{ContentPart::Kind::text, answer.content}}, {}, {}};
    if (returns_ == 1 || (returns_ == 2 && chance(2))) message.reasoning = answer.reasoning;
    messages_.push_back(std::move(message));
  }
  bool chance(uint32_t in) { return below(in) == 0; }
  uint32_t below(uint32_t end) { return static_cast<uint32_t>(random_() % end); }
  uint32_t recalled = 0;

 private:
  Message text(std::string role, uint32_t length) {
    std::string words;
    for (uint32_t i = 0; i < length; ++i) words += chance(6) ? ' ' : static_cast<char>('a' + below(26));
    return {std::move(role), {{ContentPart::Kind::text, std::move(words)}}, {}, {}};
  }
  void edit() {
    std::vector<size_t> users;
    for (size_t i = 0; i < messages_.size(); ++i) {
      if (messages_[i].role == "user") users.push_back(i);
    }
    if (users.empty()) return;
    messages_.resize(users[below(static_cast<uint32_t>(users.size()))]);
    messages_.push_back(text("user", 1 + below(80)));
  }

  const Tokenizer& tokenizer_;
  std::mt19937 random_;
  bool preserve_ = false;
  bool asked_ = false;  // anything by a user
  uint32_t returns_ = 0;
  std::shared_ptr<const ToolSchemas> tools_;
  std::vector<Message> messages_;
};

class ConversationsTest : public testing::Test {
 protected:
  static constexpr int kTurns = 12;

  struct Found {
    int asked = 0;
    int parted = 0;  // answers that are another one where nothing is kept
    uint32_t recalled = 0;
    CacheMetrics cache;
  };

  // Conversations on one engine at once, each answer against that of an engine that keeps nothing
  // and reads in other chunks.
  Found talk(const Served& served, const Served& against, std::vector<Client>& talking, int turns) {
    std::atomic<int> asked = 0, parted = 0;
    std::vector<std::thread> threads;
    for (Client& client : talking) {
      threads.emplace_back([&, turns] {
        for (int turn = 0; turn < turns; ++turn) {
          const GenerationRequest request = client.next(served.engine->memory());
          const auto length = static_cast<uint32_t>(request.prompt.size());
          if (client.chance(5)) served.ask_and_leave(request, 1 + client.below(length));
          const Answer answer = served.ask(request);
          ++asked;
          parted += answer == against.ask(request) ? 0 : 1;
          client.told(answer);
        }
      });
    }
    for (std::thread& one : threads) one.join();
    Found found{.asked = asked, .parted = parted, .recalled = 0, .cache = served.engine->metrics().cache};
    for (const Client& client : talking) found.recalled += client.recalled;
    return found;
  }
  std::vector<Client> clients(uint32_t seed, uint32_t count) const {
    std::vector<Client> made;
    for (uint32_t i = 0; i < count; ++i) made.emplace_back(*tokenizer, seed * 100 + i);
    return made;
  }

  std::unique_ptr<Tokenizer> tokenizer = make_tiny_tokenizer(kWords);
  const Served cold{*tokenizer, 24, {.cache_bytes = 0}};
};

TEST_F(ConversationsTest, AnswersAreThoseOfAServerThatKeepsNothing) {
  uint64_t spared = 0, evicted = 0;
  uint32_t recalled = 0;
  for (uint32_t seed = 0; seed < 24; ++seed) {
    // Alone and in company, with room for all and for little.
    const Served served(*tokenizer, seed % 2 == 0 ? 16 : 64,
                        {.cache_bytes = seed % 3 == 0 ? 12U : 10'000U, .unsaved_seconds = 0});
    auto talking = clients(seed, seed % 4 < 2 ? 1 : 4);
    const Found found = talk(served, cold, talking, kTurns);
    EXPECT_EQ(found.parted, 0) << "of " << found.asked << ", seed " << seed;
    spared += found.cache.tokens;
    evicted += found.cache.evictions;
    recalled += found.recalled;
  }
  EXPECT_GT(spared, 100'000U);
  EXPECT_GT(evicted, 100U);
  EXPECT_GT(recalled, 50U);
}

TEST_F(ConversationsTest, SoAreThoseFromDiskInOtherChunks) {
  uint64_t read = 0;
  for (uint32_t seed = 0; seed < 6; ++seed) {
    std::string folder = (std::filesystem::temp_directory_path() / "lily-reading-XXXXXX").string();
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    auto talking = clients(1000 + seed, seed % 2 == 0 ? 1 : 4);
    for (uint32_t start = 0; start < 4; ++start) {
      const Served served(*tokenizer, 16U << start,
                          {.cache_bytes = 10'000,
                           .disk = DiskOptions{.folder = folder, .max_bytes = 1U << 30U, .model = {}},
                           .unsaved_seconds = 0});
      EXPECT_EQ(talk(served, cold, talking, 4).parted, 0) << "seed " << seed << ", start " << start;
      served.engine->drain(60);
      read += served.engine->metrics().cache.disk->read;
    }
    std::filesystem::remove_all(folder);
  }
  EXPECT_GT(read, 10U);
}

// Texts without turns that go on where they were answered, or in another way.
TEST_F(ConversationsTest, SoAreThoseToRawTexts) {
  uint64_t spared = 0;
  for (uint32_t seed = 0; seed < 12; ++seed) {
    const Served served(*tokenizer, 16, {.cache_bytes = 10'000, .unsaved_seconds = 0});
    std::mt19937 random(seed);
    const auto write = [&](Tokens& text, size_t count) {
      for (size_t i = 0; i < count; ++i) text.push_back('a' + static_cast<int32_t>(random() % 26));
    };
    GenerationRequest request;
    request.max_tokens = 30;
    request.stop_ids = {kEnd};
    request.sampling.mode = Sampling::Mode::greedy;
    write(request.prompt, 50);
    for (int turn = 0; turn < 10; ++turn) {
      write(request.prompt, 1 + random() % 150);
      const Answer answer = served.ask(request);
      EXPECT_EQ(answer, cold.ask(request)) << "seed " << seed << ", turn " << turn;
      for (const char c : answer.content) request.prompt.push_back(static_cast<unsigned char>(c));
      if (random() % 4 == 0) request.prompt.resize(request.prompt.size() - random() % 40);
    }
    spared += served.engine->metrics().cache.tokens;
  }
  EXPECT_GT(spared, 10'000U);
}

// The double tells: an engine that does not know of it answers otherwise where something is kept.
TEST_F(ConversationsTest, AnEngineThatReadsAnyhowAnswersOtherwise) {
  const Served before(*tokenizer, 16, {.cache_bytes = 0}, /*tells=*/false);
  const Served served(*tokenizer, 16, {.cache_bytes = 10'000}, /*tells=*/false);
  auto talking = clients(3, 4);
  const Found found = talk(served, before, talking, kTurns);
  std::cout << found.parted << " of " << found.asked << " answers part" << std::endl;
  EXPECT_GT(found.parted, 10);
}

// ---- What is read again ---------------------------------------------------------------------------------
class RereadTest : public testing::Test {
 protected:
  struct Asked {
    Tokens all;  // prompt and answer
    uint32_t prompt = 0, reread = 0;
  };
  Asked ask(const std::vector<Message>& messages, bool thinks = true) {
    TemplateOptions options;
    options.enable_thinking = thinks;
    const RenderedPrompt rendered = *render({messages, {}}, options);
    const PromptTokens prompt = tokenize(rendered, *tokenizer);
    GenerationRequest request;
    request.prompt = prompt.ids;
    request.marks = prompt.marks;
    request.turns = prompt.turns;
    return ask(std::move(request), rendered.starts_in_think);
  }
  Asked ask(GenerationRequest request, bool starts_in_think = false) {
    request.starts_in_think = starts_in_think;
    request.max_tokens = 20;
    request.stop_ids = {kEnd};
    request.sampling.mode = Sampling::Mode::greedy;
    Collector events;
    const auto job = served.engine->submit(request, events.sink());
    EXPECT_TRUE(job);
    EXPECT_TRUE(events.wait_end());
    EXPECT_TRUE(events.finished());
    const Usage usage = events.finished()->usage;
    text = events.content();
    reasoning = events.reasoning();
    return {request.prompt, usage.prompt_tokens, usage.prompt_tokens - usage.cached_tokens};
  }
  static Message message(std::string role, uint32_t length, char of) {
    return {std::move(role), {{ContentPart::Kind::text, std::string(length, of)}}, {}, {}};
  }

  std::unique_ptr<Tokenizer> tokenizer = make_tiny_tokenizer(kWords);
  const Served served{*tokenizer, 64, {.cache_bytes = 10'000}};
  std::string text, reasoning;
};

// Whatever the remainders of the lengths by the unit.
TEST_F(RereadTest, AnExactRepeatReadsNoMoreThanAFewTokens) {
  for (const bool thinks : {true, false}) {
    for (uint32_t length = 300; length < 300 + 3 * kUnit; ++length) {
      const std::vector<Message> messages{message("system", 200, 'a'), message("user", length, 'b')};
      ask(messages, thinks);
      EXPECT_LE(ask(messages, thinks).reread, 64U) << length;
    }
  }
}

// The template drops what was thought when a new question comes: from the opening of the first answer on.
TEST_F(RereadTest, ALaterQuestionReadsFromTheFirstAnswerOn) {
  for (uint32_t length = 300; length < 300 + kUnit; ++length) {
    std::vector<Message> messages{message("system", 200, 'a'), message("user", length, 'b')};
    for (int i = 0; i < 3; ++i) {
      ask(messages);
      messages.push_back(message("assistant", 100, 'x'));
      messages.back().reasoning = std::string(50, 'y');
      messages.push_back(message("tool", 100, 'c'));
    }
    ask(messages);
    messages.push_back(message("assistant", 10, 'x'));
    messages.push_back(message("user", 100, 'd'));
    const uint32_t before = tokenize(*render({{messages[0], messages[1]}, {}}, {}), *tokenizer).marks.back();
    const Asked asked = ask(messages);
    EXPECT_LE(asked.reread, asked.prompt - before + 64) << length;
  }
}

// An answer is known with all its tokens, and the next turn reads what follows them.
TEST_F(RereadTest, AnAnswerThatIsReturnedIsNotReadAgain) {
  std::vector<Message> messages{message("system", 200, 'a'), message("user", 300, 'b')};
  const auto said = [](size_t length) { return static_cast<int32_t>('a' + length % 26); };
  served.control->script_read = [said](const auto& history, const HowRead&) { return said(history.size()); };
  const Asked first = ask(messages);
  GenerationRequest request;
  request.prompt = first.all;
  for (uint32_t i = 0; i < 19; ++i) request.prompt.push_back(said(request.prompt.size()));
  const size_t known = request.prompt.size();
  for (const int32_t id : tokenizer->encode("<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n"))
    request.prompt.push_back(id);
  const Asked second = ask(std::move(request));
  EXPECT_LE(second.reread, second.prompt - known);
}

TEST_F(RereadTest, ARawPromptIsKeptToItsLastUnit) {
  GenerationRequest request;
  for (int32_t i = 0; i < 1003; ++i) request.prompt.push_back('a' + i * i % 26);
  ask(request);
  EXPECT_EQ(ask(request).reread, 3U);
  request.prompt.resize(1000);
  ask(request);
  EXPECT_EQ(ask(request).reread, kUnit);
}

// Rows of both kinds, and where passes end.
TEST_F(RereadTest, SlicesEndWhereReadingChangesOrAtUnits) {
  std::vector<Message> messages{message("system", 200, 'a'), message("user", 300, 'b'),
                                message("assistant", 30, 'x'), message("tool", 5, 'c')};
  const Asked asked = ask(messages);
  const Reading reading = ReadingRule(kTraits, *tokenizer).read(asked.all);
  uint32_t singles = 0;
  for (const SeenPass& pass : served.control->passes()) {
    for (const SeenSlice& slice : pass) {
      if (slice.decode) continue;
      const uint32_t end = slice.position + slice.rows;
      EXPECT_LE(end, reading.next_change(slice.position));
      EXPECT_EQ(slice.read_as, reading.as(slice.position));
      const bool at_change = end == asked.prompt || end == reading.next_change(slice.position);
      EXPECT_TRUE(at_change || reading.keeps(end)) << end;
      if (slice.read_as == ReadAs::single) {
        EXPECT_LE(slice.rows, kSingleRows);
        singles += slice.rows;
      }
    }
  }
  EXPECT_EQ(singles, std::string_view("T\n\n/\n\n").size() + 30 + 2 + 2) << "think block, text, end, opening";
}

}  // namespace
}  // namespace lily::test
