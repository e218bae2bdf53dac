// The page at /: one document that needs nothing else, made from src/server/page at build time.
#pragma once

#include <string_view>

#include "server/http_message.h"

namespace lily {

// The document, and the Content-Security-Policy that lets its own script and style run and nothing else.
std::string_view page_document();
std::string_view page_policy();

HttpResponse page_response();

}  // namespace lily
