// What the blocks of a device behind the interface of the block tests have in common: states and stream are
// copied to the device's memory and back around every block.
#pragma once

#include "backends/host/blocks.h"
#include "base/check.h"

namespace lily::test {

// Faults of the device end the test.
inline void must(const Result<void>& result) {
  if (!result) {
    throw InternalError(result.error().message);
  }
}
template <class T>
T must(Result<T> result) {
  if (!result) {
    throw InternalError(result.error().message);
  }
  return *std::move(result);
}

class DeviceBlocks : public host::Blocks {
 public:
  Result<DeviceLimits> measure_limits() final {
    return fail(ErrorKind::unsupported, "the limits are measured by the backend");
  }
  DType kv_type() const final { return DType::bf16; }
  void delta_net(uint32_t layer, std::span<const host::Segment> segments, float* stream) final {
    mixer(layer, segments, stream);
  }
  void attention(uint32_t layer, std::span<const host::Segment> segments, float* stream) final {
    mixer(layer, segments, stream);
  }

 private:
  // The mixer of the layer, whichever it is.
  virtual void mixer(uint32_t layer, std::span<const host::Segment> segments, float* stream) = 0;
};

}  // namespace lily::test
