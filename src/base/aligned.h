// Memory aligned to a cache line and sized once. Large blocks come straight from the system, zeroed, and ask
// for huge pages; they are given back on destruction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "base/result.h"

namespace lily {

// Raw storage. Move-only. Zero-filled on allocation.
class AlignedBytes {
 public:
  static constexpr size_t kAlignment = 64;

  AlignedBytes() = default;
  static Result<AlignedBytes> allocate(size_t bytes);
  AlignedBytes(AlignedBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  AlignedBytes& operator=(AlignedBytes&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  ~AlignedBytes();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// An array of trivial T in AlignedBytes.
template <class T>
class AlignedArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedArray() = default;
  static Result<AlignedArray> allocate(size_t count) {
    LILY_TRY(AlignedBytes bytes, AlignedBytes::allocate(count * sizeof(T)));
    AlignedArray out;
    out.bytes_ = std::move(bytes);
    out.count_ = count;
    return out;
  }
  T* data() { return reinterpret_cast<T*>(bytes_.data()); }
  const T* data() const { return reinterpret_cast<const T*>(bytes_.data()); }
  size_t size() const { return count_; }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  std::span<T> span() { return {data(), count_}; }
  std::span<const T> span() const { return {data(), count_}; }

 private:
  AlignedBytes bytes_;
  size_t count_ = 0;
};

}  // namespace lily
