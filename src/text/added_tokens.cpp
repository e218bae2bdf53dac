#include "text/added_tokens.h"

#include <algorithm>

namespace lily {

void AddedTokenMatcher::insert(std::string_view text, uint32_t index) {
  starts_[static_cast<uint8_t>(text[0])] = true;
  uint32_t at = 0;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    const auto& next = nodes_[at].next;
    const auto found =
        std::find_if(next.begin(), next.end(), [&](const auto& edge) { return edge.first == byte; });
    if (found != next.end()) {
      at = found->second;
      continue;
    }
    const auto fresh = static_cast<uint32_t>(nodes_.size());
    nodes_[at].next.emplace_back(byte, fresh);
    nodes_.emplace_back();
    at = fresh;
  }
  nodes_[at].index = index;
}

const AddedTokenMatcher::Node* AddedTokenMatcher::child(const Node& node, char byte) const {
  for (const auto& [value, next] : node.next)
    if (value == static_cast<uint8_t>(byte)) return &nodes_[next];
  return nullptr;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::find(
    std::string_view text, size_t at, std::span<const RenderedPrompt::Range> literal) const {
  // The first range that ends after `at`; it moves along with the search.
  auto range =
      std::partition_point(literal.begin(), literal.end(), [&](const auto& r) { return r.end <= at; });
  for (; at < text.size(); ++at) {
    while (range != literal.end() && range->end <= at) ++range;
    if (range != literal.end() && range->begin <= at) {
      at = range->end - 1;
      continue;
    }
    if (!starts_[static_cast<uint8_t>(text[at])]) continue;
    const size_t limit = range != literal.end() ? std::min(range->begin, text.size()) : text.size();
    std::optional<Match> longest;
    const Node* node = nodes_.data();
    for (size_t end = at; end < limit;) {
      node = child(*node, text[end++]);
      if (node == nullptr) break;
      if (node->index != kNone) longest = Match{at, end, node->index};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

}  // namespace lily
