// The messages and tools of a chat request: from the many forms that clients send to a Conversation.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/json_fields.h"
#include "text/chat_template.h"

namespace lily {

// `messages` of `request`, which must be there and not be empty. Content may be a string, null or an array of
// parts in every role; an image, video, audio or file part is a fault that names it.
std::vector<Message> parse_messages(const Fields& request);

// The name of a function that is declared or called; without one it is a fault.
std::string function_name(const Fields& function);

// Arguments of a call in the history, which models and clients leave in any state: an object is taken as it
// is, text is parsed; what is no object is kept whole as the one argument named "arguments".
boost::json::object call_arguments(const boost::json::value* arguments);

// `tools`, each as it was sent: they are rendered, so the order of their keys is kept.
boost::json::array parse_tools(const Fields& request);
// `functions`, which is what they were called before, as tools.
boost::json::array parse_functions(const Fields& request);

}  // namespace lily
