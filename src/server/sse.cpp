#include "server/sse.h"

namespace lily {
namespace {

// Lines of `text`, ended by \n, \r\n or \r, each behind `prefix`.
void append_lines(std::string& out, std::string_view prefix, std::string_view text) {
  size_t begin = 0;
  while (true) {
    const size_t end = text.find_first_of("\r\n", begin);
    out += prefix;
    out += text.substr(begin, end == std::string_view::npos ? end : end - begin);
    out += '\n';
    if (end == std::string_view::npos) {
      return;
    }
    begin = end + (text.substr(end, 2) == "\r\n" ? 2 : 1);
  }
}

}  // namespace

std::string sse_data(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 8);
  append_lines(out, "data: ", text);
  out += '\n';
  return out;
}

std::string sse_event(std::string_view name, std::string_view text) {
  std::string out = "event: ";
  out += name;
  out += '\n';
  return out + sse_data(text);
}

std::string sse_comment(std::string_view text) {
  std::string out;
  append_lines(out, ": ", text);
  out += '\n';
  return out;
}

std::string sse_done() { return "data: [DONE]\n\n"; }

}  // namespace lily
