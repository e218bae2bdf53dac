// Anthropic's messages API: the body of a request as the body of a chat request. docs/API.md says what each
// field does.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include "server/openai.h"

namespace lily {

// Faults name the fields as the client wrote them.
ApiResult<boost::json::object> chat_body_of_messages(const boost::json::value& body);
// And read: what both doors of this API do.
ApiResult<ChatRequest> parse_messages_request(const boost::json::value& body);

}  // namespace lily
