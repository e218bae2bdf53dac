// Every access of a checked kernel: within what is bound, of memory that was written, without a race. The
// kernels are compiled with the calls of ThreadSanitizer, which this file answers in its place.
#include <fmt/format.h>

#include <cstring>

#include "group.h"

extern char __executable_start;
extern char end;

namespace lily::metal::emulator {
namespace {

// Constants of the kernels and values of the shim lie in the program itself.
bool in_program(uintptr_t address) {
  return address >= reinterpret_cast<uintptr_t>(&__executable_start) &&
         address < reinterpret_cast<uintptr_t>(&end);
}

}  // namespace

bool Group::find(uintptr_t address, size_t bytes, Target& target) {
  const auto arena = reinterpret_cast<uintptr_t>(arena_.data());
  if (address - arena < kArenaBytes) {
    const size_t offset = address - arena;
    for (const Variable& variable : variables_) {
      if (offset >= variable.offset && offset + bytes <= size_t{variable.offset} + variable.bytes) {
        target.variable = &variable;
        target.begin = arena + variable.offset;
        return true;
      }
    }
    return false;
  }
  const std::vector<Bound>& bounds = work_->bounds;
  for (size_t i = 0; i < bounds.size(); ++i) {
    const size_t at = last_bound_ + i < bounds.size() ? last_bound_ + i : last_bound_ + i - bounds.size();
    if (address >= bounds[at].begin && address + bytes <= bounds[at].end) {
      last_bound_ = at;
      target.bound = &bounds[at];
      target.begin = bounds[at].begin;
      return true;
    }
  }
  return false;
}

Stamp Group::stamp(bool threadgroup, bool atomic) const {
  const uint32_t simd = current_ / kSimdWidth;
  return {run_, collective_ ? Stamp::kWholeGroup + simd : current_,
          threadgroup ? epoch_threadgroup_ : epoch_device_,
          threadgroup ? simds_[simd].epoch_threadgroup : simds_[simd].epoch_device, atomic};
}

std::string Group::name_of(const Target& target, uintptr_t address) const {
  const size_t offset = address - target.begin;
  if (target.variable != nullptr) {
    return fmt::format("threadgroup memory '{}', byte {}", target.variable->name, offset);
  }
  const lily_metal::Parameter& parameter = *target.bound->parameter;
  return fmt::format("buffer '{}' ({}), element {} (byte {})", parameter.name, target.bound->storage->label(),
                     offset / parameter.element_bytes, offset);
}

std::string Group::who(Stamp stamp) const {
  return stamp.thread() >= Stamp::kWholeGroup ? fmt::format("SIMD group {}", stamp.simd())
                                              : fmt::format("thread {}", stamp.thread());
}

void Group::report_conflict(const Target& target, uintptr_t address, bool write, Stamp now, Stamp earlier,
                            bool earlier_write) {
  const auto did = [](bool wrote, Stamp stamp) {
    return fmt::format("{}{}", stamp.atomic() ? "atomically " : "", wrote ? "written" : "read");
  };
  const std::string what = name_of(target, address);
  if (earlier.run() == now.run()) {
    refuse(fmt::format("data race: {} was {} by {} and is {} by {} with no barrier between", what,
                       did(earlier_write, earlier), who(earlier), did(write, now), who(now)));
  }
  const Run& run = history_->runs[earlier.run() - history_->begin];
  const std::string group = fmt::format("threadgroup ({}, {}, {})", run.group.x, run.group.y, run.group.z);
  if (run.work == work_) {
    refuse(fmt::format(
        "data race: {} was {} by {} of {} and is {} by {} here: threadgroups of one dispatch are not ordered",
        what, did(earlier_write, earlier), who(earlier), group, did(write, now), who(now)));
  }
  refuse(fmt::format(
      "missing barrier: {} was {} by {} of {} in dispatch {} (kernel '{}') and is {} by {} here, in "
      "dispatch {}",
      what, did(earlier_write, earlier), who(earlier), group, run.work->number, run.work->kernel->name,
      did(write, now), who(now), work_->number));
}

void Group::touch(const Target& target, uintptr_t address, size_t bytes, bool write, Stamp now) {
  const bool here = target.variable != nullptr;
  const uint32_t oldest = here ? run_ : history_->first;
  Cell* const base = here ? reinterpret_cast<Cell*>(arena_cells_.data()) : target.bound->cells;
  const auto origin = reinterpret_cast<uintptr_t>(here ? arena_.data() : target.bound->storage->data());
  const auto conflicts = [&](Stamp earlier) {
    return earlier.run() >= oldest && !(earlier.atomic() && now.atomic()) &&
           (earlier.run() != run_ || !now.after(earlier));
  };
  for_cells(base, address - origin, bytes, [&](Cell& cell) {
    const uintptr_t at = origin + static_cast<size_t>(&cell - base);
    if (conflicts(cell.write)) {
      report_conflict(target, at, write, now, cell.write, true);
    }
    if (!write) {
      if (conflicts(cell.read) && (cell.other.run() < oldest || cell.other.run() == run_)) {
        cell.other = cell.read;
      }
      cell.read = now;
      return;
    }
    for (const Stamp earlier : {cell.read, cell.other}) {
      if (conflicts(earlier)) {
        report_conflict(target, at, write, now, earlier, false);
      }
    }
    cell.write = now;
  });
}

void Group::check_written(const Target& target, uintptr_t address, size_t bytes) {
  if (target.variable != nullptr) {
    const auto arena = reinterpret_cast<uintptr_t>(arena_.data());
    Cell* const cells = reinterpret_cast<Cell*>(arena_cells_.data());
    for_cells(cells, address - arena, bytes, [&](const Cell& cell) {
      if (cell.write.run() != run_) {
        const uintptr_t at = arena + static_cast<size_t>(&cell - cells);
        refuse(
            fmt::format("{} is read by {}, but was never written", name_of(target, at), triple_of(current_)));
      }
    });
    return;
  }
  Storage& storage = *target.bound->storage;
  if (storage.all_written()) {
    return;
  }
  const size_t offset = address - reinterpret_cast<uintptr_t>(storage.data());
  if (const size_t at = storage.first_unwritten(offset, bytes); at != Storage::kNone) {
    refuse(fmt::format("{} is read by {}, but was never written", name_of(target, address + (at - offset)),
                       triple_of(current_)));
  }
}

void Group::atomic_access(const void* address, size_t bytes, bool reads, bool writes) {
  if (!work_->checked) {
    return;
  }
  if (reads) {
    access(address, bytes, false, true);
  }
  if (writes) {
    access(address, bytes, true, true);
  }
}

void Group::access(const void* pointer, size_t bytes, bool write, bool atomic) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (stacks_.holds(pointer)) {
    return;
  }
  Target target;
  if (!find(address, bytes, target)) {
    if (in_program(address)) {
      return;
    }
    report_outside(address, bytes, write);
  }
  if (address % bytes != 0) {
    refuse(fmt::format("{}: {} bytes are {} at once by {}, but do not lie at a multiple of {}",
                       name_of(target, address), bytes, write ? "written" : "read", triple_of(current_),
                       bytes));
  }
  if (!write) {
    check_written(target, address, bytes);
  }
  if (target.variable != nullptr) {
    touch(target, address, bytes, write, stamp(true, atomic));
    return;
  }
  const Bound& bound = *target.bound;
  const size_t offset = address - reinterpret_cast<uintptr_t>(bound.storage->data());
  if (write && bound.storage->read_only()) {
    refuse(fmt::format("{} is written by {}, but the device may only read it", name_of(target, address),
                       triple_of(current_)));
  }
  if (bound.cells != nullptr) {
    touch(target, address, bytes, write, stamp(false, atomic));
  }
  if (write && !bound.storage->all_written()) {
    bound.storage->mark_written(offset, bytes);
  }
}

