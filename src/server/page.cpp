#include "server/page.h"

namespace lily {

HttpResponse page_response() {
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  response.body = std::string(page_document());
  response.headers.emplace_back("Content-Security-Policy", std::string(page_policy()));
  response.headers.emplace_back("X-Content-Type-Options", "nosniff");
  response.headers.emplace_back("X-Frame-Options", "DENY");
  response.headers.emplace_back("Referrer-Policy", "no-referrer");
  response.headers.emplace_back("Cache-Control", "no-cache");
  return response;
}

}  // namespace lily
