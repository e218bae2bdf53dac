#include "base/number.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

namespace lily {
namespace {

struct Parsed {
  std::errc error;
  ptrdiff_t length;
  double value;
};
Parsed by(std::from_chars_result (*parse)(const char*, const char*, double&), const std::string& text) {
  double value = -77;
  const auto [end, error] = parse(text.data(), text.data() + text.size(), value);
  return {error, end - text.data(), value};
}

// What a Mac uses, beside what Linux uses.
void expect_same(const std::string& text) {
  const Parsed a = by(parse_double, text);
  const Parsed b = by(parse_double_by_strtod, text);
  EXPECT_EQ(a.error, b.error) << text;
  EXPECT_EQ(a.length, b.length) << text;
  EXPECT_EQ(std::memcmp(&a.value, &b.value, sizeof a.value), 0) << text;
}

TEST(ParseDouble, SameByBothWays) {
  for (const char* text : {"0",
                           "-0",
                           "1",
                           "12.5",
                           "-1e3",
                           "1E+3",
                           "1e-3",
                           "1e",
                           "1e+",
                           "1.e5",
                           ".5",
                           ".",
                           "-",
                           "",
                           "+1",
                           " 1",
                           "1 ",
                           "0x10",
                           "1.5.5",
                           "1e400",
                           "-1e400",
                           "1e-400",
                           "4.9e-324",
                           "2e-324",
                           "2.2250738585072014e-308",
                           "1.7976931348623157e308",
                           "1.7976931348623159e308",
                           "9007199254740993",
                           "0.1",
                           "123456789012345678901234567890",
                           "e5",
                           "-e5",
                           "-.e5",
                           "00012",
                           "1,5"}) {
    expect_same(text);
  }
  std::mt19937_64 random(7);
  for (int i = 0; i < 20'000; ++i) {
    const auto bits = random();
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    if (value - value == 0) {
      char text[64];
      snprintf(text, sizeof text, "%.*g", static_cast<int>(random() % 20 + 1), value);
      expect_same(text);
    }
  }
}

}  // namespace
}  // namespace lily
