// The parser of model output: the same for every cut, and arguments that are JSON exactly when the call is
// whole.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/json.h"
#include "text/output_parser.h"
#include "text/transcript.h"
#include "text/unicode.h"

namespace {

std::shared_ptr<const lily::ToolSchemas> tools() {
  static const auto kTools = std::make_shared<const lily::ToolSchemas>(
      lily::parse_json(
          R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{
        "s":{"type":"string"},"n":{"type":["integer","null"]},"a":{"anyOf":[{"type":"array"},{"type":"string"}]},
        "o":{"type":"object"},"b":{"type":"boolean"},"r":{"type":"number"}}}}}])")
          ->as_array());
  return kTools;
}

lily::ParsedOutput parse(std::string_view text, uint8_t options, size_t step) {
  lily::Utf8Stream utf8;
  lily::OutputParser parser({.in_think = (options & 1) != 0, .continues_text = (options & 2) != 0},
                            (options & 4) != 0 ? nullptr : tools());
  lily::ParsedOutput output;
  const auto take = [&](const std::vector<lily::OutputPiece>& pieces) {
    for (const lily::OutputPiece& piece : pieces) {
      LILY_CHECK(lily::first_invalid(piece.text) == piece.text.size());
      output.add(piece);
    }
  };
  for (size_t at = 0; at < text.size(); at += step) take(parser.push(utf8.push(text.substr(at, step))));
  take(parser.push(utf8.flush()));
  take(parser.finish((options & 8) != 0));
  return output;
}

void check_same(const lily::ParsedOutput& a, const lily::ParsedOutput& b) {
  LILY_CHECK(a.reasoning == b.reasoning && a.content == b.content && a.calls.size() == b.calls.size());
  for (size_t i = 0; i < a.calls.size(); ++i)
    LILY_CHECK(a.calls[i].name == b.calls[i].name && a.calls[i].arguments == b.calls[i].arguments &&
               a.calls[i].complete == b.calls[i].complete);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const lily::ParsedOutput whole = parse(text, data[0], size);
  for (const size_t step : {1, 2, 5}) check_same(parse(text, data[0], step), whole);
  for (const lily::ParsedCall& call : whole.calls) {
    const lily::Result<boost::json::value> value = lily::parse_json(call.arguments);
    LILY_CHECK(call.complete == (value && value->is_object()));
  }
  return 0;
}
