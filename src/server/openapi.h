// GET /openapi.json: what this server takes and answers, for programs. Private to src/server.
#pragma once

#include <string_view>

#include "server/http_message.h"

namespace lily {

std::string_view openapi_document();  // src/server/openapi.json, part of the program

HttpResponse openapi_response();

}  // namespace lily
