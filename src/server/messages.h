// Anthropic's messages API. Private to src/server.
#pragma once

#include <memory>

#include "server/door.h"

namespace lily {

std::shared_ptr<Door> make_messages_door();  // POST /v1/messages

// POST /v1/messages/count_tokens: {"input_tokens": N}.
ApiResult<std::string> count_message_tokens(const boost::json::value& body, const ServedModel& model);

// {"type": "error", "error": {"type", "message"}}, as a body and as an answer.
std::string anthropic_error_json(const ApiError& error);
HttpResponse anthropic_error(const ApiError& error);

}  // namespace lily
