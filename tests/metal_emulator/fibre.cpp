#include "fibre.h"

#include <sys/mman.h>

#include <cstdint>

#ifndef LILY_METAL_FIBRE_UCONTEXT
// void lily_metal_change(void** from, void* to): keeps what a function must keep, and the stack pointer.
asm(R"(
.text
.globl lily_metal_change
.type lily_metal_change, @function
lily_metal_change:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size lily_metal_change, .-lily_metal_change
)");
extern "C" void lily_metal_change(void** from, void* to);
#endif

namespace lily::metal::emulator {

#ifdef LILY_METAL_FIBRE_UCONTEXT
void Fibre::prepare(std::byte* bottom, std::byte* top, void (*entry)()) {
  getcontext(&context_);
  context_.uc_stack.ss_sp = bottom;
  context_.uc_stack.ss_size = static_cast<size_t>(top - bottom);
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
}
void Fibre::change(Fibre& from, Fibre& to) { swapcontext(&from.context_, &to.context_); }
#else
void Fibre::prepare(std::byte*, std::byte* top, void (*entry)()) {
  // What lily_metal_change pops: six registers, the address it returns to; then that of a caller, which is
  // none.
  auto* words = reinterpret_cast<void**>(top) - 8;
  for (int i = 0; i < 8; ++i) {
    words[i] = nullptr;
  }
  words[6] = reinterpret_cast<void*>(entry);
  stack_ = words;
}
void Fibre::change(Fibre& from, Fibre& to) { lily_metal_change(&from.stack_, to.stack_); }
#endif

Stacks::~Stacks() {
  if (base_ != nullptr) {
    munmap(base_, count_ * kBytes);
  }
}

bool Stacks::reserve(size_t count, bool guarded) {
  if (count <= count_) {
    return true;
  }
  if (base_ != nullptr) {
    munmap(base_, count_ * kBytes);
    base_ = nullptr;
    count_ = 0;
  }
  void* memory = mmap(nullptr, count * kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return false;
  }
  base_ = static_cast<std::byte*>(memory);
  count_ = count;
  for (size_t i = 0; guarded && i < count; ++i) {
    mprotect(base_ + i * kBytes, kGuard, PROT_NONE);
  }
  return true;
}

}  // namespace lily::metal::emulator
