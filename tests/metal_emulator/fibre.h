// A thread of a kernel: a stack of its own, switched by hand. x86-64 has a switch of its own; other
// processors use ucontext, which costs two calls of the system for each switch.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) || defined(LILY_METAL_UCONTEXT)
#define LILY_METAL_FIBRE_UCONTEXT 1
#include <ucontext.h>
#endif

namespace lily::metal::emulator {

class Fibre {
 public:
  // The next switch to it starts `entry`, which never returns, on the stack that ends at `top` (16-byte
  // aligned).
  void prepare(std::byte* bottom, std::byte* top, void (*entry)());
  static void change(Fibre& from, Fibre& to);  // returns when something changes to `from`

 private:
#ifdef LILY_METAL_FIBRE_UCONTEXT
  ucontext_t context_;
#else
  void* stack_ = nullptr;
#endif
};

// The stacks of all threads of a group, each with a page below that may not be touched. Their tops are spread
// over the lines of a cache.
class Stacks {
 public:
  Stacks() = default;
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks();
  // False: no memory. Unguarded where there are more stacks than a process may have pieces of memory.
  bool reserve(size_t count, bool guarded = true);
  std::byte* bottom(size_t index) const { return base_ + index * kBytes + kGuard; }
  std::byte* top(size_t index) const { return base_ + (index + 1) * kBytes - (index % 61) * 1088; }
  bool holds(const void* address) const {
    return static_cast<size_t>(static_cast<const std::byte*>(address) - base_) < count_ * kBytes;
  }
  // Whether the address is in a page below a stack: the stack was too small.
  bool overflowed(const void* address) const {
    return holds(address) &&
           static_cast<size_t>(static_cast<const std::byte*>(address) - base_) % kBytes < kGuard;
  }

 private:
  static constexpr size_t kBytes = 256 << 10;
  static constexpr size_t kGuard = 16 << 10;
  std::byte* base_ = nullptr;
  size_t count_ = 0;
};

}  // namespace lily::metal::emulator
