// What goes wrong with a request, as OpenAI's clients expect it: an HTTP status and
// {"error": {"message", "type", "param", "code"}}.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lily {

struct ApiError {
  unsigned status = 400;
  std::string type = "invalid_request_error";
  std::string message;
  std::string param{};                    // path of the field at fault ("messages[0].role"); empty = null
  std::string code{};                     // empty = null
  std::optional<unsigned> retry_after{};  // seconds, of a 429 or 503
  uint64_t prompt_tokens = 0;             // both of context_length_exceeded
  uint64_t context = 0;
};

template <class T>
using ApiResult = tl::expected<T, ApiError>;

// With it LILY_TRY is for these results too.
[[nodiscard]] inline tl::unexpected<ApiError> fail(ApiError error) {
  return tl::unexpected<ApiError>(std::move(error));
}

// 400, naming the field.
ApiError bad_field(std::string param, std::string message);
// 400 for a prompt of `prompt_tokens` where `context` is the limit: the words that clients look for in order
// to shorten their conversation.
// `whole` false: there are at least so many.
ApiError context_exceeded(uint64_t prompt_tokens, uint64_t context, bool whole = true);
ApiError loading();         // 503
ApiError shutting_down();   // 503
ApiError too_many_bytes();  // 503: the bodies of all requests together are too large for now
// An error of a library of lily met while serving: what the client did is 400, a full queue 429, a request
// whose time is over 503, the rest 500.
ApiError from_error(const Error& error);

// At most 1,000 bytes of `text`: an error repeats what was wrong, and a client that sent megabytes there does
// not get them back.
std::string clipped(std::string_view text);
// The body, without a line end.
std::string to_json(const ApiError& error);

}  // namespace lily