// In words that start from the nearest thing below the address.
void Group::report_outside(uintptr_t address, size_t bytes, bool write) {
  const std::string did =
      fmt::format("{} bytes are {} by {}", bytes, write ? "written" : "read", triple_of(current_));
  const auto arena = reinterpret_cast<uintptr_t>(arena_.data());
  if (address - arena < kArenaBytes) {
    const Variable* nearest = nullptr;
    for (const Variable& variable : variables_) {
      if (variable.offset <= address - arena && (nearest == nullptr || variable.offset > nearest->offset)) {
        nearest = &variable;
      }
    }
    if (nearest != nullptr) {
      refuse(fmt::format("out of bounds: {} at byte {} of threadgroup memory '{}', which has {}", did,
                         address - arena - nearest->offset, nearest->name, nearest->bytes));
    }
  }
  if (address < 4096) {
    refuse(fmt::format("out of bounds: {} through a null pointer", did));
  }
  const Bound* nearest = nullptr;
  uintptr_t distance = ~uintptr_t{0};
  for (const Bound& bound : work_->bounds) {
    const uintptr_t away = address < bound.begin ? bound.begin - address : address - bound.begin;
    if (away < distance) {
      distance = away;
      nearest = &bound;
    }
  }
  if (nearest == nullptr) {
    refuse(fmt::format("out of bounds: {} at an address of no buffer", did));
  }
  const auto offset = static_cast<int64_t>(address) - static_cast<int64_t>(nearest->begin);
  const auto size = static_cast<int64_t>(nearest->parameter->element_bytes);
  const int64_t element = offset >= 0 ? offset / size : -((size - 1 - offset) / size);
  refuse(fmt::format(
      "out of bounds: {} at element {} (byte {}) of buffer '{}' ({}), which is bound with {} elements ({} "
      "bytes)",
      did, element, offset, nearest->parameter->name, nearest->storage->label(),
      (nearest->end - nearest->begin) / static_cast<uintptr_t>(size), nearest->end - nearest->begin));
}

}  // namespace lily::metal::emulator

