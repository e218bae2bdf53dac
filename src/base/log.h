// Logging: spdlog's default logger. The application sets level and sink (stderr); libraries only write.
#pragma once

#include <spdlog/spdlog.h>

namespace lily {

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::debug(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::info(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::warn(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace lily
