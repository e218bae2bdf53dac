// Bytes of a token -> its id: open addressing, one cache line for a text that is no token.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lily {

class TokenTable {
 public:
  // `tokens` (by id) must outlive the table; `ids` are those to be found. Of equal texts the first counts.
  TokenTable(const std::vector<std::string>& tokens, const std::vector<uint32_t>& ids) : tokens_(tokens) {
    slots_.assign(std::bit_ceil(ids.size() * 2 + 2), Slot{});
    for (const uint32_t id : ids) {
      const std::string_view text = tokens_[id];
      longest_ = std::max(longest_, text.size());
      const uint64_t hash = std::hash<std::string_view>()(text);
      uint64_t at = hash & (slots_.size() - 1);
      while (slots_[at].id != kEmpty && tokens_[slots_[at].id] != text) at = (at + 1) & (slots_.size() - 1);
      if (slots_[at].id == kEmpty) slots_[at] = {static_cast<uint32_t>(hash >> 32), id};
    }
  }

  std::optional<uint32_t> find(std::string_view text) const {
    if (text.size() > longest_) return std::nullopt;
    const uint64_t hash = std::hash<std::string_view>()(text);
    for (uint64_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      const Slot slot = slots_[at];
      if (slot.id == kEmpty) return std::nullopt;
      if (slot.tag == hash >> 32 && tokens_[slot.id] == text) return slot.id;
    }
  }

 private:
  static constexpr uint32_t kEmpty = UINT32_MAX;
  struct Slot {
    uint32_t tag = 0;
    uint32_t id = kEmpty;
  };
  const std::vector<std::string>& tokens_;
  std::vector<Slot> slots_;
  size_t longest_ = 0;
};

}  // namespace lily
