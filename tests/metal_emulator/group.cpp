#include "group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace lily::metal::emulator {
namespace {

constexpr uint32_t kArenaGap = 256;

thread_local Group* t_running = nullptr;

}  // namespace

Group::Group(uint64_t seed)
    : random_(seed), arena_(kArenaBytes), arena_cells_(size_t{kArenaBytes} * sizeof(Cell)) {}

Group& Group::running() { return *t_running; }

void Group::enter() {
  Group& group = running();
  group.work_->kernel->run(group.threads_[group.current_].call);
  group.check_matrix_steps(group.current_, 1);
  group.threads_[group.current_].at = At::returned;
  ++group.returned_;
  group.next(group.threads_[group.current_].fibre);
}

void Group::start(const Work& work, lily_metal::Triple group) {
  work_ = &work;
  group_ = group;
  count_ = static_cast<uint32_t>(work.threads.count());
  if (threads_.size() < count_) {
    threads_.resize(count_);
    simds_.resize(count_ / kSimdWidth);
  }
  at_barrier_ = returned_ = 0;
  epoch_device_ = epoch_threadgroup_ = 0;
  collective_ = false;
  last_bound_ = 0;
  arena_used_ = arena_bytes_ = 0;
  variables_.clear();
  for (uint32_t i = 0; i < kMaxBindings; ++i) {
    threadgroup_[i] = nullptr;
    if (work.threadgroup_bytes[i] != 0) {
      const Variable& variable = place(work.threadgroup_bytes[i], "[[threadgroup]]", static_cast<int>(i));
      threadgroup_[i] = arena_.data() + variable.offset;
    }
  }
  for (uint32_t i = 0; i < count_ / kSimdWidth; ++i) {
    simds_[i].arrived = simds_[i].epoch_device = simds_[i].epoch_threadgroup = simds_[i].meetings = 0;
  }
  ready_.clear();
  for (uint32_t i = 0; i < count_; ++i) {
    Thread& thread = threads_[i];
    thread.at = At::ready;
    thread.meetings = thread.matrix_steps = 0;
    thread.matrix_hash = 0;
    thread.call.thread_in_group = {i % work.threads.x, i / work.threads.x % work.threads.y,
                                   i / (work.threads.x * work.threads.y)};
    thread.call.group = group;
    thread.call.threads = {work.threads.x, work.threads.y, work.threads.z};
    thread.call.groups = {work.groups.x, work.groups.y, work.groups.z};
    thread.call.index = i;
    thread.call.buffers = work.buffers.data();
    thread.call.locals = threadgroup_.data();
    thread.fibre.prepare(stacks_.bottom(i), stacks_.top(i), &Group::enter);
    ready_.push_back(i);
  }
}

std::optional<std::string> Group::run(const Work& work, lily_metal::Triple group, History& history) {
  if (!stacks_.reserve(work.threads.count()) || arena_.data() == nullptr || arena_cells_.data() == nullptr) {
    return "no memory for the stacks of the threads";
  }
  history_ = &history;
  run_ = history.next();
  history.runs.push_back({&work, group});
  fault_.reset();
  for (const ConstantValue& constant : work.constants) {
    std::memcpy(constant.variable, &constant.bits, 4);
  }
  Group* const outer = t_running;
  t_running = this;
  start(work, group);
  if (!fault_) {
    next(main_);
  }
  t_running = outer;
  return std::move(fault_);
}

// Continues a ready thread, or the host where there is none.
void Group::next(Fibre& from) {
  if (ready_.empty()) {
    if (returned_ != count_ && !fault_) {
      fault_ = stuck();
    }
    Fibre::change(from, main_);
    return;
  }
  const uint32_t at = random_.below(static_cast<uint32_t>(ready_.size()));
  current_ = ready_[at];
  ready_[at] = ready_.back();
  ready_.pop_back();
  Fibre& to = threads_[current_].fibre;
  if (&to != &from) {
    Fibre::change(from, to);
  }
}

void Group::refuse(const std::string& what) {
  fault_ = fmt::format("kernel '{}', threadgroup ({}, {}, {}): {}", work_->kernel->name, group_.x, group_.y,
                       group_.z, what);
  // The threads are left where they are; their stacks are used again.
  Fibre gone;
  Fibre::change(gone, main_);
  __builtin_unreachable();
}

