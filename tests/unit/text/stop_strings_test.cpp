#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include "tests/support/cuts.h"

namespace lily {
namespace {

TEST(StopStrings, HoldsBackOnlyABeginning) {
  StopStrings stops({"END", "\n\n"});
  EXPECT_EQ(stops.push("abE").text, "ab");
  EXPECT_EQ(stops.push("Nx").text, "ENx");
  EXPECT_EQ(stops.push("y\n").text, "y");
  EXPECT_EQ(stops.flush(), "\n");
}

TEST(StopStrings, StopsBeforeTheString) {
  StopStrings stops({"END"});
  EXPECT_EQ(stops.push("one E").text, "one ");
  const auto piece = stops.push("ND two");
  EXPECT_TRUE(piece.stopped);
  EXPECT_EQ(piece.text, "");
  EXPECT_EQ(piece.matched, "END");
  EXPECT_EQ(stops.push("more").text, "");
  EXPECT_EQ(stops.flush(), "");
}

TEST(StopStrings, TheFirstToBeCompleteWinsAndTheLongestOfThose) {
  StopStrings inner({"abcd", "bc"});
  EXPECT_EQ(inner.push("xabcd").matched, "bc");
  StopStrings suffix({"c", "abc", ""});
  const auto piece = suffix.push("xabc");
  EXPECT_EQ(piece.matched, "abc");
  EXPECT_EQ(piece.text, "x");
}

TEST(StopStrings, WithoutStopsPassesEverything) {
  StopStrings none({});
  EXPECT_EQ(none.push("text").text, "text");
}

// The earliest end of any stop string, the longest of those that end there.
std::pair<std::string, std::string> by_definition(const std::vector<std::string>& stops,
                                                  const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string matched;
    for (const std::string& stop : stops)
      if (stop.size() > matched.size() && text.substr(0, end).ends_with(stop)) matched = stop;
    if (!matched.empty()) return {text.substr(0, end - matched.size()), matched};
  }
  return {text, ""};
}

TEST(StopStrings, IsTheSameHoweverItIsCut) {
  EXPECT_TRUE(rc::check("stream = definition", [] {
    const auto word = test::text_of_pieces({"a", "b", "ab"});
    const auto stops = *rc::gen::container<std::vector<std::string>>(word);
    const std::string text = *word;
    StopStrings stream(stops);
    std::string out, matched;
    for (const std::string& piece : test::cut(text)) {
      const auto found = stream.push(piece);
      RC_ASSERT(matched.empty() || found.text.empty());
      out += found.text;
      if (found.stopped) matched = found.matched;
    }
    out += stream.flush();
    RC_ASSERT(std::make_pair(out, matched) == by_definition(stops, text));
  }));
}

}  // namespace
}  // namespace lily
