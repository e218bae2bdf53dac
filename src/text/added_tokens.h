// The added tokens of a tokenizer, found in raw text: leftmost first, the longest of those that begin there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "text/rendered_prompt.h"

namespace lily {

class AddedTokenMatcher {
 public:
  // `index` is what find() returns for the token; `text` is not empty.
  void insert(std::string_view text, uint32_t index);

  struct Match {
    size_t begin;
    size_t end;
    uint32_t index;
  };
  // The first match at or after `at` that touches no byte of `literal` (ascending, disjoint).
  std::optional<Match> find(std::string_view text, size_t at,
                            std::span<const RenderedPrompt::Range> literal) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> next;
    uint32_t index = kNone;
  };
  const Node* child(const Node& node, char byte) const;

  std::vector<Node> nodes_{1};
  std::array<bool, 256> starts_{};
};

}  // namespace lily
