// A plain blocking HTTP client over one TCP connection, which can also do what a client should not.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace lily::test {

struct Reply {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

class HttpClient {
 public:
  explicit HttpClient(uint16_t port, int receive_buffer = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval timeout{60, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    if (receive_buffer > 0) {
      setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    const int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      throw std::runtime_error("cannot connect");
    }
  }
  ~HttpClient() { close(); }
  HttpClient(HttpClient&& other) noexcept : socket_(other.socket_), input_(std::move(other.input_)) {
    other.socket_ = -1;
  }
  HttpClient(const HttpClient&) = delete;

  void close() {
    if (socket_ >= 0) {
      ::close(socket_);
    }
    socket_ = -1;
  }
  // The connection ends with a reset, as when a process dies.
  void reset() {
    const linger hard{1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }
  void end_sending() { ::shutdown(socket_, SHUT_WR); }

  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) {
        return false;
      }
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  bool post(std::string_view body, std::string_view path = "/v1/chat/completions",
            std::string_view more = "") {
    std::string request = "POST " + std::string(path) +
                          " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
                          std::string(more) + "\r\n";
    request += body;
    return send(request);
  }
  bool get(std::string_view path, std::string_view method = "GET", std::string_view more = "") {
    return send(std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n" +
                std::string(more) + "\r\n");
  }

  // More bytes into the buffer; false: the end, or nothing in time.
  bool fill() {
    char bytes[4096];
    const ssize_t got = ::recv(socket_, bytes, sizeof bytes, 0);
    if (got <= 0) {
      return false;
    }
    input_.append(bytes, static_cast<size_t>(got));
    return true;
  }
  // Everything up to and including `mark`; nothing when the connection ends before it.
  std::optional<std::string> until(std::string_view mark) {
    size_t at = 0;
    while ((at = input_.find(mark)) == std::string::npos) {
      if (!fill()) {
        return std::nullopt;
      }
    }
    std::string out = input_.substr(0, at + mark.size());
    input_.erase(0, out.size());
    return out;
  }
  // Whether `mark` comes; nothing is taken.
  bool comes(std::string_view mark) {
    while (input_.find(mark) == std::string::npos) {
      if (!fill()) {
        return false;
      }
    }
    return true;
  }
  bool at_end() { return input_.empty() && !fill(); }

  // Status line and headers, the body unread.
  std::optional<Reply> head() {
    const std::optional<std::string> text = until("\r\n\r\n");
    if (!text || text->rfind("HTTP/1.1 ", 0) != 0) {
      return std::nullopt;
    }
    Reply reply;
    reply.status = std::atoi(text->c_str() + 9);
    size_t at = text->find("\r\n") + 2;
    while (text->compare(at, 2, "\r\n") != 0) {
      const size_t end = text->find("\r\n", at);
      const size_t colon = text->find(": ", at);
      std::string name = text->substr(at, colon - at);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      reply.headers[name] = text->substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
    return reply;
  }
  // A whole response. `has_body` false: of a HEAD request.
  std::optional<Reply> reply(bool has_body = true) {
    std::optional<Reply> reply = head();
    if (!reply || !has_body || reply->status == 204 || reply->status == 100) {
      return reply;
    }
    if (reply->headers.count("content-length") != 0) {
      const size_t size = std::strtoul(reply->headers["content-length"].c_str(), nullptr, 10);
      while (input_.size() < size) {
        if (!fill()) {
          return std::nullopt;
        }
      }
      reply->body = input_.substr(0, size);
      input_.erase(0, size);
    } else if (reply->headers.count("transfer-encoding") != 0) {
      while (std::optional<std::string> chunk = this->chunk()) {
        if (chunk->empty()) {
          return reply;
        }
        reply->body += *chunk;
      }
      return std::nullopt;
    } else {
      while (fill()) {
      }
      reply->body = std::move(input_);
      input_.clear();
    }
    return reply;
  }
  // One chunk of a chunked body; empty at its end.
  std::optional<std::string> chunk() {
    const std::optional<std::string> line = until("\r\n");
    if (!line) {
      return std::nullopt;
    }
    const size_t size = std::strtoul(line->c_str(), nullptr, 16);
    while (input_.size() < size + 2) {
      if (!fill()) {
        return std::nullopt;
      }
    }
    std::string out = input_.substr(0, size);
    input_.erase(0, size + 2);
    return out;
  }

 private:
  int socket_;
  std::string input_;
};

// The JSON texts of the data lines of a stream, "[DONE]" among them.
inline std::vector<std::string> events_of(std::string_view body) {
  std::vector<std::string> out;
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = std::min(body.find("\n\n", at), body.size());
    const std::string_view event = body.substr(at, end - at);
    if (event.substr(0, 6) == "data: ") {
      out.emplace_back(event.substr(6));
    }
    at = end + 2;
  }
  return out;
}

}  // namespace lily::test
