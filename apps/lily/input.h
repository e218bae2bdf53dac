// What a command is given to read, whole.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace lily::app {

// "-" is stdin.
Result<std::string> read_input(const std::filesystem::path& path);

}  // namespace lily::app
