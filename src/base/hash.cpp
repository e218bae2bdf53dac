#include "base/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <charconv>

#include "base/check.h"

namespace lily {

std::string Hash128::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

std::optional<Hash128> hash_from_hex(std::string_view text) {
  Hash128 hash;
  if (text.size() != 32) return std::nullopt;
  const auto half = [&](size_t begin, uint64_t& out) {
    const char* end = text.data() + begin + 16;
    const auto read = std::from_chars(text.data() + begin, end, out, 16);
    return read.ec == std::errc() && read.ptr == end;
  };
  if (!half(0, hash.high) || !half(16, hash.low) || hash.hex() != text) return std::nullopt;
  return hash;
}

struct Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() { LILY_CHECK(xxh != nullptr && XXH3_128bits_reset(xxh) == XXH_OK); }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {}
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

void Hasher::update(std::span<const std::byte> bytes) {
  LILY_CHECK(XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size()) == XXH_OK);
}

Hash128 Hasher::digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh);
  return {hash.high64, hash.low64};
}

}  // namespace lily
