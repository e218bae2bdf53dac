// Which handler a request goes to, and what may be answered from its header alone.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_message.h"

namespace lily {

enum class Route {
  page,
  chat_completions,
  models,
  model,
  health,
  tokenize,
  detokenize,
  apply_template,
  unknown
};

struct RouteMatch {
  Route route = Route::unknown;
  std::string argument;  // of Route::model: its id
};

// The API's paths also work without /v1.
RouteMatch match_route(std::string_view path);
// "GET, HEAD, OPTIONS" or "POST, OPTIONS".
std::string_view allowed_methods(Route route);

struct AccessRules {
  std::vector<std::string> api_keys;  // empty = no key is asked for
  std::string allowed_origin;         // of CORS
};

// The answer to a request that is settled by its header: OPTIONS, an unknown path, a wrong method, a missing
// key. Nothing: go on.
std::optional<HttpResponse> answer_from_header(const HttpRequest& request, const RouteMatch& match,
                                               const AccessRules& rules);

// Compares in a time that depends on the lengths alone.
bool same_secret(std::string_view given, std::string_view expected);

}  // namespace lily
