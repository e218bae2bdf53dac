// One HTTP request and one HTTP response, free of sockets and of the library that parses them.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api_error.h"

namespace lily {

struct HttpRequest {
  std::string method;
  std::string path;   // of the target, percent-decoded; without the query
  std::string query;  // undecoded
  std::string body;
  bool keep_alive = true;
  bool http11 = true;  // false: 1.0, no chunked answer
  bool expects_continue = false;
  bool bad_expectation = false;  // an Expect of another kind
  bool has_body = false;         // announced by the header
  std::string bearer;            // token of "Authorization: Bearer", or of X-Api-Key
  std::string wanted_headers;    // Access-Control-Request-Headers
};

struct HttpResponse {
  unsigned status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

HttpResponse json_response(std::string body);
HttpResponse error_response(const ApiError& error);

// `text` for a message: what is not printable ASCII becomes ?.
std::string printable(std::string_view text);

// The path of a request target: origin form or absolute form, without query and fragment; percent escapes
// decoded, a malformed escape left as it is.
std::string path_of(std::string_view target);

// How a response goes over the wire.
struct Framing {
  bool http11 = true;
  bool keep_alive = true;
  bool head = false;           // HEAD: the header alone
  bool chunked = false;        // the body follows in pieces; `body` is left out
  std::string allowed_origin;  // Access-Control-Allow-Origin; empty = no header
};
std::string serialize(const HttpResponse& response, const Framing& framing);
// One piece of a chunked body; empty data gives nothing, as an empty chunk would end the body.
std::string http_chunk(std::string_view data);
std::string_view http_last_chunk();

}  // namespace lily
