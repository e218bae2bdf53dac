#include "base/check.h"

#include <fmt/format.h>

namespace lily {

void check_failed(const char* condition, const char* file, int line) {
  throw InternalError(fmt::format("{}:{}: check failed: {}", file, line, condition));
}

}  // namespace lily
