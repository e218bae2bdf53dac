// What a translated kernel asks of the emulator, and what it tells about itself. C++14 that includes nothing:
// kernels see nothing of the host but this. The emulator implements the functions (group.cpp, access.cpp).
#pragma once

// Of the shim's own functions: their accesses are those of the emulator, not of the kernel.
#define LILY_QUIET __attribute__((no_sanitize("thread")))
// The line of the kernel that calls; default arguments of every function at which threads meet.
#define LILY_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace lily_metal {

struct Triple {
  unsigned x, y, z;
};

// One thread of a dispatch, as its kernel is called.
struct Call {
  Triple thread_in_group, group, threads, groups;  // threads of a threadgroup, threadgroups of the grid
  unsigned index;                                  // thread_index_in_threadgroup
  void* const* buffers;                            // by [[buffer(n)]]
  void* const* locals;                             // by [[threadgroup(n)]]
};

enum class Space : unsigned char { in_device, in_constant, in_threadgroup };

struct Parameter {
  const char* name;
  Space space;
  unsigned index;
  unsigned element_bytes;
  bool writable;
  bool reference;  // one element rather than an array
};

struct Kernel {
  const char* name;
  void (*run)(const Call& call);
  const Parameter* parameters;
  unsigned count;
  unsigned max_threads;     // [[max_total_threads_per_threadgroup]], or 1024
  unsigned long constants;  // a bit of each of the module's constants that it may use
};

struct Constant {
  const char* name;
  unsigned index;
  char type;  // b, i, u, f
  void* variable;
};

// One .metal file, compiled with or without the calls that check its accesses.
struct Module {
  const char* name;
  unsigned long hash;  // FNV-1a of the text that was compiled
  bool checked;
  const Kernel* kernels;
  unsigned kernel_count;
  const Constant* constants;
  unsigned constant_count;
};

// Threadgroup memory of the running group, the same for all threads that ask under one name and line.
void* shared_memory(unsigned long bytes, const char* name, int line);

void group_barrier(unsigned flags, const char* file, int line);
void simd_barrier(unsigned flags, const char* file, int line);

// A meeting of the 32 threads of a SIMD group. Each enters and leaves its value; the last one is told so by
// arrive() and computes what all get; the others continue once it has called release().
struct Meeting {
  void* in;   // 32 values of at most 16 bytes
  void* out;  // the same
  unsigned lane;
};
Meeting meeting();
bool arrive(const char* what, const char* file, int line);
void release();

// Operations of a whole SIMD group on matrices: thread 0 computes, the others pass by. All 32 must come by in
// the same order with the same operands. True for thread 0.
bool matrix_turn(const char* what, const void* operand, const char* file, int line);
// Accesses in between are those of the SIMD group as a whole.
void collective_begin();
void collective_end();

void atomic_access(const void* address, unsigned bytes, bool reads, bool writes);
[[noreturn]] void refuse(const char* what, const char* file, int line);  // a fault of the kernel

}  // namespace lily_metal
