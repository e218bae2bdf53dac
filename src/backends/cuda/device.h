// The CUDA runtime behind Result: memory, events, pools. Everything runs on one stream, in order: memory
// given back may be taken again at once, because what still uses it was queued before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/cuda/kernel_args.h"
#include "base/result.h"

struct CUevent_st;

namespace lily::cuda {

// `code` is a cudaError_t, 0 for success; `what` names what was asked of the device.
Result<void> check(int code, std::string_view what);

// Bytes of device memory in use and the most that were.
struct Meter {
  uint64_t now = 0;
  uint64_t peak = 0;
};

// Where the bytes of a DeviceMemory or PinnedMemory are, and how many. Empty after a move.
class MemoryBlock {
 public:
  size_t size() const { return size_; }
  uint8_t* bytes() const { return static_cast<uint8_t*>(data_); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 protected:
  MemoryBlock() = default;
  MemoryBlock(MemoryBlock&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MemoryBlock& operator=(MemoryBlock&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~MemoryBlock() = default;
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Device memory, 256-byte aligned; its contents are not defined. Move-only. Given back on destruction.
class DeviceMemory : public MemoryBlock {
 public:
  DeviceMemory() = default;
  static Result<DeviceMemory> allocate(size_t bytes, Meter& meter, std::string_view what);
  DeviceMemory(DeviceMemory&&) noexcept = default;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    MemoryBlock::operator=(std::move(other));
    std::swap(meter_, other.meter_);
    return *this;
  }
  ~DeviceMemory();

 private:
  Meter* meter_ = nullptr;  // of where it was allocated; only looked at where there are bytes
};

// Page-locked host memory. Move-only.
class PinnedMemory : public MemoryBlock {
 public:
  PinnedMemory() = default;
  static Result<PinnedMemory> allocate(size_t bytes, std::string_view what);
  PinnedMemory(PinnedMemory&&) noexcept = default;
  PinnedMemory& operator=(PinnedMemory&&) noexcept = default;
  ~PinnedMemory();
};

// A place in a queue. Made with create(); an empty one must not be used.
class Event {
 public:
  Event() = default;
  static Result<Event> create();
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event();
  Result<void> record(Stream queue);
  Result<void> wait() const;                               // in the host
  Result<double> seconds_since(const Event& start) const;  // both have passed

 private:
  CUevent_st* event_ = nullptr;
};

// Blocks of one size, taken from slabs that are allocated when none is free and kept until the pool goes.
class DevicePool {
 public:
  DevicePool(size_t block_bytes, size_t blocks_of_slab, Meter& meter, std::string what)
      : block_bytes_(block_bytes), blocks_of_slab_(blocks_of_slab), meter_(meter), what_(std::move(what)) {}
  size_t block_bytes() const { return block_bytes_; }
  Result<uint8_t*> take();
  void give(uint8_t* block);
  uint64_t bytes_taken();

 private:
  const size_t block_bytes_;
  const size_t blocks_of_slab_;
  Meter& meter_;
  const std::string what_;
  std::mutex mutex_;
  std::vector<DeviceMemory> slabs_;
  std::vector<uint8_t*> free_;
  uint64_t taken_ = 0;
};

// A block of a pool that several owners may share.
using BlockRef = std::shared_ptr<uint8_t>;
Result<BlockRef> take_block(const std::shared_ptr<DevicePool>& pool);

Result<void> copy_to_device(void* to, const void* from, size_t bytes, Stream queue);
Result<void> copy_to_host(void* to, const void* from, size_t bytes, Stream queue);
Result<void> copy_on_device(void* to, const void* from, size_t bytes, Stream queue);
Result<void> clear(void* at, size_t bytes, Stream queue);
Result<void> finish(Stream queue);  // waits for everything that was queued

// Held while a graph is captured, and by any other thread than the backend's while it queues something: what
// comes to a queue that captures becomes part of the graph, whoever sends it.
std::mutex& capture_mutex();

}  // namespace lily::cuda
