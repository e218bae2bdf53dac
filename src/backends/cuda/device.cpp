#include "backends/cuda/device.h"

#include <cuda_runtime_api.h>

#include <algorithm>

namespace lily::cuda {

Result<void> check(int code, std::string_view what) {
  if (code == cudaSuccess) {
    return {};
  }
  const auto error = static_cast<cudaError_t>(code);
  const ErrorKind kind = error == cudaErrorMemoryAllocation ? ErrorKind::out_of_memory : ErrorKind::internal;
  return fail(kind, "device 'cuda': {}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

Result<DeviceMemory> DeviceMemory::allocate(size_t bytes, Meter& meter, std::string_view what) {
  DeviceMemory memory;
  if (auto done = check(cudaMalloc(&memory.data_, std::max<size_t>(bytes, 1)), what); !done) {
    memory.data_ = nullptr;
    static_cast<void>(cudaGetLastError());  // the next call is not to report it again
    done.error().message +=
        fmt::format(": {:.2f} GB were asked for, {:.2f} GB are in use", static_cast<double>(bytes) / 1e9,
                    static_cast<double>(meter.now) / 1e9);
    return fail(std::move(done).error());
  }
  memory.size_ = bytes;
  memory.meter_ = &meter;
  meter.now += bytes;
  meter.peak = std::max(meter.peak, meter.now);
  return memory;
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) {
    static_cast<void>(cudaFree(data_));
    meter_->now -= size_;
  }
}

Result<PinnedMemory> PinnedMemory::allocate(size_t bytes, std::string_view what) {
  PinnedMemory memory;
  LILY_TRY_VOID(check(cudaMallocHost(&memory.data_, std::max<size_t>(bytes, 1)), what));
  memory.size_ = bytes;
  return memory;
}

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) {
    static_cast<void>(cudaFreeHost(data_));
  }
}

Result<Event> Event::create() {
  Event event;
  LILY_TRY_VOID(check(cudaEventCreate(&event.event_), "an event"));
  return event;
}

Event::~Event() {
  if (event_ != nullptr) {
    static_cast<void>(cudaEventDestroy(event_));
  }
}

Result<void> Event::record(Stream queue) {
  return check(cudaEventRecord(event_, queue), "recording an event");
}
Result<void> Event::wait() const { return check(cudaEventSynchronize(event_), "running a pass"); }
Result<double> Event::seconds_since(const Event& start) const {
  float milliseconds = 0;
  LILY_TRY_VOID(check(cudaEventElapsedTime(&milliseconds, start.event_, event_), "timing a pass"));
  return static_cast<double>(milliseconds) * 1e-3;
}

Result<uint8_t*> DevicePool::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    LILY_TRY(DeviceMemory slab, DeviceMemory::allocate(block_bytes_ * blocks_of_slab_, meter_, what_));
    for (size_t i = blocks_of_slab_; i > 0; --i) {
      free_.push_back(slab.bytes() + (i - 1) * block_bytes_);
    }
    slabs_.push_back(std::move(slab));
  }
  uint8_t* block = free_.back();
  free_.pop_back();
  ++taken_;
  return block;
}

uint64_t DevicePool::bytes_taken() {
  const std::lock_guard lock(mutex_);
  return taken_ * block_bytes_;
}

void DevicePool::give(uint8_t* block) {
  const std::lock_guard lock(mutex_);
  free_.push_back(block);
  --taken_;
}

Result<BlockRef> take_block(const std::shared_ptr<DevicePool>& pool) {
  LILY_TRY(uint8_t * block, pool->take());
  return BlockRef(block, [pool](uint8_t* given) { pool->give(given); });
}

std::mutex& capture_mutex() {
  static std::mutex mutex;
  return mutex;
}

Result<void> copy_to_device(void* to, const void* from, size_t bytes, Stream queue) {
  return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, queue), "a copy to the device");
}
Result<void> copy_to_host(void* to, const void* from, size_t bytes, Stream queue) {
  return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, queue), "a copy from the device");
}
Result<void> copy_on_device(void* to, const void* from, size_t bytes, Stream queue) {
  return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, queue), "a copy on the device");
}
Result<void> clear(void* at, size_t bytes, Stream queue) {
  return check(cudaMemsetAsync(at, 0, bytes, queue), "clearing memory");
}
Result<void> finish(Stream queue) { return check(cudaStreamSynchronize(queue), "waiting for the device"); }

}  // namespace lily::cuda
