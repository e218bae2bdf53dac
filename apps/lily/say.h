// Text for people.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

namespace lily::app {

// To stderr. Unlike fmt::print it does not throw where stderr is closed or full: a lost message is no reason
// to end a program.
template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

inline double gigabytes(uint64_t bytes) { return static_cast<double>(bytes) / 1e9; }

}  // namespace lily::app
