#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include "tests/support/cuts.h"
#include "text/detokenizer.h"
#include "text/json.h"
#include "text/transcript.h"

namespace lily {
namespace {

namespace json = boost::json;

struct Case {
  std::string name, text;
  bool thinks = false, cut = false;
  json::array tools;
  json::object expected;
};

// An embedded NUL would cut it: no case has one.
std::string string_at(const json::value& value, const char* key) { return value.at(key).as_string().c_str(); }

std::vector<Case> read_cases(const std::string& path) {
  std::vector<Case> cases;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const json::value value = *parse_json(line);
    Case next;
    next.name = string_at(value, "name");
    next.text = string_at(value, "text");
    next.thinks = value.at("start") == "think";
    const json::object& object = value.get_object();
    if (object.contains("tool")) next.tools.push_back(object.at("tool"));
    if (object.contains("tools")) next.tools = object.at("tools").as_array();
    if (object.contains("end")) next.cut = object.at("end") == "length";
    if (const json::value* note = object.if_contains("note"); note != nullptr && note->is_string())
      next.cut = next.cut || note->get_string().find("`length`") != std::string::npos;
    next.expected = object.at("expect").as_object();
    cases.push_back(std::move(next));
  }
  return cases;
}

std::shared_ptr<const ToolSchemas> schemas(const json::array& tools) {
  return tools.empty() ? nullptr : std::make_shared<const ToolSchemas>(tools);
}

// What the pieces come to, and the order of their kinds.
struct Outcome {
  ParsedOutput output;
  std::string order;
  std::vector<std::string> prefixes;  // of the arguments, whenever some came
};

void take(Outcome& outcome, const std::vector<OutputPiece>& pieces, const std::string& text) {
  for (const OutputPiece& piece : pieces) {
    EXPECT_TRUE(piece.kind == OutputPiece::Kind::call_end || !piece.text.empty());
    outcome.output.add(piece);
    const char letter = "rcCae"[static_cast<size_t>(piece.kind)];
    if (outcome.order.empty() || outcome.order.back() != letter) outcome.order += letter;
    if (piece.kind == OutputPiece::Kind::arguments)
      outcome.prefixes.push_back(outcome.output.calls.at(piece.call).arguments);
    if (piece.kind == OutputPiece::Kind::reasoning || piece.kind == OutputPiece::Kind::content) {
      EXPECT_EQ(text.substr(piece.begin, piece.text.size()), piece.text) << "a piece says where it stands";
    }
  }
}

Outcome parse(const Case& given, const std::vector<std::string>& pieces) {
  OutputParser parser({.in_think = given.thinks}, schemas(given.tools));
  Outcome outcome;
  for (const std::string& piece : pieces) take(outcome, parser.push(piece), given.text);
  take(outcome, parser.finish(given.cut), given.text);
  return outcome;
}

json::array calls_of(const ParsedOutput& output) {
  json::array calls;
  for (const ParsedCall& call : output.calls)
    if (call.complete) calls.emplace_back(json::array{json::value(call.name), *parse_json(call.arguments)});
  return calls;
}

void expect_same(const Outcome& a, const Outcome& b) {
  ASSERT_EQ(a.output.reasoning, b.output.reasoning);
  ASSERT_EQ(a.output.content, b.output.content);
  ASSERT_EQ(a.order, b.order);
  ASSERT_EQ(a.output.calls.size(), b.output.calls.size());
  for (size_t i = 0; i < a.output.calls.size(); ++i) {
    ASSERT_EQ(a.output.calls[i].name, b.output.calls[i].name);
    ASSERT_EQ(a.output.calls[i].arguments, b.output.calls[i].arguments);
    ASSERT_EQ(a.output.calls[i].complete, b.output.calls[i].complete);
  }
}

void expect_right(const Case& given, const Outcome& outcome) {
  EXPECT_EQ(outcome.output.reasoning, string_at(json::value(given.expected), "reasoning"));
  EXPECT_EQ(outcome.output.content, string_at(json::value(given.expected), "content"));
  EXPECT_EQ(to_python_json(calls_of(outcome.output)), to_python_json(given.expected.at("calls")));
}

void expect_prefixes_are_no_json(const Outcome& outcome) {
  for (const std::string& prefix : outcome.prefixes) {
    bool whole = false;
    for (const ParsedCall& call : outcome.output.calls)
      whole = whole || (call.complete && call.arguments == prefix);
    EXPECT_EQ(parse_json(prefix).has_value(), whole) << prefix;
  }
}

void check_file(const std::string& path) {
  for (const Case& given : read_cases(path)) {
    SCOPED_TRACE(given.name);
    const Outcome whole = parse(given, {given.text});
    expect_right(given, whole);
    for (size_t at = 1; at < given.text.size(); ++at) {
      SCOPED_TRACE(at);
      ASSERT_NO_FATAL_FAILURE(
          expect_same(whole, parse(given, {given.text.substr(0, at), given.text.substr(at)})));
    }
    std::vector<std::string> bytes;
    for (const char byte : given.text) bytes.emplace_back(1, byte);
    const Outcome split = parse(given, bytes);
    ASSERT_NO_FATAL_FAILURE(expect_same(whole, split));
    expect_prefixes_are_no_json(split);
  }
}

TEST(OutputParser, IsRightForEveryCaseAndEveryCut) {
  check_file(std::string(LILY_SOURCE_DIR) + "/tests/data/parser/cases.jsonl");
}

TEST(OutputParser, SharedCases) {
  const std::string path = std::string(LILY_SOURCE_DIR) + "/../shared/cases/parser.jsonl";
  if (!std::ifstream(path)) GTEST_SKIP() << "../shared/cases/parser.jsonl is not there";
  check_file(path);
}

const json::array& some_tools() {
  static const json::array tools =
      parse_json(R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{
        "s":{"type":"string"},"n":{"type":"integer"},"a":{"type":["array","string","null"]}}}}}])")
          ->as_array();
  return tools;
}