std::string Group::triple_of(uint32_t thread) const {
  if (work_->threads.y == 1 && work_->threads.z == 1) {
    return fmt::format("thread {}", thread);
  }
  const lily_metal::Triple at = threads_[thread].call.thread_in_group;
  return fmt::format("thread {} ({}, {}, {})", thread, at.x, at.y, at.z);
}

std::string Group::where(const Thread& thread) const {
  const std::string name = triple_of(thread.call.index);
  return thread.at == At::returned
             ? name + " has returned"
             : fmt::format("{} is at {}:{} in {}", name, thread.file, thread.line, thread.what);
}

// No thread can go on, and some have not returned.
std::string Group::stuck() const {
  const Thread* waiting = nullptr;
  const Thread* other = nullptr;
  for (uint32_t i = 0; i < count_; ++i) {
    if (threads_[i].at != At::returned) {
      waiting = &threads_[i];
      break;
    }
  }
  for (uint32_t i = 0; i < count_; ++i) {
    const Thread& thread = threads_[i];
    if (waiting->at == At::meeting && i / kSimdWidth != waiting->call.index / kSimdWidth) {
      continue;  // only its own SIMD group keeps it waiting
    }
    if (thread.at != waiting->at || thread.line != waiting->line ||
        std::strcmp(thread.what, waiting->what) != 0) {
      other = &thread;
      break;
    }
  }
  return fmt::format("kernel '{}', threadgroup ({}, {}, {}): divergent {}: {}, but {}", work_->kernel->name,
                     group_.x, group_.y, group_.z, waiting->at == At::barrier ? "barrier" : "SIMD function",
                     where(*waiting), other == nullptr ? "others never come" : where(*other));
}

void Group::wait_as(At at, const char* what, const char* file, int line) {
  Thread& thread = threads_[current_];
  thread.at = at;
  thread.what = what;
  thread.file = file;
  thread.line = line;
}

void Group::wake(uint32_t first, uint32_t count) {
  for (uint32_t i = first; i < first + count; ++i) {
    threads_[i].at = At::ready;
    if (i != current_) {
      ready_.push_back(i);
    }
  }
}

void Group::check_same_call(const Thread& first, const Thread& here) {
  const auto same = [](const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; };
  if (first.line != here.line || !same(first.what, here.what) || !same(first.file, here.file)) {
    refuse(fmt::format("divergent {}: {}, but {}", here.at == At::barrier ? "barrier" : "SIMD function",
                       where(first), where(here)));
  }
}

// Threads that meet, or one that returns beside its SIMD group's others, have done the same operations on
// matrices.
void Group::check_matrix_steps(uint32_t first, uint32_t count) {
  for (uint32_t i = first; i < first + count; ++i) {
    const Thread& leader = threads_[i / kSimdWidth * kSimdWidth];
    const Thread& thread = threads_[i];
    const bool comparable = count > 1 || leader.at == At::returned;
    if (comparable &&
        (leader.matrix_steps != thread.matrix_steps || leader.matrix_hash != thread.matrix_hash)) {
      refuse(fmt::format(
          "divergent SIMD function: {} and {} of one SIMD group did {} and {} operations on matrices, or "
          "not the same ones",
          triple_of(leader.call.index), triple_of(i), leader.matrix_steps, thread.matrix_steps));
    }
  }
}

void Group::group_barrier(unsigned flags, const char* file, int line) {
  wait_as(At::barrier, "threadgroup_barrier", file, line);
  for (uint32_t i = 0; at_barrier_ > 0 && i < count_; ++i) {
    if (i != current_ && threads_[i].at == At::barrier) {
      check_same_call(threads_[i], threads_[current_]);
      break;
    }
  }
  if (++at_barrier_ < count_) {
    next(threads_[current_].fibre);
    return;
  }
  check_matrix_steps(0, count_);
  at_barrier_ = 0;
  epoch_device_ += (flags & 1) != 0 ? 1 : 0;
  epoch_threadgroup_ += (flags & 2) != 0 ? 1 : 0;
  if (std::max(epoch_device_, epoch_threadgroup_) >= Stamp::kEpochLimit) {
    refuse(fmt::format("more than {} barriers in one threadgroup", Stamp::kEpochLimit));
  }
  for (uint32_t i = 0; i < count_ / kSimdWidth; ++i) {
    simds_[i].epoch_device = (flags & 1) != 0 ? 0 : simds_[i].epoch_device;
    simds_[i].epoch_threadgroup = (flags & 2) != 0 ? 0 : simds_[i].epoch_threadgroup;
  }
  wake(0, count_);
  ready_.push_back(current_);
  next(threads_[current_].fibre);
}

