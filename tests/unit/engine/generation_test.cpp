#include "engine/generation.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "sampling/sampler.h"
#include "tests/support/tiny_tokenizer.h"
#include "text/json.h"

namespace lily::test {
namespace {

constexpr uint32_t kVocab = 300;

std::vector<int32_t> bytes(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

struct Answer {
  std::string reasoning, content;
  std::string calls;  // names and arguments, each whole one followed by a semicolon
  std::vector<Delta> deltas;
  std::optional<FinishReason> end;
  std::string stop_string;
  uint32_t tokens = 0, reasoning_tokens = 0;
  // The bytes of the tokens whose logprobs came with content, joined.
  std::string content_tokens, reasoning_tokens_text;
};

Answer run(const Tokenizer& tokenizer, const GenerationRequest& request, const std::vector<int32_t>& ids,
           uint32_t max_tokens = 1000) {
  Generation generation(tokenizer, request, max_tokens);
  Answer answer;
  for (const int32_t id : ids) {
    std::vector<float> logits;
    if (request.logprobs) {
      logits.assign(kVocab, 0.0F);
      logits[static_cast<size_t>(id)] = 2.0F;
    }
    Generation::Step step = generation.push(id, logits);
    for (Delta& delta : step.deltas) {
      EXPECT_EQ((delta.reasoning.empty() ? 0 : 1) + (delta.content.empty() ? 0 : 1) + (delta.call ? 1 : 0),
                1);
      if (delta.call) {
        EXPECT_TRUE(delta.logprobs.empty());
        answer.calls += delta.call->name + delta.call->arguments + (delta.call->complete ? ";" : "");
        continue;
      }
      answer.reasoning += delta.reasoning;
      answer.content += delta.content;
      for (const TokenInfo& info : delta.logprobs) {
        (delta.content.empty() ? answer.reasoning_tokens_text : answer.content_tokens) += info.chosen.bytes;
      }
      answer.deltas.push_back(std::move(delta));
    }
    answer.end = step.end;
    if (step.end) break;
  }
  answer.stop_string = generation.stop_string();
  answer.tokens = generation.tokens();
  answer.reasoning_tokens = generation.reasoning_tokens();
  return answer;
}

GenerationRequest plain() {
  GenerationRequest request;
  request.stop_ids = {kEnd};
  return request;
}

class GenerationTest : public testing::Test {
 protected:
  std::unique_ptr<Tokenizer> tokenizer =
      make_tiny_tokenizer({"Hel", "lo", "\n\n", "<<", "STOP", "xHe", "\n\nHi"});
  const int32_t hel = kFirstWord, lo = kFirstWord + 1, blank = kFirstWord + 2, stop = kFirstWord + 4,
                xhe = kFirstWord + 5, blank_hi = kFirstWord + 6;
};

TEST_F(GenerationTest, AStopIdEndsTheAnswerAndIsNotSent) {
  const Answer answer = run(*tokenizer, plain(), {hel, lo, kEnd});
  EXPECT_EQ(answer.content, "Hello");
  EXPECT_EQ(answer.end, FinishReason::stop);
  EXPECT_EQ(answer.stop_string, "");
  EXPECT_EQ(answer.tokens, 3U);
}

TEST_F(GenerationTest, TheLimitEndsTheAnswerWithLength) {
  const Answer answer = run(*tokenizer, plain(), {hel, lo, hel}, 2);
  EXPECT_EQ(answer.content, "Hello");
  EXPECT_EQ(answer.end, FinishReason::length);
  // A stop id as the last allowed token is still a stop.
  EXPECT_EQ(run(*tokenizer, plain(), {hel, kEnd}, 2).end, FinishReason::stop);
}

TEST_F(GenerationTest, ReasoningAndContentAreSplitAndCounted) {
  GenerationRequest request = plain();
  request.starts_in_think = true;
  const Answer answer = run(*tokenizer, request, {hel, lo, blank, kThinkEnd, blank, hel, lo, kEnd});
  EXPECT_EQ(answer.reasoning, "Hello");
  EXPECT_EQ(answer.content, "Hello");
  EXPECT_EQ(answer.reasoning_tokens, 4U);
  EXPECT_EQ(answer.tokens, 8U);
}

TEST_F(GenerationTest, ThinkingCutByTheLimitStaysReasoning) {
  GenerationRequest request = plain();
  request.starts_in_think = true;
  const Answer answer = run(*tokenizer, request, bytes("a thought <"), 11);
  EXPECT_EQ(answer.reasoning, "a thought <");
  EXPECT_EQ(answer.content, "");
  EXPECT_EQ(answer.end, FinishReason::length);
  EXPECT_EQ(answer.reasoning_tokens, 11U);
}

TEST_F(GenerationTest, StopStringsAreFoundAcrossTokensAndOnlyInContent) {
  GenerationRequest request = plain();
  request.starts_in_think = true;
  request.stop = {"apple"};
  std::vector<int32_t> ids = bytes("an apple?");
  ids.push_back(kThinkEnd);
  for (const int32_t id : bytes("\n\nA pear, an apple and more")) ids.push_back(id);
  const Answer answer = run(*tokenizer, request, ids);
  EXPECT_EQ(answer.reasoning, "an apple?");
  EXPECT_EQ(answer.content, "A pear, an ");
  EXPECT_EQ(answer.end, FinishReason::stop);
  EXPECT_EQ(answer.stop_string, "apple");
}

TEST_F(GenerationTest, WhatAStopStringHeldBackIsSentAtTheEnd) {
  GenerationRequest request = plain();
  request.stop = {"Hello!"};
  const Answer answer = run(*tokenizer, request, {hel, lo, kEnd});
  EXPECT_EQ(answer.content, "Hello");
  EXPECT_EQ(answer.deltas.size(), 1U);  // held until the end
}

TEST_F(GenerationTest, AnUnfinishedCharacterIsReplacedAtTheEnd) {
  std::vector<int32_t> ids = bytes("ok \xF0\x9F\x98");
  ids.push_back(kEnd);
  EXPECT_EQ(run(*tokenizer, plain(), ids).content, "ok \uFFFD");
}

TEST_F(GenerationTest, ACharacterOfSeveralTokensComesWithAllTheirLogprobs) {
  GenerationRequest request = plain();
  request.logprobs = 0;
  std::vector<int32_t> ids = bytes("a😀b");
  ids.push_back(kEnd);
  const Answer answer = run(*tokenizer, request, ids);
  ASSERT_EQ(answer.deltas.size(), 3U);
  EXPECT_EQ(answer.deltas[1].content, "😀");
  EXPECT_EQ(answer.deltas[1].logprobs.size(), 4U);
  EXPECT_EQ(answer.content_tokens, "a😀b");
}

TEST_F(GenerationTest, AHeldTokenIsNotReportedBeforeItsText) {
  GenerationRequest request = plain();
  request.logprobs = 0;
  request.stop = {"Hello!"};
  // "Hel" is held; "xHe" sends "Helx" and holds "He"; "Hel" after it sends "He" and holds "Hel".
  const Answer answer = run(*tokenizer, request, {hel, xhe, hel, kEnd});
  ASSERT_EQ(answer.deltas.size(), 3U);
  EXPECT_EQ(answer.deltas[0].content, "Helx");
  EXPECT_EQ(answer.deltas[0].logprobs.size(), 2U);
  EXPECT_EQ(answer.deltas[1].content, "He");
  EXPECT_EQ(answer.deltas[1].logprobs.size(), 0U);  // its token was sent with its first byte
  EXPECT_EQ(answer.deltas[2].content, "Hel");
  EXPECT_EQ(answer.deltas[2].logprobs.size(), 1U);
}

TEST_F(GenerationTest, MarkersAndCutTextHaveNoLogprobs) {
  GenerationRequest request = plain();
  request.starts_in_think = true;
  request.logprobs = 2;
  request.stop = {"STOP"};
  const Answer answer = run(*tokenizer, request, {hel, lo, blank, kThinkEnd, blank_hi, lo, stop, hel});
  EXPECT_EQ(answer.reasoning_tokens_text, "Hello");
  EXPECT_EQ(answer.content, "Hilo");
  EXPECT_EQ(answer.content_tokens, "\n\nHilo");  // the token that begins with the dropped blank line is whole
  EXPECT_EQ(answer.end, FinishReason::stop);
}

TEST_F(GenerationTest, LogprobsAreOfTheUntemperedRow) {
  GenerationRequest request = plain();
  request.logprobs = 3;
  request.sampling.temperature = 0.1F;
  const Answer answer = run(*tokenizer, request, {hel, kEnd});
  ASSERT_EQ(answer.deltas.size(), 1U);
  const TokenInfo& info = answer.deltas[0].logprobs.at(0);
  const double expected = 2.0 - std::log(std::exp(2.0) + (kVocab - 1));
  EXPECT_EQ(info.chosen.token, hel);
  EXPECT_EQ(info.chosen.bytes, "Hel");
  EXPECT_NEAR(info.chosen.logprob, expected, 1e-9);
  ASSERT_EQ(info.top.size(), 3U);
  EXPECT_EQ(info.top[0].token, hel);
  EXPECT_NEAR(info.top[0].logprob, expected, 1e-9);
  EXPECT_EQ(info.top[1].token, 0);  // ties by lower id
  EXPECT_NEAR(info.top[1].logprob, expected - 2.0, 1e-9);
}

std::shared_ptr<const ToolSchemas> weather_tool() {
  return std::make_shared<const ToolSchemas>(
      parse_json(
          R"([{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{
        "city":{"type":"string"}}}}}])")
          ->as_array());
}
const std::string kCall =
    "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>";

