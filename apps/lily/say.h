// Text for people, on stderr. Unlike fmt::print it does not throw where stderr is closed or full: a lost
// message is no reason to end a program.
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <utility>

namespace lily::app {

template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace lily::app
