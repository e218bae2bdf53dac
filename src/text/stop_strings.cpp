#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace lily {

// Knuth, Morris and Pratt's automaton, one per stop string.
StopStrings::StopStrings(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    if (text.empty()) continue;
    Stop stop;
    stop.border.assign(text.size(), 0);
    for (size_t i = 1; i < text.size(); ++i) {
      uint32_t k = stop.border[i - 1];
      while (k > 0 && text[i] != text[k]) k = stop.border[k - 1];
      stop.border[i] = text[i] == text[k] ? k + 1 : 0;
    }
    stop.text = std::move(text);
    stops_.push_back(std::move(stop));
  }
}

bool StopStrings::advance(Stop& stop, char c) {
  while (stop.matched > 0 && stop.text[stop.matched] != c) stop.matched = stop.border[stop.matched - 1];
  if (stop.text[stop.matched] == c) ++stop.matched;
  return stop.matched == stop.text.size();
}

StopStrings::Piece StopStrings::push(std::string_view text) {
  Piece piece;
  if (stopped_) return piece;
  held_ += text;
  for (size_t i = 0; i < text.size() && !stopped_; ++i) {
    const Stop* found = nullptr;
    for (Stop& stop : stops_)
      if (advance(stop, text[i]) && (found == nullptr || stop.text.size() > found->text.size()))
        found = &stop;
    if (found == nullptr) continue;
    stopped_ = true;
    piece.stopped = true;
    piece.matched = found->text;
    piece.text = held_.substr(0, held_.size() - text.size() + i + 1 - found->text.size());
    held_.clear();
  }
  if (stopped_) return piece;
  size_t hold = 0;
  for (const Stop& stop : stops_) hold = std::max<size_t>(hold, stop.matched);
  piece.text = held_.substr(0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return piece;
}

std::string StopStrings::release() {
  for (Stop& stop : stops_) stop.matched = 0;
  return std::exchange(held_, {});
}

std::string StopStrings::flush() {
  std::string out = std::move(held_);
  held_.clear();
  stopped_ = true;
  return out;
}

}  // namespace lily
