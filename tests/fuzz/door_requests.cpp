// Any bytes as the body of a request of the other APIs, messages and responses: an error that names
// something, or a chat request within the limits whose prompt renders.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/jobs.h"
#include "server/json_fields.h"
#include "server/messages_request.h"
#include "server/responses_request.h"

namespace {

void check(const lily::ApiResult<lily::ChatRequest>& request) {
  if (!request) {
    if (request.error().status != 400 || request.error().message.empty()) {
      std::abort();
    }
    static_cast<void>(lily::to_json(request.error()));
    return;
  }
  if (request->stop.size() > lily::Limits::kMaxStopStrings || request->max_tokens.value_or(1) == 0) {
    std::abort();
  }
  static_cast<void>(lily::render_prompt(*request));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const lily::ApiResult<boost::json::value> body = lily::parse_body(text);
  if (!body) {
    return 0;
  }
  check(lily::parse_messages_request(*body));
  lily::ApiResult<lily::ResponsesRequest> responses = lily::translate_responses(*body);
  check(responses ? lily::parse_responses_chat(*responses)
                  : lily::ApiResult<lily::ChatRequest>(
                        tl::unexpected<lily::ApiError>(lily::responses_error(responses.error()))));
  return 0;
}
