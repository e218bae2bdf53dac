#include "memory.h"

#include <sys/mman.h>

#include <cstring>

namespace lily::metal::emulator {
namespace {

// Not a number as float, and both halves not a number as half or bfloat. Of 4,096 such words the place
// decides.
uint32_t poison(size_t word) {
  const uint64_t mixed = (word + 1) * 0x9e3779b97f4a7c15u;
  return 0xffc0ffc0u | (mixed >> 58 << 16) | (mixed >> 40 & 0x3f);
}

// A bit of each byte that is not 0.
unsigned changed_bytes(uint32_t difference) {
  unsigned bytes = 0;
  for (unsigned i = 0; i < 4; ++i) {
    bytes |= (difference >> (8 * i) & 0xff) != 0 ? 1u << i : 0;
  }
  return bytes;
}

}  // namespace

Pages::Pages(size_t bytes) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory != MAP_FAILED) {
    data_ = static_cast<std::byte*>(memory);
    bytes_ = bytes;
  }
}

Pages::~Pages() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

void Pages::clear() {
  if (data_ != nullptr) {
    // New pages in place of the old ones.
    mmap(data_, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
         0);
  }
}

std::shared_ptr<Storage> Storage::allocate(size_t bytes, std::string label, bool checked) {
  constexpr size_t kGap = 64 << 10;  // between buffers, so that an overrun does not find the next one
  std::shared_ptr<Storage> storage(new Storage);
  storage->pages_ = Pages(bytes + kGap);
  storage->data_ = storage->pages_.data();
  storage->size_ = bytes;
  storage->label_ = std::move(label);
  if (storage->data_ == nullptr) {
    return nullptr;
  }
  const size_t words = (bytes + 3) / 4;
  auto* word = reinterpret_cast<uint32_t*>(storage->data_);
  for (size_t i = 0; i < words; ++i) {
    word[i] = poison(i);
  }
  if (checked) {
    storage->written_.resize((words * 4 + 7) / 8);
    storage->unwritten_words_ = words;
  }
  return storage;
}

std::shared_ptr<Storage> Storage::borrow(const void* data, size_t bytes, std::string label) {
  std::shared_ptr<Storage> storage(new Storage);
  storage->data_ = static_cast<std::byte*>(const_cast<void*>(data));
  storage->size_ = bytes;
  storage->label_ = std::move(label);
  storage->read_only_ = true;
  return storage;
}

void Storage::see_host_writes() {
  if (unwritten_words_ == 0) {
    return;
  }
  const size_t words = (size_ + 3) / 4;
  const auto* word = reinterpret_cast<const uint32_t*>(data_);
  size_t unwritten = 0;
  for (size_t i = 0; i < words; ++i) {
    const unsigned shift = i % 2 * 4;
    const uint32_t expected = poison(i);
    unsigned marked = (written_[i / 2] >> shift) & 15u;
    if (marked != 15 && word[i] != expected) {
      // The host is seen by the whole word; where a kernel wrote a part of it, by each other byte.
      if (marked == 0) {
        marked = 15;
      } else {
        marked |= changed_bytes(word[i] ^ expected);
      }
      written_[i / 2] = static_cast<uint8_t>(written_[i / 2] | marked << shift);
    }
    unwritten += marked != 15 ? 1 : 0;
  }
  unwritten_words_ = unwritten;
}

size_t Storage::first_unwritten(size_t offset, size_t bytes) const {
  if (bytes <= 8 && offset % bytes == 0) {  // within eight bits
    const unsigned wanted = (1u << bytes) - 1;
    if ((written_[offset / 8] >> (offset % 8) & wanted) == wanted) {
      return kNone;
    }
  }
  for (size_t i = offset; i < offset + bytes; ++i) {
    if ((written_[i / 8] >> (i % 8) & 1) == 0) {
      return i;
    }
  }
  return kNone;
}

void Storage::mark_written(size_t offset, size_t bytes) {
  if (bytes <= 8 && offset % bytes == 0) {
    written_[offset / 8] = static_cast<uint8_t>(written_[offset / 8] | ((1u << bytes) - 1) << (offset % 8));
    return;
  }
  for (size_t i = offset; i < offset + bytes; ++i) {
    written_[i / 8] = static_cast<uint8_t>(written_[i / 8] | 1u << (i % 8));
  }
}

Cell* Storage::cells(uint32_t generation) {
  if (cells_.data() == nullptr) {
    cells_ = Pages((size_ + 3) / 4 * 4 * sizeof(Cell));
  } else if (generation != generation_) {
    cells_.clear();
  }
  generation_ = generation;
  return reinterpret_cast<Cell*>(cells_.data());
}

}  // namespace lily::metal::emulator
