// The tools of a request from a file.
#pragma once

#include <boost/json/array.hpp>
#include <string>

#include "base/result.h"

namespace lily::app {

// An array of tools, an object with one in "tools", or one tool. Each in the form of OpenAI's API.
Result<boost::json::array> read_tools(const std::string& path);

}  // namespace lily::app
