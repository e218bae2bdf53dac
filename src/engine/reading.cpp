#include "engine/reading.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

namespace lily {

bool Reading::single(uint32_t token) const {
  const auto before = std::ranges::upper_bound(changes_, token) - changes_.begin();
  return before % 2 == 1;
}

uint32_t Reading::next_change(uint32_t token) const {
  const auto next = std::ranges::upper_bound(changes_, token);
  return next == changes_.end() ? std::numeric_limits<uint32_t>::max() : *next;
}

bool Reading::keeps(uint32_t length) const { return length % unit_ == 0 || single(length - 1); }

uint32_t Reading::kept_before(uint32_t length) const {
  if (keeps(length)) return length;
  // The end of the single rows before it, if it is nearer than a multiple of the unit.
  const auto change = std::ranges::upper_bound(changes_, length - 1) - changes_.begin();
  const uint32_t multiple = length - length % unit_;
  return change > 0 ? std::max(multiple, changes_[static_cast<size_t>(change) - 1]) : multiple;
}

bool Reading::turns_single(uint32_t length) const {
  return length > 0 && single(length) && !single(length - 1);
}

ReadingRule::ReadingRule(const ReadingTraits& device, const Tokenizer& tokenizer) : device_(device) {
  const auto think = tokenizer.id_of("<think>"), end = tokenizer.id_of("<|im_end|>");
  const std::vector<int32_t> line = tokenizer.encode("\n");
  if (!think || !end || !tokenizer.id_of("<|im_start|>")) return;
  opening_ = tokenizer.encode("<|im_start|>assistant\n");
  think_ = *think;
  end_ = *end;
  line_ = line.size() == 1 ? line[0] : -1;
}

std::string ReadingRule::name() const {
  if (!matters()) return {};
  return fmt::format("; read by {} tokens, answers as {} {} {} {}", device_.unit, fmt::join(opening_, " "),
                     think_, end_, line_);
}

Reading ReadingRule::read(std::span<const int32_t> tokens) const {
  if (!matters()) return {};
  std::vector<uint32_t> changes;
  bool single = false;
  for (size_t i = 0; i < tokens.size() && !opening_.empty(); ++i) {
    if (single && tokens[i] == end_) {
      if (i + 1 < tokens.size() && tokens[i + 1] == line_) ++i;
      changes.push_back(static_cast<uint32_t>(i + 1));
      single = false;
    } else if (!single && tokens[i] == think_ && i >= opening_.size() &&
               std::ranges::equal(opening_, tokens.subspan(i - opening_.size(), opening_.size()))) {
      changes.push_back(static_cast<uint32_t>(i));
      single = true;
    }
  }
  return {device_.unit, std::move(changes)};
}

bool ReadingRule::keeps(std::span<const int32_t> tokens, size_t prompt) const {
  if (!matters()) return true;
  const Reading reading = read(tokens);
  const auto begin = static_cast<uint32_t>(prompt);
  if (tokens.size() > prompt && (!reading.single(begin) || reading.next_change(begin) < tokens.size())) {
    return false;
  }
  return reading.keeps(static_cast<uint32_t>(tokens.size()));
}

}  // namespace lily
