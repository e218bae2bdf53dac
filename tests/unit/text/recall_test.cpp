// Answers put back into a prompt as they were generated.
#include "text/recall.h"

#include <gtest/gtest.h>

#include "tests/support/tiny_tokenizer.h"
#include "text/json.h"

namespace lily {
namespace {

using Tokens = std::vector<int32_t>;

// Sequences that were read, the latest last.
class Sequences final : public TokenMemory {
 public:
  size_t known(std::span<const int32_t> prompt) const override {
    size_t most = 0;
    for (const Tokens& one : all) {
      const auto parted = std::mismatch(one.begin(), one.end(), prompt.begin(), prompt.end());
      most = std::max(most, static_cast<size_t>(parted.first - one.begin()));
    }
    return most;
  }
  std::vector<Tokens> continuations(std::span<const int32_t> prefix, int32_t end) const override {
    std::vector<Tokens> found;
    for (auto one = all.rbegin(); one != all.rend(); ++one) {
      if (one->size() <= prefix.size() || !std::equal(prefix.begin(), prefix.end(), one->begin())) continue;
      const auto begin = one->begin() + static_cast<ptrdiff_t>(prefix.size());
      found.emplace_back(begin, std::find(begin, one->end(), end));
    }
    return found;
  }
  std::vector<Tokens> all;
};

class RecallTest : public testing::Test {
 protected:
  void SetUp() override {
    tokenizer = test::make_tiny_tokenizer({"<|im_start|>", "<think>", "<tool_call>", "</tool_call>"});
    ASSERT_TRUE(tokenizer);
    tools = std::make_shared<ToolSchemas>(
        parse_json(R"([{"name": "look", "parameters": {"properties": {"x": {"type": "number"},
                       "y": {"type": "string"}, "z": {"type": "object"}}}}])")
            ->as_array());
  }

  static Message user(std::string text) {
    return {"user", {{ContentPart::Kind::text, std::move(text)}}, {}, {}};
  }
  static Message tool(std::string text) {
    return {"tool", {{ContentPart::Kind::text, std::move(text)}}, {}, {}};
  }
  static Message said(std::string text, std::optional<std::string> reasoning = {}) {
    return {"assistant", {{ContentPart::Kind::text, std::move(text)}}, std::move(reasoning), {}};
  }
  static Message called(const char* arguments, std::optional<std::string> reasoning = {}) {
    Message message = said("", std::move(reasoning));
    message.tool_calls.push_back({"", "look", parse_json(arguments)->as_object()});
    return message;
  }

  // Tokens of text in which the model writes its markers.
  Tokens raw(std::string_view text) const { return tokenizer->encode(text); }
  PromptTokens rendered(const std::vector<Message>& messages, bool preserve = false) const {
    TemplateOptions options;
    options.tolerant = true;
    options.preserve_thinking = preserve;
    return tokenize(*render({messages, {}}, options), *tokenizer);
  }
  // `prompt` was answered with `answer`, whose end marker was fed back.
  void remember(const Tokens& prompt, std::string_view answer) {
    Tokens all = prompt;
    for (const int32_t id : raw(answer)) all.push_back(id);
    all.push_back(test::kEnd);
    memory.all.push_back(std::move(all));
  }
  size_t recall(PromptTokens& prompt, const std::vector<Message>& messages) const {
    return recall_answers(prompt, messages, {memory, *tokenizer, tools});
  }
  std::string text(const PromptTokens& prompt) const { return tokenizer->decode(prompt.ids, false); }

  std::unique_ptr<Tokenizer> tokenizer;
  std::shared_ptr<const ToolSchemas> tools;
  Sequences memory;
};

constexpr const char* kOdd =
    "so\n\n</think>\n\n<tool_call>\n<function=look>\n<parameter=y>\nb\n</parameter>\n"
    "<parameter=x>\n2.0\n</parameter>\n\n</function>\n</tool_call>";

TEST_F(RecallTest, AnAnswerThatSaysTheSameIsPutBackWithItsOwnTokens) {
  std::vector<Message> messages{user("go")};
  const PromptTokens asked = rendered(messages);
  remember(asked.ids, kOdd);
  messages.push_back(called(R"({"x": 2, "y": "b"})", "so"));
  messages.push_back(tool("found"));
  PromptTokens prompt = rendered(messages);
  const PromptTokens before = prompt;
  ASSERT_EQ(recall(prompt, messages), 1U);
  EXPECT_EQ(memory.known(prompt.ids), memory.all[0].size());
  // What comes before and after is as it was rendered.
  const PromptTokens::Answer old = before.answers[0], now = prompt.answers[0];
  EXPECT_EQ(now.begin, old.begin);
  EXPECT_EQ(now.end, memory.all[0].size() - 1);
  EXPECT_EQ(Tokens(prompt.ids.begin() + now.end, prompt.ids.end()),
            Tokens(before.ids.begin() + old.end, before.ids.end()));
  const uint32_t moved = now.end - old.end;
  ASSERT_EQ(prompt.marks.size(), before.marks.size());
  for (size_t i = 0; i < prompt.marks.size(); ++i) {
    EXPECT_EQ(prompt.marks[i], before.marks[i] + (before.marks[i] >= old.end ? moved : 0)) << i;
  }
  for (size_t i = 0; i < prompt.turns.size(); ++i) {
    EXPECT_EQ(prompt.turns[i].begin, before.turns[i].begin + (before.turns[i].begin >= old.end ? moved : 0));
  }
  EXPECT_EQ(prompt.at_least, prompt.ids.size());
}

