// OpenAI's responses API: the body of a request as the body of a chat request. docs/API.md says what each
// field does.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <map>
#include <string>

#include "server/openai.h"

namespace lily {

struct ResponsesRequest {
  boost::json::object chat;  // the body of a chat request
  // Functions of namespaces, which the model knows as namespace__function.
  struct Function {
    std::string space;
    std::string name;
  };
  std::map<std::string, Function> functions;
  bool keep_reasoning = false;  // reasoning.encrypted_content is asked for
  boost::json::object echo;     // fields that the answer repeats
};

// Faults name the fields as the client wrote them.
ApiResult<ResponsesRequest> translate_responses(const boost::json::value& body);
// Reads `chat` of it.
ApiResult<ChatRequest> parse_responses_chat(ResponsesRequest& request);
// As errors that come later are to be called.
ApiError responses_error(ApiError error);

// What stands before the reasoning in encrypted_content. It is not encrypted: whoever has it has the answer
// too, and sends it back so that the next prompt goes on where this one ended.
constexpr std::string_view kKeptReasoning = "lily:";

}  // namespace lily
