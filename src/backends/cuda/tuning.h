// How the kernels for few rows are launched: pure functions of the matrix, the rows and the device.
#pragma once

#include <cstdint>

#include "backends/cuda/kernels/decode.h"

namespace lily::cuda {

// What matters of a device.
struct DeviceTraits {
  uint32_t multiprocessors = 0;
  uint32_t compute_capability = 0;  // 90 for sm_90
  uint32_t shared_bytes = 0;        // most dynamic shared memory of a block
};

struct LaunchShape {
  uint32_t blocks;
  uint32_t stages;  // of each warp's ring of weights
  uint32_t shared;  // bytes of dynamic shared memory
};

// Dense projections: blocks with the same number of units of 16 outputs, the ring as deep as those units
// where the kernel after it still fits beside it.
LaunchShape project_shape(const PackedMatrix& w, uint32_t rows, const DeviceTraits& device);
LaunchShape gate_up_shape(const PackedMatrix& w, uint32_t rows, const DeviceTraits& device);
LaunchShape down_shape(const PackedMatrix& w, uint32_t rows, const DeviceTraits& device);
// The most rows, up to `rows`, for which `shape_of(rows)` needs no more shared memory than a block may have:
// a device with little of it takes its rows in several launches.
template <class ShapeOf>
uint32_t rows_at_once(uint32_t rows, const DeviceTraits& device, ShapeOf&& shape_of) {
  while (rows > 1 && shape_of(rows).shared > device.shared_bytes) {
    rows = (rows + 1) / 2;
  }
  return rows;
}
// The delta step. Of one row it asks for the shared memory that the projection before it leaves: it begins
// beside that one, so that no multiprocessor gets two of its blocks. Of more than kDeltaRingSegments: blocks
// with the same number of heads, and as many stages as there is room for.
LaunchShape delta_step_shape(const PackedMatrix& in_proj, const Dims& dims, uint32_t segments, uint32_t rows,
                             const DeviceTraits& device);
uint32_t attend_warps(const DeviceTraits& device);

}  // namespace lily::cuda
