// A buffer of the emulated device: its bytes, which of them were ever written, and who touched them last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lily::metal::emulator {

// Who touched a byte: run (a threadgroup of a dispatch, counted), whether by an atomic operation, the thread
// (from kWholeGroup on: a SIMD group as a whole), the barriers of the group and then of the SIMD group that
// it had passed. 0 = nobody.
class Stamp {
 public:
  static constexpr uint32_t kWholeGroup = 1024;
  static constexpr uint32_t kRunLimit = 1u << 22;
  static constexpr uint32_t kEpochLimit = 1u << 16;
  static constexpr uint32_t kSimdEpochLimit = 1u << 14;
  Stamp() = default;
  Stamp(uint32_t run, uint32_t thread, uint32_t epoch, uint32_t simd_epoch, bool atomic)
      : bits_(uint64_t{run} << 42 | uint64_t{atomic} << 41 | uint64_t{thread} << 30 | uint64_t{epoch} << 14 |
              simd_epoch) {}
  uint32_t run() const { return static_cast<uint32_t>(bits_ >> 42); }
  bool atomic() const { return (bits_ >> 41 & 1) != 0; }
  uint32_t thread() const { return bits_ >> 30 & 0x7ff; }
  uint32_t epoch() const { return bits_ >> 14 & 0xffff; }
  uint32_t simd_epoch() const { return bits_ & 0x3fff; }
  uint32_t simd() const { return thread() >= kWholeGroup ? thread() - kWholeGroup : thread() / 32; }
  // Whether `earlier`, of the same run, is ordered before this by a barrier, or by being of the same thread.
  bool after(Stamp earlier) const {
    return thread() == earlier.thread() || earlier.epoch() < epoch() ||
           (simd() == earlier.simd() && earlier.simd_epoch() < simd_epoch());
  }

 private:
  uint64_t bits_ = 0;
};

// Of one byte; while a word of four bytes was only touched as a whole, the cell of its first byte stands for
// all four. `other` is an earlier read that `read` is not ordered after, of another group if there was one.
struct Cell {
  Stamp write, read, other;
  bool split = false;  // of the first cell of a word: each byte has its own
};

// Calls `visit` for each cell of bytes [at, at + bytes), with the number of bytes it stands for. `cells` is
// that of byte 0 of the memory.
template <class Visit>
void for_cells(Cell* cells, size_t at, size_t bytes, Visit visit) {
  const size_t end = at + bytes;
  while (at < end) {
    Cell* word = cells + at / 4 * 4;
    if (!word->split && at % 4 == 0 && end - at >= 4) {
      visit(*word);
      at += 4;
      continue;
    }
    if (!word->split) {
      word[1] = word[2] = word[3] = *word;
      word->split = true;
    }
    visit(cells[at++]);
  }
}

// Pages that the system gives when they are touched, all zero.
class Pages {
 public:
  Pages() = default;
  explicit Pages(size_t bytes);
  Pages(Pages&& other) noexcept { swap(other); }
  Pages& operator=(Pages&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Pages();
  std::byte* data() const { return data_; }  // nullptr: none, or no memory
  void clear();                              // to zero again

 private:
  void swap(Pages& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

class Storage {
 public:
  // Memory of its own, filled with words that are no number as float, half or bfloat, each another one.
  // `checked`: what was never written is told apart by these words, until something has written them.
  static std::shared_ptr<Storage> allocate(size_t bytes, std::string label, bool checked);
  // Memory of the host: all of it counts as written, and the device may not write it.
  static std::shared_ptr<Storage> borrow(const void* data, size_t bytes, std::string label);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  const std::string& label() const { return label_; }
  bool read_only() const { return read_only_; }

  // Looks where the host has written since the last call.
  void see_host_writes();
  bool all_written() const { return unwritten_words_ == 0; }
  // The first byte of [offset, offset + bytes) that was never written; kNone.
  static constexpr size_t kNone = ~size_t{0};
  size_t first_unwritten(size_t offset, size_t bytes) const;
  void mark_written(size_t offset, size_t bytes);

  // The cells of all bytes, made on first use, and empty where `generation` is not that of the last call;
  // nullptr: no memory.
  Cell* cells(uint32_t generation);

 private:
  Storage() = default;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::string label_;
  bool read_only_ = false;
  Pages pages_;
  Pages cells_;
  uint32_t generation_ = 0;
  std::vector<uint8_t> written_;  // a bit of each byte; empty where all is written
  size_t unwritten_words_ = 0;    // words with a byte that may be unwritten: 0 = none
};

}  // namespace lily::metal::emulator
