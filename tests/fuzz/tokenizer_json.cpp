// tokenizer.json from anyone: it loads, or one error says why not.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  // The first zero byte, if any, parts tokenizer.json from tokenizer_config.json.
  const size_t cut = text.find('\0');
  const std::string_view config = cut == std::string_view::npos ? "" : text.substr(cut + 1);
  const auto tokenizer = lily::Tokenizer::from_json(text.substr(0, cut), config);
  if (!tokenizer) {
    LILY_CHECK(!tokenizer.error().message.empty());
    return 0;
  }
  const auto ids = (*tokenizer)->encode("hello <|end|> w\xC3\xB6rld  1234\n" + std::string(100, 'l'));
  for (const int32_t id : ids) LILY_CHECK(id >= 0 && static_cast<uint32_t>(id) < (*tokenizer)->size());
  (*tokenizer)->decode(ids, true);
  return 0;
}