TEST(OutputParser, IsTheSameHoweverItIsCut) {
  EXPECT_TRUE(rc::check("stream = whole", [] {
    Case given;
    given.text = *test::text_of_pieces(
        {"<tool_call>",
         "</tool_call>",
         "<function=f>",
         "<function=g>",
         "</function>",
         "<parameter=s>",
         "<parameter=n>",
         "<parameter=a>",
         "<parameter=zz>",
         "</parameter>",
         "</think>",
         "<think>",
         "\n",
         "\n\n",
         " ",
         "\r\n",
         "x",
         "5",
         "null",
         "[1]",
         "[",
         "{\"name\": \"f\", \"arguments\": {\"s\": \"}\"}}",
         "<tool_call>[{\"name\": \"f\", \"arguments\": {\"s\": \"a\"}",
         ",",
         "]",
         "<tool_call>\n<function=f\n",
         "<parameter=n\n",
         "{",
         "}",
         "\"",
         "<",
         "</",
         "é",
         "<tool_call>\n<function=f>\n<parameter=s>\n",
         "\n</parameter>\n</function>\n</tool_call>",
         "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>"});
    given.thinks = *rc::gen::arbitrary<bool>();
    given.cut = *rc::gen::arbitrary<bool>();
    if (*rc::gen::inRange(0, 8) > 0) given.tools = some_tools();
    const Outcome whole = parse(given, {given.text});
    expect_same(whole, parse(given, test::cut(given.text)));
    RC_ASSERT(!::testing::Test::HasFailure());
    for (const ParsedCall& call : whole.output.calls) {
      const Result<json::value> value = parse_json(call.arguments);
      RC_ASSERT(call.complete == (value && value->is_object()));
    }
  }));
}

// A line that begins with the end of a call, and the begin of the next one behind it: what a model writes
// that forgot to end the value, and read as that.
bool reads_as_the_next_call(std::string_view value) {
  constexpr std::string_view kEnd = "</tool_call>", kBlanks = " \t\r\n";
  for (size_t at = value.find(kEnd); at != std::string_view::npos; at = value.find(kEnd, at + 1)) {
    const size_t next = value.find_first_not_of(kBlanks, at + kEnd.size());
    if ((at == 0 || value[at - 1] == '\n') && next != std::string_view::npos &&
        value.substr(next).starts_with("<tool_call>")) {
      return true;
    }
  }
  return false;
}

// Whatever is asked for and rendered as the template does it comes back, also if it is about tool calls.
TEST(OutputParser, ReadsWhatTheTemplateWrites) {
  EXPECT_TRUE(rc::check("parse(render(call)) = call", [] {
    const std::string value = *test::text_of_pieces({"a", " ", "\n", "\"", "\\", "<", ">", "</", "<b>", "{",
                                                     "tool_call", "é", "\t", "</param", "function=f>"});
    RC_PRE(!reads_as_the_next_call(value));
    Case given;
    given.tools = some_tools();
    given.text =
        "<tool_call>\n<function=f>\n<parameter=s>\n" + value + "\n</parameter>\n</function>\n</tool_call>";
    const Outcome outcome = parse(given, test::cut(given.text));
    RC_ASSERT(outcome.output.calls.size() == 1U);
    RC_ASSERT(outcome.output.content.empty());
    RC_ASSERT(string_at(*parse_json(outcome.output.calls[0].arguments), "s") == value);
  }));
}

