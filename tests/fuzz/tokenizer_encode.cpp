// Any bytes through a small tokenizer: the ids spell the text, and literal text holds no added token.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "tests/support/small_tokenizer.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace {

const lily::Tokenizer& tokenizer() {
  static const auto loaded = lily::Tokenizer::from_json(boost::json::serialize(lily::test::small_tokenizer(
      {{"l", "l"}, {"h", "e"}, {"he", "ll"}, {"Ġ", "Ġ"}, {"Ġ", "he"}, {"Ã", "©"}, {"ll", "ll"}, {"a", "a"}},
      {{"<|end|>", true}, {"<|end|>>", true}, {"<<", false}})));
  LILY_CHECK(loaded.has_value());
  return **loaded;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto ids = tokenizer().encode(text);
  // NFC works on what lies between added tokens, so only text that NFC leaves alone comes back byte for byte.
  const std::string valid = lily::replace_invalid(text);
  std::string storage;
  const std::string decoded = tokenizer().decode(ids, false);
  if (lily::nfc(valid, storage) == valid) LILY_CHECK(decoded == valid);
  LILY_CHECK(tokenizer().encode(decoded) == ids);

  lily::Detokenizer stream(tokenizer(), false);
  std::string streamed;
  for (const int32_t id : ids) streamed += stream.push(id);
  LILY_CHECK(streamed + stream.flush() == decoded);

  lily::RenderedPrompt prompt{text, {}};
  if (size >= 2) prompt.literal.push_back({data[0] % size, data[1] % (2 * size)});
  tokenizer().encode(prompt);
  prompt.literal = {{0, size}};
  for (const int32_t id : tokenizer().encode(prompt)) LILY_CHECK(tokenizer().added(id) == nullptr);
  return 0;
}
