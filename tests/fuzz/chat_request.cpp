// Any bytes as the body of a chat request: an error that names something or a request within the limits,
// whose prompt renders.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/jobs.h"
#include "server/json_fields.h"
#include "server/openai.h"
#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const lily::ApiResult<boost::json::value> body = lily::parse_body(text);
  if (!body) {
    return body.error().message.empty() ? std::abort(), 0 : 0;
  }
  const lily::ApiResult<lily::ChatRequest> request = lily::parse_chat_request(*body);
  if (!request) {
    if (request.error().status != 400 || request.error().message.empty()) {
      std::abort();
    }
    static_cast<void>(lily::to_json(request.error()));
    return 0;
  }
  const lily::Sampling sampling = lily::resolve_sampling(*request, lily::GenerationConfig{});
  const bool sane = sampling.temperature > 0 && sampling.top_p > 0 && sampling.top_p <= 1 &&
                    sampling.min_p >= 0 && sampling.min_p <= 1 && sampling.repetition_penalty > 0 &&
                    request->stop.size() <= lily::Limits::kMaxStopStrings &&
                    request->logit_bias.size() <= lily::Limits::kMaxLogitBias &&
                    request->max_tokens.value_or(1) > 0 && !request->conversation.messages.empty();
  if (!sane) {
    std::abort();
  }
  const lily::ApiResult<lily::RenderedPrompt> prompt = lily::render_prompt(*request);
  if (prompt) {
    for (const lily::RenderedPrompt::Range& range : prompt->literal) {
      if (range.begin > range.end || range.end > prompt->text.size()) {
        std::abort();
      }
    }
  }
  return 0;
}