namespace lily_metal {

using lily::metal::emulator::Group;

void atomic_access(const void* address, unsigned bytes, bool reads, bool writes) {
  Group::running().atomic_access(address, bytes, reads, writes);
}
void refuse(const char* what, const char* file, int line) {
  Group::running().refuse(fmt::format("{}:{}: {}", file, line, what));
}

}  // namespace lily_metal

// The calls that the compiler puts before accesses. A copy of more than 16 bytes is one of memory functions;
// the translated text names those below in place of the C library's.
using lily::metal::emulator::Group;

// By the byte where the type does not promise an alignment.
static void each_byte(const void* address, size_t bytes, bool write) {
  if (Group::running().on_stack(address)) {
    return;
  }
  for (size_t i = 0; i < bytes; ++i) {
    Group::running().access(static_cast<const char*>(address) + i, 1, write, false);
  }
}

extern "C" {
void __tsan_init() {}
#define LILY_HOOK(size)                                                                           \
  void __tsan_read##size(void* address) { Group::running().access(address, size, false, false); } \
  void __tsan_write##size(void* address) { Group::running().access(address, size, true, false); }
LILY_HOOK(1)
LILY_HOOK(2)
LILY_HOOK(4)
LILY_HOOK(8)
LILY_HOOK(16)
#undef LILY_HOOK
#define LILY_HOOK(size)                                                                \
  void __tsan_unaligned_read##size(void* address) { each_byte(address, size, false); } \
  void __tsan_unaligned_write##size(void* address) { each_byte(address, size, true); }
LILY_HOOK(2)
LILY_HOOK(4)
LILY_HOOK(8)
LILY_HOOK(16)
#undef LILY_HOOK
void* lily_metal_memcpy(void* to, const void* from, size_t bytes) {
  each_byte(from, bytes, false);
  each_byte(to, bytes, true);
  return std::memcpy(to, from, bytes);
}
void* lily_metal_memmove(void* to, const void* from, size_t bytes) {
  each_byte(from, bytes, false);
  each_byte(to, bytes, true);
  return std::memmove(to, from, bytes);
}
void* lily_metal_memset(void* to, int value, size_t bytes) {
  each_byte(to, bytes, true);
  return std::memset(to, value, bytes);
}
void* __tsan_memcpy(void* to, const void* from, size_t bytes) { return lily_metal_memcpy(to, from, bytes); }
void* __tsan_memmove(void* to, const void* from, size_t bytes) { return lily_metal_memmove(to, from, bytes); }
void* __tsan_memset(void* to, int value, size_t bytes) { return lily_metal_memset(to, value, bytes); }
}
