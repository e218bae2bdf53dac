#include "server/router.h"

#include <algorithm>

#include "server/messages.h"

namespace lily {
namespace {

struct Path {
  Route route;
  std::string_view path;  // without /v1, which may stand before any of them
  bool post;
  std::string_view version = "/v1";  // as clients know it
};

constexpr Path kPaths[] = {
    {Route::chat_completions, "/chat/completions", true},
    {Route::completions, "/completions", true},
    {Route::messages, "/messages", true},
    {Route::count_message_tokens, "/messages/count_tokens", true},
    {Route::responses, "/responses", true},
    {Route::count_response_tokens, "/responses/input_tokens", true},
    {Route::models, "/models", false},
    {Route::health, "/health", false, ""},
    {Route::metrics, "/metrics", false, ""},
    {Route::props, "/props", false, ""},
    {Route::slots, "/slots", false, ""},
    {Route::openapi, "/openapi.json", false, ""},
    {Route::tokenize, "/tokenize", true, ""},
    {Route::detokenize, "/detokenize", true, ""},
    {Route::apply_template, "/apply-template", true, ""},
};

const Path* find_path(Route route) {
  for (const Path& entry : kPaths) {
    if (entry.route == route) {
      return &entry;
    }
  }
  return nullptr;
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
  if (path == "/v1" || path.starts_with("/v1/")) {
    path.remove_prefix(3);
  }
  if (path.size() > 1 && path.back() == '/') {
    path.remove_suffix(1);
  }
  for (const Path& entry : kPaths) {
    if (path == entry.path) {
      return {entry.route, {}};
    }
  }
  constexpr std::string_view kModel = "/models/";
  if (path.starts_with(kModel)) {
    return {Route::model, std::string(path.substr(kModel.size()))};
  }
  return {};
}

std::string_view allowed_methods(Route route) {
  const Path* entry = find_path(route);
  return entry != nullptr && entry->post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
}

std::string route_path(Route route) {
  const Path* entry = find_path(route);
  return entry == nullptr ? "" : fmt::format("{}{}", entry->version, entry->path);
}

HttpResponse route_error(Route route, const ApiError& error) {
  const bool anthropic = route == Route::messages || route == Route::count_message_tokens;
  return anthropic ? anthropic_error(error) : error_response(error);
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
    return route_error(match.route, error);
  }
  if (request.method == "OPTIONS") {
    return preflight(request, match.route);
  }
  const bool open =
      match.route == Route::health || match.route == Route::page || match.route == Route::openapi;
  if (!open && !has_access(request, rules.api_keys)) {
    ApiError error;
    error.status = 401;
    error.message = request.bearer.empty()
                        ? "This server asks for an API key: send it as 'Authorization: Bearer KEY'."
                        : "The API key is not one of this server's.";
    error.code = "invalid_api_key";
    return route_error(match.route, error);
  }
  if (match.route == Route::unknown) {
    ApiError error;
    error.status = 404;
    error.message = fmt::format("There is nothing at {} {}.", request.method, printable(request.path));
    error.code = "unknown_url";
    const bool anthropic =
        request.path.starts_with("/v1/messages/") || request.path.starts_with("/messages/");
    return anthropic ? anthropic_error(error) : error_response(error);
  }
  if (!allowed(allowed_methods(match.route), request.method)) {
    ApiError error;
    error.status = 405;
    error.message = fmt::format("{} does not take {}; it takes {}.", printable(request.path), request.method,
                                allowed_methods(match.route));
    error.code = "method_not_allowed";
    HttpResponse response = route_error(match.route, error);
    response.headers.emplace_back("Allow", std::string(allowed_methods(match.route)));
    return response;
  }
  return std::nullopt;
}

}  // namespace lily
