#include "server/http_message.h"

namespace lily {
namespace {

std::string_view reason_phrase(unsigned status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Error";
  }
}

int hex_digit(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                : -1;
}

}  // namespace

HttpResponse json_response(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response = json_response(to_json(error));
  response.status = error.status;
  if (error.retry_after) {
    response.headers.emplace_back("Retry-After", std::to_string(*error.retry_after));
  }
  if (error.status == 401) {
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
  }
  return response;
}

std::string printable(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c < ' ' || c > '~') {
      c = '?';
    }
  }
  return out;
}

std::string path_of(std::string_view target) {
  const size_t scheme = target.find("://");
  if (!target.empty() && target.front() != '/' && scheme != std::string_view::npos) {
    const size_t slash = target.find('/', scheme + 3);
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
  }
  target = target.substr(0, target.find_first_of("?#"));
  std::string path;
  path.reserve(target.size());
  for (size_t i = 0; i < target.size(); ++i) {
    const int high = target[i] == '%' && i + 2 < target.size() ? hex_digit(target[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(target[i + 2]) : -1;
    if (low >= 0) {
      path += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      path += target[i];
    }
  }
  return path;
}

std::string serialize(const HttpResponse& response, const Framing& framing) {
  const bool chunked = framing.chunked && framing.http11;
  const bool keep_alive = framing.keep_alive && (!framing.chunked || framing.http11);
  std::string out =
      fmt::format("HTTP/1.1 {} {}\r\nServer: lily\r\n", response.status, reason_phrase(response.status));
  if (!response.content_type.empty() && response.status != 204) {
    out += fmt::format("Content-Type: {}\r\n", response.content_type);
  }
  if (chunked) {
    out += "Transfer-Encoding: chunked\r\n";
  } else if (!framing.chunked && response.status != 204) {
    out += fmt::format("Content-Length: {}\r\n", response.body.size());
  }
  if (!framing.allowed_origin.empty()) {
    out += fmt::format("Access-Control-Allow-Origin: {}\r\n", framing.allowed_origin);
  }
  for (const std::pair<std::string, std::string>& header : response.headers) {
    out += fmt::format("{}: {}\r\n", header.first, header.second);
  }
  if (!keep_alive) {
    out += "Connection: close\r\n";
  } else if (!framing.http11) {
    out += "Connection: keep-alive\r\n";
  }
  out += "\r\n";
  if (!framing.chunked && !framing.head) {
    out += response.body;
  }
  return out;
}

std::string http_chunk(std::string_view data) {
  if (data.empty()) {
    return {};
  }
  return fmt::format("{:x}\r\n{}\r\n", data.size(), data);
}

std::string_view http_last_chunk() { return "0\r\n\r\n"; }

}  // namespace lily
