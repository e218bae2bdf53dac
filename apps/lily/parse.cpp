// lily parse: raw model output taken apart as the server does it.
#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <memory>

#include "apps/lily/commands.h"
#include "apps/lily/input.h"
#include "apps/lily/tools_file.h"
#include "text/detokenizer.h"
#include "text/json.h"
#include "text/output_parser.h"
#include "text/transcript.h"

namespace lily::app {
namespace {

namespace json = boost::json;

struct ParseOptions {
  std::string tools;
  std::string start = "think";
  bool split = false;
};

std::string json_string(std::string_view text) {
  std::string out(1, '"');
  append_json_escaped(out, text);
  out.push_back('"');
  return out;
}

std::string event_json(const OutputPiece& piece) {
  switch (piece.kind) {
    case OutputPiece::Kind::reasoning:
      return fmt::format(R"({{"reasoning":{}}})", json_string(piece.text));
    case OutputPiece::Kind::content:
      return fmt::format(R"({{"content":{}}})", json_string(piece.text));
    case OutputPiece::Kind::call:
      return fmt::format(R"({{"tool_call":{{"index":{},"name":{}}}}})", piece.call, json_string(piece.text));
    case OutputPiece::Kind::arguments:
      return fmt::format(R"({{"tool_call":{{"index":{},"arguments":{}}}}})", piece.call,
                         json_string(piece.text));
    case OutputPiece::Kind::call_end:
      return fmt::format(R"({{"tool_call":{{"index":{},"end":true}}}})", piece.call);
  }
  return {};
}

std::string output_json(const ParsedOutput& output, std::string_view finish) {
  std::string calls;
  for (const ParsedCall& call : output.calls) {
    if (!call.complete) {
      continue;
    }
    calls += fmt::format(R"({}{{"name":{},"arguments":{}}})", calls.empty() ? "" : ",",
                         json_string(call.name), call.arguments);
  }
  return fmt::format(R"({{"reasoning":{},"content":{},"tool_calls":[{}],"finish":{}}})",
                     json_string(output.reasoning), json_string(output.content), calls, json_string(finish));
}

// The text before the token that ended the answer; false: there is none.
bool drop_end_token(std::string_view& text) {
  for (const std::string_view token : {"<|im_end|>", "<|endoftext|>"}) {
    const size_t at = text.find(token);
    if (at != std::string_view::npos) {
      text = text.substr(0, at);
      return true;
    }
  }
  return false;
}

Result<void> parse(const ParseOptions& options) {
  std::shared_ptr<const ToolSchemas> tools;
  if (!options.tools.empty()) {
    LILY_TRY(const json::array array, read_tools(options.tools));
    tools = std::make_shared<const ToolSchemas>(array);
  }
  LILY_TRY(const std::string input, read_input("-"));
  std::string_view text = input;
  const bool ended = drop_end_token(text);
  Utf8Stream utf8;
  OutputParser parser({.in_think = options.start == "think"}, tools);
  ParsedOutput output;
  const auto take = [&](const std::vector<OutputPiece>& pieces) {
    for (const OutputPiece& piece : pieces) {
      output.add(piece);
      if (options.split) {
        std::puts(event_json(piece).c_str());
      }
    }
  };
  const size_t step = options.split ? 1 : std::max<size_t>(text.size(), 1);
  for (size_t at = 0; at < text.size(); at += step) {
    take(parser.push(utf8.push(text.substr(at, step))));
  }
  take(parser.push(utf8.flush()));
  // Without an end token, what stops in the middle of something was cut off.
  const bool cut = !ended && (parser.in_think() || parser.in_value());
  const bool in_call = parser.in_call();
  take(parser.finish(cut));
  const bool called = std::any_of(output.calls.begin(), output.calls.end(),
                                  [](const ParsedCall& call) { return call.complete; });
  const std::string_view finish = called && !(cut && in_call) ? "tool_calls" : cut ? "length" : "stop";
  std::puts(options.split ? fmt::format(R"({{"finish":{}}})", json_string(finish)).c_str()
                          : output_json(output, finish).c_str());
  return {};
}

}  // namespace

void add_parse(CommandLine& line) {
  auto options = std::make_shared<ParseOptions>();
  CLI::App* app = line.app.add_subcommand(
      "parse", "Take raw model output from stdin apart: reasoning, content, tool calls");
  app->add_option(
      "--tools", options->tools,
      "JSON file with the tools of the request, as its field 'tools'; absent = none, nothing is a call");
  app->add_option("--start", options->start,
                  "where the text starts: inside the think block, or with thinking off")
      ->check(CLI::IsMember({"think", "off"}));
  app->add_flag("--split", options->split, "the events of a stream cut at every byte, one a line");
  app->callback([&line, options] { line.chosen = [options] { return parse(*options); }; });
}

}  // namespace lily::app
