// What is known of prompts and answers that were read or generated before. Any thread may ask.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lily {

class TokenMemory {
 public:
  virtual ~TokenMemory() = default;
  // Leading tokens of `prompt` that were read before.
  virtual size_t known(std::span<const int32_t> prompt) const = 0;
  // How conversations that begin with `prefix` went on, up to the first `end`, which is left out; a few,
  // those used last first.
  virtual std::vector<std::vector<int32_t>> continuations(std::span<const int32_t> prefix,
                                                          int32_t end) const = 0;
};

}  // namespace lily
