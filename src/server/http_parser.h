// Reads one HTTP/1.x request from bytes as they come. Boost.Beast does the work, in http_parser.cpp alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "server/http_message.h"

namespace lily {

class HttpParser {
 public:
  struct Limits {
    uint32_t header_bytes;
    uint64_t body_bytes;
  };
  enum class State {
    header,  // more of the header is needed
    body,    // the header is complete: see request(); more of the body is needed
    done,
    failed,  // see error(); the connection cannot be used any more
  };

  explicit HttpParser(const Limits& limits);
  ~HttpParser();
  HttpParser(const HttpParser&) = delete;
  HttpParser& operator=(const HttpParser&) = delete;

  // Takes what it can from the front of `bytes` and says how much. What is not taken must come again, with
  // more behind it. Stops once at the end of the header (State::body or done), before any body.
  size_t feed(std::string_view bytes);
  State state() const;
  // Of the body: those that the header announces, or those that have come.
  uint64_t body_bytes() const;
  HttpRequest& request();         // the body is complete only in State::done
  const ApiError& error() const;  // 400, 413 or 431

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lily
