#include "weights/faults.h"

namespace lily {

std::string in_quotes(std::string_view text) {
  constexpr size_t kMaxShown = 160;
  std::string out = "'";
  for (const char character : text.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte >= 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += character;
    }
  }
  out += text.size() > kMaxShown ? "...'" : "'";
  return out;
}

void Faults::add_all(const Error& error, std::string_view prefix) {
  if (error.details.empty()) {
    add("{}{}", prefix, error.message);
  }
  for (const std::string& line : error.details) {
    add("{}{}", prefix, line);
  }
}

Error Faults::error(ErrorKind kind, std::string_view thing) const {
  if (count_ == 1) {
    return {kind, fmt::format("{}: {}", thing, lines_.front()), {}};
  }
  Error out{kind, fmt::format("{}: {} faults", thing, count_), lines_};
  if (count_ > lines_.size()) {
    out.details.push_back(fmt::format("... and {} more", count_ - lines_.size()));
  }
  return out;
}

}  // namespace lily
