#include "base/result.h"

#include <cerrno>
#include <system_error>

namespace lily {

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_input:
      return "invalid input";
    case ErrorKind::not_found:
      return "not found";
    case ErrorKind::unsupported:
      return "unsupported";
    case ErrorKind::limit:
      return "limit exceeded";
    case ErrorKind::io:
      return "input/output error";
    case ErrorKind::out_of_memory:
      return "out of memory";
    case ErrorKind::cancelled:
      return "cancelled";
    case ErrorKind::timeout:
      return "time-out";
    case ErrorKind::internal:
      return "internal error";
  }
  return "unknown error";
}

std::string Error::text() const {
  std::string out = message;
  for (const std::string& line : details) {
    out += "\n  ";
    out += line;
  }
  return out;
}

tl::unexpected<Error> fail_errno(std::string_view what, std::string_view path) {
  const int code = errno;
  const ErrorKind kind = code == ENOENT ? ErrorKind::not_found : ErrorKind::io;
  return fail(kind, "{} '{}': {}", what, path, std::generic_category().message(code));
}

}  // namespace lily
