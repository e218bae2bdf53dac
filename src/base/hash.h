// 128-bit hashes of bytes (XXH3): names and checksums. Not cryptographic: they find damage and tell contents
// apart, they do not withstand somebody who looks for two contents with one hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lily {

struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const Hash128&) const = default;
  bool operator<(const Hash128& other) const {
    return high != other.high ? high < other.high : low < other.low;
  }
  std::string hex() const;  // 32 digits
};
std::optional<Hash128> hash_from_hex(std::string_view text);  // what hex() writes, and nothing else

// The hash of all bytes so far, at any time. Move-only.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  Hash128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lily
