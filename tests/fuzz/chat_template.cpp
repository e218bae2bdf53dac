// A request's JSON to a prompt: the literal ranges are well formed, and a normalised conversation that has
// messages of known roles is never refused in tolerant mode but for images in a system message.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "tests/support/hf_messages.h"
#include "text/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto value = lily::parse_json({reinterpret_cast<const char*>(data), size});
  if (!value) return 0;
  lily::to_python_json(*value);
  const auto prompt = lily::test::render_json(*value);
  if (prompt) {
    size_t done = 0;
    for (const auto& range : prompt->literal) {
      LILY_CHECK(range.begin < range.end && (done == 0 || range.begin > done));
      done = range.end;
    }
    LILY_CHECK(done <= prompt->text.size());
  }
  if (!value->is_object()) return 0;
  value->as_object()["tolerant"] = true;
  value->as_object()["normalize"] = true;
  const auto tolerant = lily::test::render_json(*value);
  if (prompt) LILY_CHECK(tolerant.has_value());
  if (!tolerant) {
    LILY_CHECK(tolerant.error().message != "No user query found in messages.");
    LILY_CHECK(tolerant.error().message != "System message must be at the beginning.");
  }
  return 0;
}