TEST(OutputParser, StreamsAStringWhileItArrives) {
  Case given;
  given.tools = some_tools();
  OutputParser parser({}, schemas(given.tools));
  Outcome outcome;
  const auto push = [&](const std::string& text) {
    given.text += text;
    take(outcome, parser.push(text), given.text);
    return outcome.output.calls.empty() ? "" : outcome.output.calls[0].arguments;
  };
  EXPECT_EQ(push("<tool_call>\n<function=f>\n<para"), "") << "could still be prose";
  EXPECT_EQ(push("meter=s>\n"), "{\"s\": ");
  EXPECT_EQ(push("one"), "{\"s\": \"one");
  EXPECT_EQ(push("\ntwo\n"), "{\"s\": \"one\\ntwo");
  EXPECT_EQ(push("</parame"), "{\"s\": \"one\\ntwo") << "held while it may be the end";
  EXPECT_EQ(push("d "), "{\"s\": \"one\\ntwo\\n</paramed ");
  EXPECT_EQ(push("\n</parameter>\n<parameter=n>\n4"), "{\"s\": \"one\\ntwo\\n</paramed \", \"n\": ");
  EXPECT_EQ(push("2\n</parameter>\n</function>\n"), "{\"s\": \"one\\ntwo\\n</paramed \", \"n\": 42}");
  EXPECT_TRUE(outcome.output.calls[0].complete);
}

// What `lily parse` goes by when no token says that the answer is over.
TEST(OutputParser, KnowsWhetherTextOfACallIsMissing) {
  const auto in_value = [](const std::string& text) {
    OutputParser parser({}, schemas(some_tools()));
    parser.push(text);
    return parser.in_value();
  };
  const std::string value = "<tool_call>\n<function=f>\n<parameter=s>\none\n";
  EXPECT_FALSE(in_value("text"));
  EXPECT_TRUE(in_value("<tool_call>\n<func"));
  EXPECT_TRUE(in_value(value));
  EXPECT_TRUE(in_value(value + "</parameter"));
  EXPECT_FALSE(in_value(value + "</parameter>"));
  EXPECT_FALSE(in_value(value + "</parameter>\n</parameter>\n"));
  EXPECT_TRUE(in_value(value + "</parameter>\n</func"));
  EXPECT_FALSE(in_value(value + "</parameter>\n</function>\n</tool"));
  EXPECT_TRUE(in_value("<tool_call>{\"name\": "));
  EXPECT_FALSE(in_value("<tool_call>{\"name\": </tool_call>\n"));
}

TEST(OutputParser, WithoutToolsNothingIsHeldBack) {
  OutputParser parser({}, nullptr);
  ParsedOutput output;
  for (const OutputPiece& piece : parser.push("text \n<tool_call>\n")) output.add(piece);
  EXPECT_EQ(output.content, "text \n<tool_call>\n");
}

TEST(OutputParser, IsLinearInItsInput) {
  Case given;
  given.tools = some_tools();
  const auto repeat = [](const std::string& text, size_t times) {
    std::string out;
    for (size_t i = 0; i < times; ++i) out += text;
    return out;
  };
  for (const char* unit : {"<tool_call>", "<tool_call>{", "<function=f>", "</parameter>\n", " \n", "<", "{\"",
                           "<tool_call>\n<function=f>\n<parameter=a>\n[", "<parameter=s>\n", "<tool_call>{}",
                           "<tool_call>[{", "<tool_call>{</tool_call>", "<tool_call>{}},", "<function=f\n"}) {
    for (const bool thinks : {false, true}) {
      given.thinks = thinks;
      given.text = repeat(unit, 200'000 / std::string(unit).size());
      std::vector<std::string> pieces;
      for (size_t at = 0; at < given.text.size(); at += 4) pieces.push_back(given.text.substr(at, 4));
      const auto begin = std::chrono::steady_clock::now();
      OutputParser parser({.in_think = thinks}, schemas(given.tools));
      for (const std::string& piece : pieces) parser.push(piece);
      parser.finish(false);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      EXPECT_LT(took.count(), 20.0) << unit << (thinks ? " in the reasoning" : "");
    }
  }
}

TEST(ToolSchemas, NeverFails) {
  const json::value odd = *parse_json(
      R"([1, null, {}, {"function": 3}, {"name": ""}, {"name": "a", "parameters": []}, {"name": "b", "input_schema":
      {"properties": {"x": true, "y": {"type": 3}, "z": {"$ref": "#/nowhere"}, "w": {"$ref": "https://else.where/"},
       "v": {"type": ["integer", 4, "odd"]}}}}])");
  const ToolSchemas tools(odd.as_array());
  EXPECT_TRUE(tools.declares("a"));
  EXPECT_TRUE(tools.declares("b"));
  EXPECT_FALSE(tools.declares(""));
  EXPECT_TRUE(tools.types("b", "x").empty());
  EXPECT_TRUE(tools.types("b", "z").empty());
  EXPECT_EQ(tools.types("b", "v"), std::vector<JsonType>{JsonType::integer});
  EXPECT_TRUE(tools.has_parameter("b", "w"));
}

}  // namespace
}  // namespace lily
