// Result<T>: a value or an Error. Every function of lily that can fail for a reason outside the program
// (a file, a request, the machine) returns one; exceptions are left to programming errors (base/check.h).
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace lily {

enum class ErrorKind : uint8_t {
  invalid_input,  // what the caller gave is wrong: file content, request field, option
  not_found,      // a file, model or route that does not exist
  unsupported,    // understood, but lily does not do it
  limit,          // larger than a stated limit (context, queue, memory budget)
  io,             // the operating system refused: errno text is in the message
  out_of_memory,
  cancelled,  // the caller asked for it
  timeout,    // the time given for it is over
  internal,   // a fault of lily or of the device
};

std::string_view to_string(ErrorKind kind);

// `message` is one clear sentence: the thing, what was expected, what was found.
// `details` lists further faults where all are reported at once (binding a checkpoint), one line each.
struct Error {
  ErrorKind kind = ErrorKind::internal;
  std::string message;
  std::vector<std::string> details;

  // The message, then each detail on a line of its own.
  std::string text() const;
};

template <class T>
using Result = tl::expected<T, Error>;

template <class... Args>
[[nodiscard]] tl::unexpected<Error> fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{kind, fmt::format(format, std::forward<Args>(args)...), {}});
}

[[nodiscard]] inline tl::unexpected<Error> fail(Error error) {
  return tl::unexpected<Error>(std::move(error));
}

// "cannot open 'x': No such file or directory", from errno.
[[nodiscard]] tl::unexpected<Error> fail_errno(std::string_view what, std::string_view path);

}  // namespace lily

#define LILY_CONCAT_(a, b) a##b
#define LILY_CONCAT(a, b) LILY_CONCAT_(a, b)

// LILY_TRY(auto x, f()): declares x from the value, or returns the error to the caller.
#define LILY_TRY(declaration, expression)                                        \
  auto LILY_CONCAT(lily_result_, __LINE__) = (expression);                       \
  if (!LILY_CONCAT(lily_result_, __LINE__)) {                                    \
    return ::lily::fail(std::move(LILY_CONCAT(lily_result_, __LINE__)).error()); \
  }                                                                              \
  declaration = *std::move(LILY_CONCAT(lily_result_, __LINE__))

// LILY_TRY_VOID(f()): for Result<void>.
#define LILY_TRY_VOID(expression)                          \
  do {                                                     \
    if (auto lily_result = (expression); !lily_result) {   \
      return ::lily::fail(std::move(lily_result).error()); \
    }                                                      \
  } while (false)
