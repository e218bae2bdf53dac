#include "base/size_text.h"

#include <fmt/core.h>

namespace lily {

std::string size_text(uint64_t bytes) {
  const auto amount = static_cast<double>(bytes);
  if (bytes < 1000) return fmt::format("{} bytes", bytes);
  if (bytes < 1'000'000) return fmt::format("{:.0f} kB", amount / 1e3);
  if (bytes < 1'000'000'000) return fmt::format("{:.1f} MB", amount / 1e6);
  return fmt::format("{:.2f} GB", amount / 1e9);
}

}  // namespace lily