TEST_F(GenerationTest, CallsAreTakenOutAndEndTheAnswerWithTheirReason) {
  GenerationRequest request = plain();
  request.tools = weather_tool();
  std::vector<int32_t> ids = bytes("I look.\n\n" + kCall + "\n" + kCall);
  ids.push_back(kEnd);
  const Answer answer = run(*tokenizer, request, ids);
  EXPECT_EQ(answer.content, "I look.");
  EXPECT_EQ(answer.calls, R"(weather{"city": "Oslo"};weather{"city": "Oslo"};)");
  EXPECT_EQ(answer.end, FinishReason::tool_calls);

  request.tools = nullptr;
  EXPECT_EQ(run(*tokenizer, request, ids).calls, "") << "without tools nothing is a call";
}

TEST_F(GenerationTest, OneCallEndsTheAnswerWhenNoMoreAreWanted) {
  GenerationRequest request = plain();
  request.tools = weather_tool();
  request.calls = GenerationRequest::Calls::one;
  const std::vector<int32_t> ids = bytes(kCall + "\n" + kCall);
  const Answer answer = run(*tokenizer, request, ids);
  EXPECT_EQ(answer.calls, R"(weather{"city": "Oslo"};)");
  EXPECT_EQ(answer.end, FinishReason::tool_calls);
  EXPECT_LE(answer.tokens, kCall.size());
}

