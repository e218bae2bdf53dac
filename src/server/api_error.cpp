#include "server/api_error.h"

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

namespace lily {
std::string clipped(std::string_view text) {
  constexpr size_t kMost = 1000;
  if (text.size() <= kMost) {
    return std::string(text);
  }
  size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {  // inside a character
    --end;
  }
  return std::string(text.substr(0, end)) + "...";
}

ApiError bad_field(std::string param, std::string message) {
  ApiError error;
  error.message = std::move(message);
  error.param = std::move(param);
  return error;
}

ApiError context_exceeded(uint64_t prompt_tokens, uint64_t context, bool whole) {
  ApiError error;
  error.message = fmt::format(
      "This model's maximum context length is {} tokens, but the messages of this request have {}{} tokens: "
      "the request exceeds the available context size ({} tokens). Shorten the messages, or serve with a "
      "larger --ctx.",
      context, whole ? "" : "at least ", prompt_tokens, context);
  error.param = "messages";
  error.code = "context_length_exceeded";
  error.prompt_tokens = prompt_tokens;
  error.context = context;
  return error;
}

ApiError loading() {
  ApiError error;
  error.status = 503;
  error.type = "server_error";
  error.message = "The model is still loading.";
  error.code = "loading";
  error.retry_after = 2;
  return error;
}

ApiError shutting_down() {
  ApiError error;
  error.status = 503;
  error.type = "server_error";
  error.message = "The server is shutting down.";
  error.code = "shutting_down";
  return error;
}

ApiError too_many_bytes() {
  ApiError error;
  error.status = 503;
  error.type = "server_error";
  error.message = "This server is reading as many large requests as it takes.";
  error.code = "too_many_bytes";
  error.retry_after = 1;
  return error;
}

ApiError from_error(const Error& error) {
  ApiError out;
  out.message = error.message;
  switch (error.kind) {
    case ErrorKind::invalid_input:
    case ErrorKind::unsupported:
      return out;
    case ErrorKind::not_found:
      out.status = 404;
      return out;
    case ErrorKind::limit:
      out.status = 429;
      out.type = "rate_limit_error";
      out.code = "queue_full";
      out.retry_after = 1;
      return out;
    case ErrorKind::cancelled:
      return shutting_down();
    case ErrorKind::timeout:
      out.status = 503;
      out.type = "server_error";
      out.code = "timeout";
      out.retry_after = 1;
      return out;
    case ErrorKind::io:
    case ErrorKind::out_of_memory:
    case ErrorKind::internal:
      break;
  }
  out.status = 500;
  out.type = "server_error";
  return out;
}

std::string to_json(const ApiError& error) {
  boost::json::object body;
  body["message"] = clipped(error.message);
  body["type"] = error.type;
  body["param"] =
      error.param.empty() ? boost::json::value(nullptr) : boost::json::value(clipped(error.param));
  body["code"] = error.code.empty() ? boost::json::value(nullptr) : boost::json::value(error.code);
  boost::json::object out;
  out["error"] = std::move(body);
  return boost::json::serialize(out);
}

}  // namespace lily
