// OpenAI's responses API. Private to src/server.
#pragma once

#include <memory>

#include "server/door.h"

namespace lily {

std::shared_ptr<Door> make_responses_door();  // POST /v1/responses

// POST /v1/responses/input_tokens: {"object": "response.input_tokens", "input_tokens": N}.
ApiResult<std::string> count_response_tokens(const boost::json::value& body, const ServedModel& model);

}  // namespace lily
