#include "backends/cuda/tuning.h"

#include <algorithm>

namespace lily::cuda {
namespace {

// The most stages, from `most` down, that stay within `percent` of the shared memory; one stage may take all
// there is. What a kernel leaves is for the one after it, whose weights are then on their way while this one
// computes.
template <class Bytes>
LaunchShape fit(uint32_t blocks, uint32_t most, uint32_t percent, const DeviceTraits& device, Bytes&& bytes) {
  const uint32_t budget = device.shared_bytes / 100 * percent;
  uint32_t stages = std::clamp(most, 1U, 8U);
  while (stages > 1 && bytes(stages) > budget) {
    --stages;
  }
  return {blocks, stages, bytes(stages)};
}

// A multiprocessor is not to have two blocks of the same kernel while another one has none: more than half of
// the shared memory for each.
LaunchShape alone(LaunchShape shape, const DeviceTraits& device) {
  shape.shared = std::max(shape.shared, std::min(device.shared_bytes / 2 + 1024, device.shared_bytes));
  return shape;
}

// As much of `more` as there is room for.
LaunchShape with_staged(LaunchShape shape, uint32_t more, const DeviceTraits& device) {
  shape.shared = std::max(shape.shared, std::min(shape.shared + more, device.shared_bytes));
  return shape;
}

}  // namespace

LaunchShape project_shape(const PackedMatrix& w, uint32_t rows, const DeviceTraits& device) {
  if (projects_in_turns(w, rows)) {
    const uint32_t blocks = device.multiprocessors;
    return fit(blocks, 8, 100, device,
               [&](uint32_t stages) { return project_shared_bytes(w, stages, rows, blocks); });
  }
  const uint32_t of_block = project_rows_of_block(w, rows);
  const uint32_t most = std::max(device.multiprocessors / ((rows + of_block - 1) / of_block), 1U);
  const uint32_t units = (w.row_blocks + most - 1) / most;
  const uint32_t blocks = (w.row_blocks + units - 1) / units;
  const LaunchShape shape =
      fit(blocks, std::min(units, 6U), rows <= kGroupRows ? 62 : 100, device,
          [&](uint32_t stages) { return project_shared_bytes(w, stages, rows, blocks); });
  return blocks * 2 > device.multiprocessors ? alone(shape, device) : shape;
}

LaunchShape gate_up_shape(const PackedMatrix& w, uint32_t rows, const DeviceTraits& device) {
  const uint32_t blocks = device.multiprocessors;
  const auto bytes = [&](uint32_t stages) { return gate_up_shared_bytes(w, stages, rows, blocks); };
  return alone(rows <= kFewRows
                   ? fit(blocks, 3, 72, device, bytes)
                   : with_staged(fit(blocks, 3, 100, device, bytes), gate_up_staged_bytes(w), device),
               device);
}

LaunchShape down_shape(const PackedMatrix& w, uint32_t rows, const DeviceTraits& device) {
  const auto bytes = [&](uint32_t stages) { return down_shared_bytes(w, stages, rows); };
  return rows <= kFewRows
             ? fit(w.row_blocks, rows == 1 ? 1 : 3, 62, device, bytes)
             : with_staged(fit(device.multiprocessors, 2, 100, device, bytes), down_staged_bytes(w), device);
}

LaunchShape delta_step_shape(const PackedMatrix& in_proj, const Dims& dims, uint32_t segments, uint32_t rows,
                             const DeviceTraits& device) {
  constexpr uint32_t kOwn = 8 * 1024;  // its static shared memory, and what the driver keeps for each block
  if (segments <= kDeltaRingSegments) {
    const uint32_t taken = project_shape(in_proj, rows, device).shared + kOwn;
    return {0, 0, rows == 1 && taken < device.shared_bytes ? device.shared_bytes - taken : 0};
  }
  const uint32_t heads = segments * dims.v_heads;
  const uint32_t each = (heads + device.multiprocessors - 1) / device.multiprocessors;
  const DeviceTraits left{.multiprocessors = device.multiprocessors,
                          .compute_capability = device.compute_capability,
                          .shared_bytes = device.shared_bytes - kDeltaRingStatic};
  return fit((heads + each - 1) / each, std::min(each, 3U), 100, left, delta_ring_bytes);
}

uint32_t attend_warps(const DeviceTraits& device) { return device.shared_bytes >= 160 * 1024 ? 4 : 2; }

}  // namespace lily::cuda
