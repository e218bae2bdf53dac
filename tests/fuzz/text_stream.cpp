// The chain behind the decoder (UTF-8, reasoning, stop strings): the same for every cut of the text.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/reasoning.h"
#include "text/stop_strings.h"
#include "text/unicode.h"

namespace {

struct Answer {
  std::string reasoning, content;
  bool operator==(const Answer&) const = default;
};

Answer run(std::string_view text, uint8_t options, size_t piece) {
  lily::Utf8Stream utf8;
  lily::ReasoningSplitter splitter((options & 1) != 0, (options & 2) != 0);
  lily::StopStrings stops({"\n\n", "stop", "<b>", "\xC3\xA9"});
  Answer answer;
  const auto take = [&](const lily::ReasoningSplitter::Delta& delta) {
    answer.reasoning += delta.reasoning;
    answer.content += stops.push(delta.content).text;
  };
  for (size_t at = 0; at < text.size(); at += piece) {
    const std::string valid = utf8.push(text.substr(at, piece));
    LILY_CHECK(lily::first_invalid(valid) == valid.size());
    take(splitter.push(valid));
  }
  take(splitter.push(utf8.flush()));
  take(splitter.flush());
  answer.content += stops.flush();
  return answer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Answer whole = run(text, data[0], size);
  for (const size_t piece : {1, 2, 3, 7}) LILY_CHECK(run(text, data[0], piece) == whole);
  LILY_CHECK(lily::first_invalid(whole.content) == whole.content.size());
  LILY_CHECK(lily::first_invalid(whole.reasoning) == whole.reasoning.size());
  return 0;
}
