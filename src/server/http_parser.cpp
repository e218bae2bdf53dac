#include "server/http_parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <string>

namespace lily {
namespace {

namespace http = boost::beast::http;

std::string text(boost::beast::string_view view) { return std::string(view.data(), view.size()); }

std::string bearer_of(const http::fields& fields) {
  const std::string value = text(fields[http::field::authorization]);
  constexpr size_t kScheme = 7;  // "Bearer "
  if (value.size() > kScheme && boost::beast::iequals(value.substr(0, kScheme), "Bearer ")) {
    const size_t begin = value.find_first_not_of(' ', kScheme);
    return begin == std::string::npos ? std::string() : value.substr(begin);
  }
  return text(fields["X-Api-Key"]);
}

}  // namespace

struct HttpParser::Impl {
  http::request_parser<http::string_body> parser;
  State state = State::header;
  HttpRequest request;
  ApiError error;

  void read_header();
  bool check_codings();
  bool check_host();
  void fail_with(const boost::system::error_code& ec, const Limits& limits);
  Limits limits{};
};

void HttpParser::Impl::read_header() {
  const auto& message = parser.get();
  const std::string target = text(message.target());
  request.method = text(message.method_string());
  request.path = path_of(target);
  const size_t question = target.find('?');
  request.query = question == std::string::npos ? std::string() : target.substr(question + 1);
  request.http11 = message.version() >= 11;
  request.keep_alive = parser.keep_alive();
  const boost::beast::string_view expect = message[http::field::expect];
  request.expects_continue = request.http11 && boost::beast::iequals(expect, "100-continue");
  request.bad_expectation = !expect.empty() && !boost::beast::iequals(expect, "100-continue");
  request.has_body = parser.chunked() || parser.content_length().value_or(0) > 0;
  request.bearer = bearer_of(message);
  request.wanted_headers = text(message[http::field::access_control_request_headers]);
}

// HTTP/1.1 wants exactly one.
bool HttpParser::Impl::check_host() {
  const auto count = parser.get().count(http::field::host);
  if (count == 1 || (count == 0 && !request.http11)) {
    return true;
  }
  error.message = fmt::format("The request has {} 'Host' headers; expected one.", count);
  state = State::failed;
  return false;
}

// A body in a coding that is not undone here: its end is not known, or its bytes are not the JSON they stand
// for.
bool HttpParser::Impl::check_codings() {
  const std::string transfer = text(parser.get()[http::field::transfer_encoding]);
  const std::string content = text(parser.get()[http::field::content_encoding]);
  if (!transfer.empty() && !boost::beast::iequals(transfer, "chunked")) {
    error.message = fmt::format(
        "The Transfer-Encoding '{}' is not supported: send 'chunked' or a Content-Length.", transfer);
  } else if (!content.empty() && !boost::beast::iequals(content, "identity")) {
    error.status = 415;
    error.message =
        fmt::format("The Content-Encoding '{}' is not supported: send the body as it is.", content);
  } else {
    return true;
  }
  state = State::failed;
  return false;
}

void HttpParser::Impl::fail_with(const boost::system::error_code& ec, const Limits& of) {
  state = State::failed;
  if (ec == http::error::body_limit) {
    error.status = 413;
    error.message = fmt::format("The body of the request is larger than {} bytes.", of.body_bytes);
    error.code = "body_too_large";
  } else if (ec == http::error::header_limit) {
    error.status = 431;
    error.message = fmt::format("The header of the request is larger than {} bytes.", of.header_bytes);
  } else {
    error.message = fmt::format("This is not a valid HTTP request: {}.", ec.message());
  }
}

HttpParser::HttpParser(const Limits& limits) : impl_(std::make_unique<Impl>()) {
  impl_->limits = limits;
  impl_->parser.header_limit(limits.header_bytes);
  impl_->parser.body_limit(limits.body_bytes);
}

HttpParser::~HttpParser() = default;

HttpParser::State HttpParser::state() const { return impl_->state; }
HttpRequest& HttpParser::request() { return impl_->request; }
const ApiError& HttpParser::error() const { return impl_->error; }

uint64_t HttpParser::body_bytes() const {
  if (impl_->state == State::header) {
    return 0;
  }
  if (impl_->state == State::done) {
    return impl_->request.body.size();
  }
  return std::max<uint64_t>(impl_->parser.content_length().value_or(0), impl_->parser.get().body().size());
}

size_t HttpParser::feed(std::string_view bytes) {
  Impl& impl = *impl_;
  size_t taken = 0;
  while (impl.state == State::header || impl.state == State::body) {
    boost::system::error_code ec;
    const boost::asio::const_buffer rest(bytes.data() + taken, bytes.size() - taken);
    const size_t used = impl.parser.put(rest, ec);
    taken += used;
    if (ec && ec != http::error::need_more) {
      impl.fail_with(ec, impl.limits);
      break;
    }
    if (impl.state == State::header && impl.parser.is_header_done()) {
      impl.read_header();
      if (!impl.check_host() || !impl.check_codings()) {
        break;
      }
      impl.parser.eager(true);
      impl.state = impl.parser.is_done() ? State::done : State::body;
      break;
    }
    if (impl.parser.is_done()) {
      impl.request.body = std::move(impl.parser.get().body());
      impl.state = State::done;
      break;
    }
    if (ec == http::error::need_more || taken == bytes.size()) {
      break;
    }
  }
  if (impl.state == State::header && bytes.size() - taken > impl.limits.header_bytes) {
    impl.fail_with(http::make_error_code(http::error::header_limit), impl.limits);
  }
  return taken;
}

}  // namespace lily
