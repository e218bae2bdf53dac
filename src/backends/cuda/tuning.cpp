#include "backends/cuda/tuning.h"

#include <algorithm>

namespace lily::cuda {
namespace {

constexpr uint32_t kMostStages = 9;

// Shared memory that a kernel takes for itself where it need not take more: what is left is for the kernel
// before or after it, whose weights are then on their way while this one computes.
uint32_t budget(const DeviceTraits& device) { return device.shared_bytes / 100 * 62; }

// The most stages, from `most` down, that stay within the budget; one stage may take all there is.
template <class Bytes>
LaunchShape fit(uint32_t blocks, uint32_t most, const DeviceTraits& device, Bytes&& bytes) {
  uint32_t stages = std::clamp(most, 1U, kMostStages);
  while (stages > 1 && bytes(stages) > budget(device)) {
    --stages;
  }
  return {blocks, stages, bytes(stages)};
}

}  // namespace

LaunchShape project_shape(const PackedMatrix& w, uint32_t rows, const DeviceTraits& device) {
  const uint32_t units = (w.row_blocks + device.multiprocessors - 1) / device.multiprocessors;
  const uint32_t blocks = (w.row_blocks + units - 1) / units;
  return fit(blocks, std::min(units, 6U), device,
             [&](uint32_t stages) { return project_shared_bytes(w, stages, rows); });
}

LaunchShape gate_up_shape(const PackedMatrix& w, uint32_t rows, const DeviceTraits& device) {
  return fit(device.multiprocessors, 5, device,
             [&](uint32_t stages) { return gate_up_shared_bytes(w, stages, rows); });
}

LaunchShape down_shape(const PackedMatrix& w, uint32_t rows, const DeviceTraits& device) {
  return fit(w.row_blocks, kMostStages, device,
             [&](uint32_t stages) { return down_shared_bytes(w, stages, rows); });
}

uint32_t attend_warps(const DeviceTraits& device) { return device.shared_bytes >= 160 * 1024 ? 4 : 2; }

}  // namespace lily::cuda
