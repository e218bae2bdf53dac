// LILY_CHECK: a condition that only a fault in lily itself can break. It throws InternalError, which the
// edge (a job, a command) turns into an error for that one request; nothing aborts.
#pragma once

#include <stdexcept>

namespace lily {

class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace lily

#define LILY_CHECK(condition)                               \
  do {                                                      \
    if (!(condition)) [[unlikely]] {                        \
      ::lily::check_failed(#condition, __FILE__, __LINE__); \
    }                                                       \
  } while (false)
