// What lily asks of Metal, as plain C++: device_apple.mm implements it on the system's frameworks, the
// emulator of tests/metal_emulator on any host. Everything above it is compiled and tested without a Mac.
//
// One thread uses a device. Objects may be destroyed in any order; a command buffer keeps what it uses until
// it has completed. Memory is shared by host and device (unified): contents() is valid all the time, but what
// the device has been asked to write may be read only after wait(), and what it has been asked to read may
// not be changed before. Command buffers run in the order of commit(), each one seeing all writes of those
// before it. The dispatches of one command buffer run concurrently, in no order, between two barrier() calls.
//
//   LILY_TRY(auto library, device.library({"gemv", gemv_source}));
//   LILY_TRY(auto gemv, library->pipeline({.kernel = "gemv", .constants = {{0, 4u}, {1, true}}}));
//   LILY_TRY(auto weights, device.map(mapped_pages, mapped_bytes, "weights"));   // no copy, read only
//   LILY_TRY(auto y, device.buffer(rows * sizeof(float), "y"));
//   LILY_TRY(auto commands, device.commands("pass 7"));
//   commands->set_pipeline(*gemv);
//   commands->set_buffer(0, *weights, offset_of_tensor, bytes_of_tensor);
//   commands->set_buffer(1, *y);
//   commands->set_bytes(2, args);                         // a struct, at most 4096 bytes
//   commands->set_threadgroup_bytes(0, 1024);             // only for a [[threadgroup(0)]] parameter
//   commands->dispatch({rows / 4, 1, 1}, {64, 1, 1});     // threadgroups, threads of each: a multiple of 32
//   commands->barrier();                                  // what follows sees all writes so far
//   commands->set_pipeline(*next); ...
//   LILY_TRY_VOID(commands->commit());
//   LILY_TRY_VOID(commands->wait());                      // an error of the device or a report of the
//   emulator const auto* result = y->as<float>();
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/result.h"

namespace lily::metal {

// What every kernel of lily may count on; a device that offers less is refused when it is opened.
inline constexpr uint32_t kSimdWidth = 32;               // threads of a SIMD group
inline constexpr uint32_t kThreadgroupBytes = 32 << 10;  // threadgroup memory of one threadgroup
inline constexpr uint32_t kMaxThreads = 1024;            // threads of one threadgroup
inline constexpr uint32_t kMaxBindings = 31;             // [[buffer(0)]] .. [[buffer(30)]]
inline constexpr uint32_t kMaxSetBytes = 4096;

struct Traits {
  std::string name;               // "Apple M5 Max"
  uint64_t memory_bytes = 0;      // what the device recommends to use at most
  uint64_t max_buffer_bytes = 0;  // of one buffer or mapping
  uint64_t page_bytes = 0;        // map() takes whole pages of this size
};

struct Size3 {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

// Memory that host and device see. Made by Device::buffer() or Device::map().
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual std::byte* contents() const = 0;
  virtual size_t size() const = 0;
  template <class T>
  T* as(size_t byte_offset = 0) const {
    return reinterpret_cast<T*>(contents() + byte_offset);
  }
};

// A kernel with its function constants set.
class Pipeline {
 public:
  virtual ~Pipeline() = default;
  virtual uint32_t max_threads() const = 0;  // per threadgroup, of this kernel
};

// The value of `constant T name [[function_constant(index)]]`; its type must be the kernel's.
struct FunctionConstant {
  uint32_t index;
  std::variant<bool, int32_t, uint32_t, float> value;
};

struct PipelineSpec {
  std::string kernel;
  std::vector<FunctionConstant> constants = {};  // at least all that the kernel uses
};

class Library {
 public:
  virtual ~Library() = default;
  // An unknown kernel or constant, a constant that is missing or of another type, more threadgroup memory
  // than kThreadgroupBytes or a SIMD group that is not kSimdWidth wide is an error that names the kernel.
  virtual Result<std::unique_ptr<Pipeline>> pipeline(const PipelineSpec& spec) = 0;
};

// One command buffer with one concurrent compute encoder. Faults of the calls that return nothing are
// reported by commit(). What is set stays set for the dispatches that follow, over a change of pipeline too.
class Commands {
 public:
  virtual ~Commands() = default;
  virtual void set_pipeline(const Pipeline& pipeline) = 0;
  // The kernel sees `buffer` from byte `offset` (a multiple of 4, and of the size of an element) on, and may
  // touch `bytes` of it, kRest = all that follow. The emulator holds the kernel to that.
  static constexpr size_t kRest = ~size_t{0};
  virtual void set_buffer(uint32_t index, const Buffer& buffer, size_t offset = 0, size_t bytes = kRest) = 0;
  virtual void set_bytes(uint32_t index, const void* data, size_t bytes) = 0;  // copied
  template <class T>
  requires(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>) void set_bytes(uint32_t index,
                                                                                    const T& value) {
    set_bytes(index, &value, sizeof(T));
  }
  // Memory of the kernel's parameter [[threadgroup(index)]]; a multiple of 16.
  virtual void set_threadgroup_bytes(uint32_t index, size_t bytes) = 0;
  // `threads` of each threadgroup: a multiple of kSimdWidth in all, at most Pipeline::max_threads().
  virtual void dispatch(Size3 groups, Size3 threads) = 0;
  // What is dispatched after it starts when all before it has finished, and sees its writes.
  virtual void barrier() = 0;

  virtual Result<void> commit() = 0;   // once; nothing may be encoded after it
  virtual bool completed() const = 0;  // does not wait
  virtual Result<void> wait() = 0;     // until completed; may be called again
  virtual double seconds() const = 0;  // on the device, from its start to its end; after wait()
};

// The text of one library: everything it needs but <metal_stdlib> (cmake/join_metal.cmake has put its headers
// in).
struct LibrarySource {
  std::string name;  // "gemv": for messages
  std::string_view text;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const Traits& traits() const = 0;
  // `label` names it in messages. The contents are not defined.
  virtual Result<std::unique_ptr<Buffer>> buffer(size_t bytes, std::string_view label) = 0;
  // Host memory as it is, without a copy: `address` and `bytes` are whole pages, at most max_buffer_bytes. It
  // must outlive the buffer and all command buffers that use it. The device only reads it.
  virtual Result<std::unique_ptr<Buffer>> map(const void* address, size_t bytes, std::string_view label) = 0;
  virtual Result<std::unique_ptr<Library>> library(const LibrarySource& source) = 0;
  virtual Result<std::unique_ptr<Commands>> commands(std::string_view label) = 0;
  virtual uint64_t allocated_bytes() const = 0;  // by buffer(), now
  virtual uint64_t peak_bytes() const = 0;       // the most that were
};

}  // namespace lily::metal
