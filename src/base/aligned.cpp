#include "base/aligned.h"

#include <sys/mman.h>

#include <limits>

namespace lily {

// Pages straight from the system for every size: the blocks here are few and large, and mapped memory is
// zeroed.
Result<AlignedBytes> AlignedBytes::allocate(size_t bytes) {
  AlignedBytes out;
  if (bytes == 0) {
    return out;
  }
  void* memory = MAP_FAILED;
  if (bytes <= std::numeric_limits<size_t>::max() / 2) {
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (memory == MAP_FAILED) {
    return fail(ErrorKind::out_of_memory, "cannot allocate {} bytes", bytes);
  }
#ifdef MADV_HUGEPAGE
  if (bytes >= (size_t{4} << 20)) {
    ::madvise(memory, bytes, MADV_HUGEPAGE);  // a hint; refusal costs speed only
  }
#endif
  out.data_ = static_cast<std::byte*>(memory);
  out.size_ = bytes;
  return out;
}

AlignedBytes::~AlignedBytes() {
  if (data_ != nullptr) {
    ::munmap(data_, size_);
  }
}

}  // namespace lily
