#include "server/router.h"

#include <algorithm>

namespace lily {
namespace {

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool allowed(std::string_view methods, std::string_view method) {
  const size_t at = methods.find(method);
  return !method.empty() && at != std::string_view::npos &&
         (at + method.size() == methods.size() || methods[at + method.size()] == ',') &&
         (at == 0 || methods[at - 1] == ' ');
}

bool has_access(const HttpRequest& request, const std::vector<std::string>& keys) {
  bool found = keys.empty();
  for (const std::string& key : keys) {  // every key is looked at, so that the time tells nothing
    found = same_secret(request.bearer, key) || found;
  }
  return found;
}

HttpResponse preflight(const HttpRequest& request, Route route) {
  HttpResponse response;
  response.status = 204;
  const std::string methods(route == Route::unknown ? "GET, HEAD, POST, OPTIONS" : allowed_methods(route));
  response.headers.emplace_back("Allow", methods);
  response.headers.emplace_back("Access-Control-Allow-Methods", methods);
  response.headers.emplace_back("Access-Control-Allow-Headers", request.wanted_headers.empty()
                                                                    ? "Authorization, Content-Type, X-Api-Key"
                                                                    : request.wanted_headers);
  response.headers.emplace_back("Access-Control-Max-Age", "86400");
  return response;
}

}  // namespace

RouteMatch match_route(std::string_view path) {
  if (path == "/") {
    return {Route::page, {}};
  }
  if (path == "/v1" || starts_with(path, "/v1/")) {
    path.remove_prefix(3);
  }
  if (path.size() > 1 && path.back() == '/') {
    path.remove_suffix(1);
  }
  constexpr std::pair<std::string_view, Route> kPaths[] = {
      {"/chat/completions", Route::chat_completions},
      {"/models", Route::models},
      {"/health", Route::health},
      {"/tokenize", Route::tokenize},
      {"/detokenize", Route::detokenize},
      {"/apply-template", Route::apply_template},
  };
  for (const auto& entry : kPaths) {
    if (path == entry.first) {
      return {entry.second, {}};
    }
  }
  constexpr std::string_view kModel = "/models/";
  if (starts_with(path, kModel)) {
    return {Route::model, std::string(path.substr(kModel.size()))};
  }
  return {};
}

std::string_view allowed_methods(Route route) {
  switch (route) {
    case Route::chat_completions:
    case Route::tokenize:
    case Route::detokenize:
    case Route::apply_template:
      return "POST, OPTIONS";
    case Route::page:
    case Route::models:
    case Route::model:
    case Route::health:
    case Route::unknown:
      break;
  }
  return "GET, HEAD, OPTIONS";
}

bool same_secret(std::string_view given, std::string_view expected) {
  unsigned char difference = given.size() == expected.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char other = expected.empty() ? '\0' : expected[i % expected.size()];
    difference = static_cast<unsigned char>(
        difference | (static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(other)));
  }
  return difference == 0 && !expected.empty();
}

std::optional<HttpResponse> answer_from_header(const HttpRequest& request, const RouteMatch& match,
                                               const AccessRules& rules) {
  if (request.bad_expectation) {
    ApiError error;
    error.status = 417;
    error.message = "The only expectation this server meets is 100-continue.";
    return error_response(error);
  }
  if (request.method == "OPTIONS") {
    return preflight(request, match.route);
  }
  const bool open = match.route == Route::health || match.route == Route::page;
  if (!open && !has_access(request, rules.api_keys)) {
    ApiError error;
    error.status = 401;
    error.message = request.bearer.empty()
                        ? "This server asks for an API key: send it as 'Authorization: Bearer KEY'."
                        : "The API key is not one of this server's.";
    error.code = "invalid_api_key";
    return error_response(error);
  }
  if (match.route == Route::unknown) {
    ApiError error;
    error.status = 404;
    error.message = fmt::format("There is nothing at {} {}.", request.method, printable(request.path));
    error.code = "unknown_url";
    return error_response(error);
  }
  if (!allowed(allowed_methods(match.route), request.method)) {
    ApiError error;
    error.status = 405;
    error.message = fmt::format("{} does not take {}; it takes {}.", printable(request.path), request.method,
                                allowed_methods(match.route));
    error.code = "method_not_allowed";
    HttpResponse response = error_response(error);
    response.headers.emplace_back("Allow", std::string(allowed_methods(match.route)));
    return response;
  }
  return std::nullopt;
}

}  // namespace lily
