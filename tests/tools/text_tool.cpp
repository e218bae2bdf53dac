// Answers for tests in other languages, one JSON line per line of standard input.
//   text_tool encode FOLDER   a string -> its ids; {"text", "literal": [[begin, end], ...]} -> ids of a
//   prompt text_tool decode FOLDER   {"ids", "skip_special"} -> the text text_tool render          a
//   conversation -> {"text", "literal", "starts_in_think", "continues_text"} or {"error"}
#include <cstdio>
#include <iostream>
#include <string>

#include "tests/support/hf_messages.h"
#include "text/json.h"
#include "text/tokenizer.h"

namespace {

using lily::test::text_of;
namespace json = boost::json;

json::value encode(const lily::Tokenizer& tokenizer, const json::value& line) {
  if (line.is_string()) return json::value_from(tokenizer.encode(text_of(line)));
  lily::RenderedPrompt prompt;
  prompt.text = text_of(line.at("text"));
  for (const auto& range : line.at("literal").as_array())
    prompt.literal.push_back({range.at(0).to_number<size_t>(), range.at(1).to_number<size_t>()});
  return json::value_from(tokenizer.encode(prompt));
}

json::value decode(const lily::Tokenizer& tokenizer, const json::value& line) {
  const auto ids = json::value_to<std::vector<int32_t>>(line.at("ids"));
  return json::string(tokenizer.decode(ids, line.at("skip_special").as_bool()));
}

json::value render(const json::value& line) {
  const auto prompt = lily::test::render_json(line);
  if (!prompt) return {{"error", prompt.error().message}};
  json::array literal;
  for (const auto& range : prompt->literal) literal.push_back({range.begin, range.end});
  return {{"text", prompt->text},
          {"literal", literal},
          {"starts_in_think", prompt->starts_in_think},
          {"continues_text", prompt->continues_text}};
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  std::unique_ptr<lily::Tokenizer> tokenizer;
  if ((command == "encode" || command == "decode") && argc == 3) {
    auto loaded = lily::Tokenizer::load(argv[2]);
    if (!loaded) {
      std::cerr << loaded.error().text() << "\n";
      return 1;
    }
    tokenizer = std::move(*loaded);
  } else if (command != "render" || argc != 2) {
    std::cerr << "usage: text_tool encode FOLDER | decode FOLDER | render\n";
    return 2;
  }
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    const auto value = lily::parse_json(line);
    if (!value)
      std::cout << json::serialize(json::value{{"error", value.error().message}}) << "\n";
    else
      std::cout << json::serialize(command == "encode"   ? encode(*tokenizer, *value)
                                   : command == "decode" ? decode(*tokenizer, *value)
                                                         : render(*value))
                << "\n";
  }
  return 0;
}