TEST_F(RecallTest, ReasoningThatWasNotReturnedComesBackAndOtherReasoningCounts) {
  const PromptTokens asked = rendered({user("go")});
  remember(asked.ids, "first thought\n</think>\n\nfine");
  remember(asked.ids, "second thought\n</think>\n\nfine");
  const auto answer = [&](std::optional<std::string> reasoning) {
    const std::vector<Message> messages{user("go"), said(" fine\n", std::move(reasoning)), tool("x")};
    PromptTokens prompt = rendered(messages);
    recall(prompt, messages);
    return text(prompt);
  };
  const auto has = [](const std::string& all, std::string_view part) {
    return all.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(answer(std::nullopt), "<think>\nsecond thought\n</think>"));
  EXPECT_TRUE(has(answer(""), "<think>\nsecond thought\n</think>"));
  EXPECT_TRUE(has(answer("first thought"), "<think>\nfirst thought\n</think>"));
  EXPECT_TRUE(has(answer("my own"), "<think>\nmy own\n</think>"));
}

// A conversation that went on, and a client that goes back into it: the later prompt has the answer without
// its thoughts.
TEST_F(RecallTest, WhatALaterPromptHadOfAnAnswerIsNotWhatWasAnswered) {
  const PromptTokens asked = rendered({user("go")});
  remember(asked.ids, kOdd);
  const std::vector<Message> loop{user("go"), called(R"({"x": 2, "y": "b"})"), tool("found")};
  std::vector<Message> later = loop;
  later.push_back(said("fine"));
  later.push_back(user("next"));
  memory.all.push_back(rendered(later).ids);
  PromptTokens prompt = rendered(loop);
  EXPECT_EQ(recall(prompt, loop), 1U);
  EXPECT_NE(text(prompt).find("<think>\nso\n\n</think>"), std::string::npos) << text(prompt);
}

TEST_F(RecallTest, WhatSaysSomethingElseIsRenderedAsItWasSent) {
  const PromptTokens asked = rendered({user("go")});
  remember(asked.ids, kOdd);
  for (const char* arguments : {R"({"x": 3, "y": "b"})", R"({"x": 2})", R"({"x": "2", "y": "b"})",
                                R"({"x": 2, "y": "b", "z": {}})"}) {
    const std::vector<Message> messages{user("go"), called(arguments, "so"), tool("x")};
    PromptTokens prompt = rendered(messages);
    EXPECT_EQ(recall(prompt, messages), 0U) << arguments;
    EXPECT_EQ(prompt.ids, rendered(messages).ids);
  }
  std::vector<Message> twice{user("go"), called(R"({"x": 2, "y": "b"})", "so"), tool("x")};
  twice[1].tool_calls.push_back(twice[1].tool_calls[0]);
  PromptTokens prompt = rendered(twice);
  EXPECT_EQ(recall(prompt, twice), 0U);
}

TEST_F(RecallTest, ReasoningThatTheTemplateDropsStaysDropped) {
  const PromptTokens asked = rendered({user("go")});
  remember(asked.ids, "hidden\n</think>\n\n fine ");
  const std::vector<Message> messages{user("go"), said("fine", "hidden"), user("next")};
  PromptTokens prompt = rendered(messages);
  EXPECT_EQ(recall(prompt, messages), 0U);
  EXPECT_EQ(text(prompt).find("hidden"), std::string::npos);
  PromptTokens kept = rendered(messages, /*preserve=*/true);
  EXPECT_EQ(recall(kept, messages), 1U);
}

TEST_F(RecallTest, ControlTokensAndUnfinishedPartsAreNeverPutBack) {
  const PromptTokens asked = rendered({user("go")});
  Tokens inside = asked.ids;
  for (const int32_t id : raw("so\n</think>\n\nfine")) inside.push_back(id);
  memory.all.push_back(inside);  // cut at a limit: whole as it is
  const std::vector<Message> messages{user("go"), said("fine ", "so"), tool("x")};
  {
    PromptTokens prompt = rendered(messages);
    EXPECT_EQ(recall(prompt, messages), 0U) << "it is the rendered one";
  }
  memory.all[0] = asked.ids;
  for (const int32_t id : raw("fine")) memory.all[0].push_back(id);  // still thinking
  const std::vector<Message> thinking{user("go"), said("", "fine"), tool("x")};
  PromptTokens prompt = rendered(thinking);
  EXPECT_EQ(recall(prompt, thinking), 0U);
}

TEST_F(RecallTest, OneAnswerAfterTheOther) {
  std::vector<Message> messages{user("go")};
  for (int turn = 0; turn < 4; ++turn) {
    PromptTokens prompt = rendered(messages);
    EXPECT_EQ(recall(prompt, messages), static_cast<size_t>(turn));
    if (turn > 0) {
      EXPECT_EQ(memory.known(prompt.ids), memory.all.back().size()) << turn;
    }
    remember(prompt.ids, kOdd);
    messages.push_back(called(R"({"y": "b", "x": 2.0})"));
    messages.push_back(tool("result " + std::to_string(turn)));
  }
  // An edit ends it: what was said after it is not known in this conversation.
  messages[4] = tool("another result");
  PromptTokens prompt = rendered(messages);
  EXPECT_EQ(recall(prompt, messages), 2U);
}

}  // namespace
}  // namespace lily
