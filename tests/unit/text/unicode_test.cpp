#include "text/unicode.h"

#include <gtest/gtest.h>

#include "tests/support/cuts.h"
#include "text/detokenizer.h"
#include "text/pretokenizer.h"

namespace lily {
namespace {

std::string composed(std::string_view text) {
  std::string storage;
  return std::string(nfc(text, storage));
}

TEST(Nfc, ComposesOrdersAndKeeps) {
  EXPECT_EQ(composed("plain"), "plain");
  EXPECT_EQ(composed("e\u0301"), "\u00e9");
  EXPECT_EQ(composed("xe\u0327\u0301y"), "x\u0229\u0301y");
  EXPECT_EQ(composed("s\u0307\u0323"), "\u1e69") << "marks are ordered before they join";
  EXPECT_EQ(composed("\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(composed("\uac00\u11a8"), "\uac01");
  EXPECT_EQ(composed("\u0958"), "\u0915\u093c") << "composition exclusion";
  EXPECT_EQ(composed("\u212b"), "\u00c5") << "singleton";
  EXPECT_EQ(composed("\u0344"), "\u0308\u0301");
  EXPECT_EQ(composed("e\u0897\u0327"), "e\u0897\u0327") << "a mark newer than the library's data stays put";
  const std::string unchanged = "\u00e9\u4e00 \uac01";
  std::string storage;
  EXPECT_EQ(nfc(unchanged, storage).data(), unchanged.data()) << "nothing is copied when nothing changes";
}

TEST(Nfc, OrdersALongRunOfMarksQuickly) {
  std::string marks = "e", sorted = "\u0229";
  for (int i = 0; i < 200000; ++i) marks += i % 2 == 0 ? "\u0301" : "\u0327";
  const std::string result = composed(marks);  // quadratic ordering would take minutes
  EXPECT_EQ(result.size(), marks.size() - 1);
  EXPECT_TRUE(result.starts_with(sorted));
}

TEST(Utf8, ReplacesEachMaximalInvalidPart) {
  EXPECT_EQ(replace_invalid("a\xC3z"), "a\uFFFDz");
  EXPECT_EQ(replace_invalid("\xF0\x9F\x98z"), "\uFFFDz");
  EXPECT_EQ(replace_invalid("\xE0\x80\x80"), "\uFFFD\uFFFD\uFFFD") << "overlong: no part is a beginning";
  EXPECT_EQ(replace_invalid("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD") << "surrogate";
  EXPECT_EQ(replace_invalid("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD") << "beyond U+10FFFF";
  EXPECT_EQ(replace_invalid("\xFF\xC0\xE2\x82"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid("\u00e9\U0001F600"), "\u00e9\U0001F600");
}

TEST(Utf8Stream, IsTheSameHoweverItIsCut) {
  EXPECT_TRUE(rc::check("stream = whole", [] {
    const std::string text = *test::text_of_pieces({"a", "\xC3\xA9", "\xF0\x9F\x98\x80", "\xF0", "\x9F",
                                                    "\x98", "\xE2\x82", "\xED\xA0", "\x80", "\xFF"});
    Utf8Stream stream;
    std::string out;
    for (const std::string& piece : test::cut(text)) {
      const std::string safe = stream.push(piece);
      RC_ASSERT(first_invalid(safe) == safe.size());
      out += safe;
    }
    out += stream.flush();
    RC_ASSERT(out == replace_invalid(text));
  }));
}

TEST(PythonStrip, KnowsPythonsWhiteSpace) {
  EXPECT_EQ(python_strip(
                " \t\n\v\f\r\x1c\x1d\x1e\x1f x\u0085\u00a0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000"),
            "x");
  EXPECT_EQ(python_strip("\u200bx\ufeff"), "\u200bx\ufeff");
  EXPECT_EQ(python_strip(" \n "), "");
  EXPECT_EQ(python_strip(""), "");
  EXPECT_EQ(python_strip("\x80 "), "\x80");
}

TEST(Pretokenizer, CutsAsTheRegexDoes) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"I'm we'LL it'\u017f x'y", {"I", "'m", " we", "'LL", " it", "'\u017f", " x", "'y"}},
      {"'\u017fab 'sab 'lab", {"'\u017f", "ab", " '", "sab", " '", "lab"}},
      {"a1b22", {"a", "1", "b", "2", "2"}},
      {" ?!\n\nx", {" ?!\n\n", "x"}},
      {"a  b", {"a", " ", " b"}},
      {"a \n \n b", {"a", " \n \n", " b"}},
      {"a  ", {"a", "  "}},
      {"(e\u0301)", {"(e\u0301", ")"}},
      {"\u0301\u0301 .", {"\u0301\u0301", " ."}},
      {"\t\tx", {"\t", "\tx"}},
  };
  for (const auto& [text, pieces] : cases) {
    std::vector<std::string> found;
    for (size_t at = 0; at < text.size();) {
      const size_t end = piece_end(text, at);
      ASSERT_GT(end, at);
      found.push_back(text.substr(at, end - at));
      at = end;
    }
    EXPECT_EQ(found, pieces) << text;
  }
}

}  // namespace
}  // namespace lily
