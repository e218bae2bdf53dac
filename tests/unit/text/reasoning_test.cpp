#include "text/reasoning.h"

#include <gtest/gtest.h>

#include "tests/support/cuts.h"

namespace lily {
namespace {

struct Parts {
  std::string reasoning, content;
  bool in_think;
  bool operator==(const Parts&) const = default;
};

void add(Parts& parts, const ReasoningSplitter::Delta& delta) {
  parts.reasoning += delta.reasoning;
  parts.content += delta.content;
}

Parts split(std::string_view text, bool starts_in_think, bool continues = false) {
  ReasoningSplitter splitter(starts_in_think, continues);
  Parts parts{};
  add(parts, splitter.push(text));
  add(parts, splitter.flush());
  parts.in_think = splitter.in_think();
  return parts;
}

TEST(Reasoning, SplitsAtTheFirstMarker) {
  EXPECT_EQ(split("need data\n</think>\n\n<tool_call>", true), (Parts{"need data", "<tool_call>", false}));
  EXPECT_EQ(split("a</think>b</think>c", true), (Parts{"a", "b</think>c", false}));
  EXPECT_EQ(split("</think>x", true), (Parts{"", "x", false}));
  EXPECT_EQ(split("\n\n</think>\n\n  x", true), (Parts{"", "  x", false})) << "indentation is content";
  EXPECT_EQ(split("\n \n  a \n\n b \n </think>\n", true), (Parts{"  a \n\n b", "", false}));
}

TEST(Reasoning, StaysInReasoningWithoutAMarker) {
  EXPECT_EQ(split("cut in the mid", true), (Parts{"cut in the mid", "", true}));
  EXPECT_EQ(split("cut in the </thin", true), (Parts{"cut in the </thin", "", true}));
  EXPECT_EQ(split("", true), (Parts{"", "", true}));
}

TEST(Reasoning, WithThinkingOffAllIsContent) {
  EXPECT_EQ(split("\n\nanswer </think> more", false), (Parts{"", "answer </think> more", false}));
  EXPECT_EQ(split("<thin", false), (Parts{"", "<thin", false}));
  EXPECT_EQ(split("x <think> y", false), (Parts{"", "x <think> y", false}));
}

TEST(Reasoning, ABlockTheModelOpensItselfIsReasoning) {
  EXPECT_EQ(split("<think>\nhm\n</think>\n\nyes", false), (Parts{"hm", "yes", false}));
  EXPECT_EQ(split("<think>\nhm\n</think>\n\n<think>", true), (Parts{"hm", "<think>", false}));
}

TEST(Reasoning, AContinuedMessageKeepsItsFirstLineBreaks) {
  EXPECT_EQ(split("\n\nmore", false, true), (Parts{"", "\n\nmore", false}));
}

TEST(Reasoning, IsTheSameHoweverItIsCut) {
  EXPECT_TRUE(rc::check("stream = whole", [] {
    const std::string text = *test::text_of_pieces(
        {"<think>", "</think>", "<", "/think>", "</", "thi", "a", "b c", " ", "\n", "\n\n"});
    const bool thinks = *rc::gen::arbitrary<bool>(), continues = *rc::gen::arbitrary<bool>();
    ReasoningSplitter splitter(thinks, continues);
    Parts parts{};
    for (const std::string& piece : test::cut(text)) add(parts, splitter.push(piece));
    add(parts, splitter.flush());
    parts.in_think = splitter.in_think();
    RC_ASSERT(parts == split(text, thinks, continues));
  }));
}

}  // namespace
}  // namespace lily
