// Executes one threadgroup: its threads as fibres in a random order, its barriers and the meetings of its
// SIMD groups, its threadgroup memory, and, for checked kernels, every access.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/metal/device.h"
#include "fibre.h"
#include "memory.h"
#include "shim/runtime.h"

namespace lily::metal::emulator {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint32_t below(uint32_t bound) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<uint32_t>((state_ >> 32) * bound >> 32);
  }

 private:
  uint64_t state_;
};

// A buffer as a dispatch sees it: bytes [begin, end) of the host's memory.
struct Bound {
  uintptr_t begin = 0, end = 0;
  Storage* storage = nullptr;
  const lily_metal::Parameter* parameter = nullptr;
  Cell* cells =
      nullptr;  // of byte 0 of the storage; nullptr where no dispatch of the command buffer writes it
};

struct ConstantValue {
  void* variable;
  uint32_t bits;
};

// A dispatch with everything it uses resolved.
struct Work {
  const lily_metal::Kernel* kernel = nullptr;
  bool checked = false;
  uint32_t number = 0;  // in its command buffer
  Size3 groups, threads;
  std::vector<Bound> bounds;
  std::array<void*, kMaxBindings> buffers{};
  std::array<uint32_t, kMaxBindings> threadgroup_bytes{};
  std::vector<ConstantValue> constants;
  std::vector<std::shared_ptr<Storage>> kept;  // what the pointers point to
};

// What is known of the groups that ran, so that a stamp can be put in words.
struct Run {
  const Work* work;
  lily_metal::Triple group;
};

// The runs of a command buffer that no barrier separates start at `first`.
struct History {
  uint32_t generation = 1;
  uint32_t begin = 1;  // the run of runs[0]; 0 is nobody's
  uint32_t first = 1;
  std::vector<Run> runs;
  uint32_t next() const { return begin + static_cast<uint32_t>(runs.size()); }
};

// Threadgroup memory with gaps between its variables.
inline constexpr uint32_t kArenaBytes = 256 << 10;

class Group {
 public:
  explicit Group(uint64_t seed);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  // Runs group `group` of `work`; a fault ends it at once and is returned.
  std::optional<std::string> run(const Work& work, lily_metal::Triple group, History& history);

  // Called by the running thread.
  static Group& running();
  void* shared_memory(size_t bytes, const char* name, int line);
  void group_barrier(unsigned flags, const char* file, int line);
  void simd_barrier(unsigned flags, const char* file, int line);
  lily_metal::Meeting meeting();
  bool arrive(const char* what, const char* file, int line);
  void release();
  bool matrix_turn(const char* what, const void* operand, const char* file, int line);
  void collective(bool on) { collective_ = on; }
  bool on_stack(const void* address) const { return stacks_.holds(address); }
  void access(const void* address, size_t bytes, bool write, bool atomic);
  void atomic_access(const void* address, size_t bytes, bool reads, bool writes);
  [[noreturn]] void refuse(const std::string& what);

 private:
  // Where a thread is; `what` names the call it waits in.
  enum class At : uint8_t { ready, barrier, meeting, returned };
  struct Thread {
    Fibre fibre;
    lily_metal::Call call;
    At at = At::ready;
    const char* what = "";
    const char* file = "";
    int line = 0;
    uint32_t meetings = 0;
    uint32_t matrix_steps = 0;
    uint64_t matrix_hash = 0;
  };
  struct Simd {
    uint32_t arrived = 0;
    uint32_t epoch_device = 0, epoch_threadgroup = 0;  // barriers since the last one of the threadgroup
    uint32_t meetings = 0;
    alignas(16) std::array<std::array<std::byte, 512>, 2> in, out;
  };
  struct Variable {
    std::string name;
    int line = 0;
    uint32_t offset = 0, bytes = 0;
  };

  static void enter();
  void start(const Work& work, lily_metal::Triple group);
  void next(Fibre& from);
  void wait_as(At at, const char* what, const char* file, int line);
  void wake(uint32_t first, uint32_t count);
  void check_same_call(const Thread& first, const Thread& here);
  void check_matrix_steps(uint32_t first, uint32_t count);
  std::string stuck() const;
  std::string where(const Thread& thread) const;
  std::string triple_of(uint32_t thread) const;
  Variable& place(size_t bytes, const char* name, int line);

  // access.cpp
  struct Target {
    const Bound* bound = nullptr;        // in device memory,
    const Variable* variable = nullptr;  // or in threadgroup memory
    uintptr_t begin = 0;                 // of the whole
  };
  bool find(uintptr_t address, size_t bytes, Target& target);
  Stamp stamp(bool threadgroup, bool atomic) const;
  void touch(const Target& target, uintptr_t address, size_t bytes, bool write, Stamp now);
  [[noreturn]] void report_outside(uintptr_t address, size_t bytes, bool write);
  void check_written(const Target& target, uintptr_t address, size_t bytes);
  std::string name_of(const Target& target, uintptr_t address) const;
  std::string who(Stamp stamp) const;
  [[noreturn]] void report_conflict(const Target& target, uintptr_t address, bool write, Stamp now,
                                    Stamp earlier, bool earlier_write);

  Random random_;
  Stacks stacks_;
  std::vector<Thread> threads_;
  std::vector<Simd> simds_;
  std::vector<uint32_t> ready_;
  Fibre main_;
  const Work* work_ = nullptr;
  lily_metal::Triple group_{};
  History* history_ = nullptr;
  uint32_t run_ = 0;
  uint32_t current_ = 0;
  uint32_t count_ = 0;  // threads
  uint32_t at_barrier_ = 0, returned_ = 0;
  uint32_t epoch_device_ = 0, epoch_threadgroup_ = 0;
  bool collective_ = false;
  size_t last_bound_ = 0;
  std::optional<std::string> fault_;
  Pages arena_;
  Pages arena_cells_;
  uint32_t arena_used_ = 0, arena_bytes_ = 0;  // with the gaps, without
  std::vector<Variable> variables_;
  std::array<void*, kMaxBindings> threadgroup_{};
};

}  // namespace lily::metal::emulator