TEST_F(GenerationTest, DroppedCallsLeaveTheText) {
  GenerationRequest request = plain();
  request.tools = weather_tool();
  request.calls = GenerationRequest::Calls::dropped;
  std::vector<int32_t> ids = bytes("a\n" + kCall);
  ids.push_back(kEnd);
  const Answer answer = run(*tokenizer, request, ids);
  EXPECT_EQ(answer.content, "a");
  EXPECT_EQ(answer.calls, "");
  EXPECT_EQ(answer.end, FinishReason::stop);
}

TEST_F(GenerationTest, TheLimitInsideACallIsLength) {
  GenerationRequest request = plain();
  request.tools = weather_tool();
  const std::vector<int32_t> ids = bytes(kCall);
  for (uint32_t limit = 1; limit < ids.size(); ++limit) {
    const Answer answer = run(*tokenizer, request, ids, limit);
    const bool whole = answer.calls == R"(weather{"city": "Oslo"};)";
    EXPECT_EQ(answer.end, whole ? FinishReason::tool_calls : FinishReason::length) << limit;
    EXPECT_EQ(answer.content.find("function"), std::string::npos) << answer.content;
  }
}

TEST_F(GenerationTest, StopStringsAreOfTheContentOnlyAndDoNotReachOverACall) {
  GenerationRequest request = plain();
  request.tools = weather_tool();
  request.stop = {"Oslo", "ab"};
  request.logprobs = 0;
  std::vector<int32_t> ids = bytes("xa\n" + kCall + "\nb Oslo");
  ids.push_back(kEnd);
  const Answer answer = run(*tokenizer, request, ids);
  EXPECT_EQ(answer.calls, R"(weather{"city": "Oslo"};)");
  EXPECT_EQ(answer.content, "xa\nb ");
  EXPECT_EQ(answer.content_tokens, answer.content);
  EXPECT_EQ(answer.stop_string, "Oslo");
}

// However a text is cut into tokens, the answer is the same; and the tokens that come with the content are
// those whose text it is, in order, each once.
RC_GTEST_FIXTURE_PROP(GenerationTest, TheCutIntoTokensDoesNotMatter, ()) {
  const auto pieces = *rc::gen::container<std::vector<std::string>>(
      rc::gen::element<std::string>("Hel", "lo", "\n\n", "<<", "STOP", "ST", "OP", "</think>", "</th", "ink>",
                                    "é", "😀", " ", "\n", "x", "xHe", "<tool_call>", kCall));
  const bool think = *rc::gen::arbitrary<bool>();
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  GenerationRequest request = plain();
  request.starts_in_think = think;
  request.logprobs = 0;
  request.stop = {"STOP", "xHello"};
  if (*rc::gen::arbitrary<bool>()) request.tools = weather_tool();
  // One cut by bytes, the other with the words of the tokenizer where they fit.
  std::vector<int32_t> by_byte = bytes(text), by_word = tokenizer->encode(text);
  by_byte.push_back(kEnd);
  by_word.push_back(kEnd);
  const Answer a = run(*tokenizer, request, by_byte, 100000), b = run(*tokenizer, request, by_word, 100000);
  RC_ASSERT(a.reasoning == b.reasoning);
  RC_ASSERT(a.content == b.content);
  RC_ASSERT(a.calls == b.calls);
  RC_ASSERT(a.stop_string == b.stop_string);
  RC_ASSERT(a.content_tokens == a.content);
  RC_ASSERT(a.reasoning_tokens_text == a.reasoning);
  RC_ASSERT(b.content_tokens.find(b.content) != std::string::npos);
}

}  // namespace
}  // namespace lily::test
