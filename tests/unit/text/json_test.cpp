#include "text/json.h"

#include <gtest/gtest.h>

#include "text/chat_template.h"

namespace lily {
namespace {

std::string rewritten(std::string_view text) {
  const auto value = parse_json(text);
  return value ? to_python_json(*value) : "error: " + value.error().message;
}

TEST(PythonJson, WritesNumbersAsRepr) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"1.0", "1.0"},
      {"-0.0", "-0.0"},
      {"0.1", "0.1"},
      {"1e5", "100000.0"},
      {"1E16", "1e+16"},
      {"1e15", "1000000000000000.0"},
      {"0.0001", "0.0001"},
      {"0.00001", "1e-05"},
      {"1.5e300", "1.5e+300"},
      {"5e-324", "5e-324"},
      {"2.2250738585072014e-308", "2.2250738585072014e-308"},
      {"0.30000000000000004", "0.30000000000000004"},
      {"123456.789", "123456.789"},
      {"1e400", "Infinity"},
      {"-1e400", "-Infinity"},
      {"1e-400", "0.0"},
      {"-1e-400", "-0.0"},
      {"9223372036854775807", "9223372036854775807"},
      {"-9223372036854775808", "-9223372036854775808"},
      {"18446744073709551615", "18446744073709551615"},
      {"18446744073709551616", "18446744073709551616"},
      {"-123456789012345678901234567890", "-123456789012345678901234567890"},
      {"[123456789012345678901234567890,1]", "[123456789012345678901234567890, 1]"},
      {"-0", "0"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
      {"3.141592653589793", "3.141592653589793"},
      {"9007199254740993.0", "9007199254740992.0"}};
  for (const auto& [in, out] : cases) EXPECT_EQ(rewritten(in), out) << in;
}

TEST(PythonJson, WritesStructureAndKeepsKeyOrder) {
  EXPECT_EQ(rewritten(R"({"b":1,"a":[null,true,false,{}],"c":[]})"),
            R"({"b": 1, "a": [null, true, false, {}], "c": []})");
  EXPECT_EQ(rewritten(R"({"a":1,"b":2,"a":3})"), R"({"a": 3, "b": 2})");
}

TEST(PythonJson, EscapesWhatPythonEscapes) {
  EXPECT_EQ(rewritten(R"("\u0000\u001f\b\f\n\r\t\"\\\/\u007f\u00e9\u2028<&>")"),
            "\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\"\\\\/\x7f\u00e9\u2028<&>\"");
  EXPECT_EQ(rewritten(R"("\ud83d\ude00")"), "\"\U0001F600\"");
}

TEST(ParseJson, IntegersBeyond64BitsAreNothingElse) {
  const auto big = parse_json("-123456789012345678901234567890");
  ASSERT_TRUE(big);
  EXPECT_EQ(big_integer(*big), "-123456789012345678901234567890");
  for (const char* text : {"1", "1.5", "{}", "[]", R"({"a":"1"})", R"("12")", "null"})
    EXPECT_FALSE(big_integer(*parse_json(text))) << text;
}

TEST(SerializeJson, HasTheDigitsOfBigIntegers) {
  for (const char* text :
       {R"({"a":[123456789012345678901234567890,-123456789012345678901234567890],"b":{"c":"\u00ff"}})",
        "123456789012345678901234567890", R"({"x":{},"y":"z"})", "[]"}) {
    const std::string out = serialize_json(*parse_json(text));
    EXPECT_EQ(to_python_json(*parse_json(out)), rewritten(text));
    EXPECT_EQ(out.find('\xFF'), std::string::npos);
  }
}

TEST(ParseJson, RefusesWhatIsNotJson) {
  for (const char* text : {"", "{", "1 2", "NaN", "[1,]", "\"\\ud800\"", "\"\xFF\"", "'a'", "01", "nul"})
    EXPECT_FALSE(parse_json(text)) << text;
  EXPECT_FALSE(parse_json(std::string(100, '[') + std::string(100, ']')));
  EXPECT_TRUE(parse_json(std::string(60, '[') + std::string(60, ']')));
}

}  // namespace
}  // namespace lily