lily_metal::Meeting Group::meeting() {
  Thread& thread = threads_[current_];
  Simd& simd = simds_[current_ / kSimdWidth];
  const uint32_t side =
      thread.meetings++ % 2;  // the results of the last meeting may not have been read by all
  return {simd.in[side].data(), simd.out[side].data(), current_ % kSimdWidth};
}

bool Group::arrive(const char* what, const char* file, int line) {
  wait_as(At::meeting, what, file, line);
  Simd& simd = simds_[current_ / kSimdWidth];
  const uint32_t first = current_ / kSimdWidth * kSimdWidth;
  if (simd.arrived > 0) {
    for (uint32_t i = first; i < first + kSimdWidth; ++i) {
      if (i != current_ && threads_[i].at == At::meeting) {
        check_same_call(threads_[i], threads_[current_]);
        break;
      }
    }
  }
  if (++simd.arrived == kSimdWidth) {
    check_matrix_steps(first, kSimdWidth);
    return true;
  }
  next(threads_[current_].fibre);
  return false;
}

void Group::release() {
  simds_[current_ / kSimdWidth].arrived = 0;
  wake(current_ / kSimdWidth * kSimdWidth, kSimdWidth);
}

void Group::simd_barrier(unsigned flags, const char* file, int line) {
  meeting();
  if (!arrive("simdgroup_barrier", file, line)) {
    return;
  }
  Simd& simd = simds_[current_ / kSimdWidth];
  simd.epoch_device += (flags & 1) != 0 ? 1 : 0;
  simd.epoch_threadgroup += (flags & 2) != 0 ? 1 : 0;
  if (std::max(simd.epoch_device, simd.epoch_threadgroup) >= Stamp::kSimdEpochLimit) {
    refuse(fmt::format("more than {} SIMD group barriers between two barriers of the threadgroup",
                       Stamp::kSimdEpochLimit));
  }
  release();
}

bool Group::matrix_turn(const char* what, const void* operand, const char*, int line) {
  Thread& thread = threads_[current_];
  ++thread.matrix_steps;
  thread.matrix_hash = (thread.matrix_hash ^ reinterpret_cast<uintptr_t>(what) ^
                        reinterpret_cast<uintptr_t>(operand) ^ static_cast<uint64_t>(line) << 48) *
                       0x100000001b3u;
  return current_ % kSimdWidth == 0;
}

Group::Variable& Group::place(size_t bytes, const char* name, int line) {
  for (Variable& variable : variables_) {
    if (variable.line == line && variable.name == name) {
      return variable;
    }
  }
  arena_bytes_ += static_cast<uint32_t>((bytes + 15) / 16 * 16);
  if (bytes > kThreadgroupBytes || arena_bytes_ > kThreadgroupBytes) {
    fault_ = fmt::format("kernel '{}': {} bytes of threadgroup memory with '{}', at most {} are allowed",
                         work_->kernel->name, arena_bytes_, name, kThreadgroupBytes);
    variables_.push_back({name, line, 0, 0});
    return variables_.back();
  }
  variables_.push_back({name, line, arena_used_, static_cast<uint32_t>(bytes)});
  arena_used_ += static_cast<uint32_t>((bytes + 15) / 16 * 16 + kArenaGap);
  return variables_.back();
}

void* Group::shared_memory(size_t bytes, const char* name, int line) {
  const Variable& variable = place(bytes, name, line);
  if (fault_) {
    Fibre gone;
    Fibre::change(gone, main_);
  }
  return arena_.data() + variable.offset;
}

}  // namespace lily::metal::emulator

namespace lily_metal {

using lily::metal::emulator::Group;

void* shared_memory(unsigned long bytes, const char* name, int line) {
  return Group::running().shared_memory(bytes, name, line);
}
void group_barrier(unsigned flags, const char* file, int line) {
  Group::running().group_barrier(flags, file, line);
}
void simd_barrier(unsigned flags, const char* file, int line) {
  Group::running().simd_barrier(flags, file, line);
}
Meeting meeting() { return Group::running().meeting(); }
bool arrive(const char* what, const char* file, int line) {
  return Group::running().arrive(what, file, line);
}
void release() { Group::running().release(); }
bool matrix_turn(const char* what, const void* operand, const char* file, int line) {
  return Group::running().matrix_turn(what, operand, file, line);
}
void collective_begin() { Group::running().collective(true); }
void collective_end() { Group::running().collective(false); }

}  // namespace lily_metal
