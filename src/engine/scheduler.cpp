#include "engine/scheduler.h"

#include <algorithm>
#include <tuple>

namespace lily {

std::vector<Assignment> schedule(std::span<const SequenceProgress> running, uint32_t chunk,
                                 uint32_t single_rows) {
  std::vector<Assignment> pass;
  std::vector<size_t> line;
  for (size_t i = 0; i < running.size(); ++i) {
    if (running[i].absorbed < running[i].prompt) {
      line.push_back(i);
    } else if (running[i].wants_token) {
      pass.push_back({.sequence = i, .begin = 0, .rows = 0});
    }
  }
  const auto place = [&](size_t i) { return std::tuple(running[i].last_turn, running[i].absorbed > 0, i); };
  std::sort(line.begin(), line.end(), [&](size_t a, size_t b) { return place(a) < place(b); });
  uint32_t room = chunk;
  for (const size_t i : line) {
    const uint32_t begin = running[i].absorbed;
    const bool single = running[i].single;
    const uint32_t boundary = begin + (single ? single_rows : chunk - begin % chunk);
    const uint32_t end = running[i].end == 0 ? running[i].prompt : running[i].end;
    const uint32_t rows = std::min(boundary, end) - begin;
    const uint32_t cost = single ? (rows * chunk + single_rows - 1) / single_rows : rows;
    if (cost <= room) {
      pass.push_back({.sequence = i, .begin = begin, .rows = rows});
      room -= cost;
    }
  }
  return pass;
}

}  // namespace lily
