// Launches fit into the shared memory of every device that lily is built for.
#include "backends/cuda/tuning.h"

#include <gtest/gtest.h>

#include "backends/cuda/dims.h"

namespace lily::cuda {
namespace {

const Dims kDims = dims_of(kQwen36);

PackedMatrix matrix(uint32_t rows, uint32_t cols, uint32_t planes, uint32_t wide) {
  PackedMatrix m{};
  m.rows = rows;
  m.row_blocks = (rows + kTileRows - 1) / kTileRows;
  m.k_tiles = cols / kTileCols;
  m.planes = planes;
  m.wide = wide;
  m.tile_bytes = tile_bytes_of(planes, wide);
  return m;
}

// Multiprocessors and shared memory of a block of an A100, an RTX 3090, an RTX 4090, an H200 and an RTX 5090.
class Tuning : public ::testing::TestWithParam<DeviceTraits> {};

TEST_P(Tuning, EveryLaunchFits) {
  const DeviceTraits& device = GetParam();
  for (uint32_t planes = 1; planes <= 2; ++planes) {
    for (uint32_t wide = 0; wide <= 1; ++wide) {
      for (const uint32_t rows : {1U, 2U, 8U, 9U, 32U}) {
        const auto in_proj = matrix(12'352, 2048, planes, wide);
        const auto out_proj = matrix(2048, 4096, planes, wide);
        const auto gate_up = matrix(1024, 2048, planes, wide);
        const auto down = matrix(2048, 512, planes, wide);
        for (const PackedMatrix& w : {in_proj, out_proj}) {
          const auto shape_of = [&](uint32_t r) { return project_shape(w, r, device); };
          EXPECT_LE(shape_of(rows_at_once(rows, device, shape_of)).shared, device.shared_bytes)
              << planes << " planes, wide " << wide << ", " << rows << " rows of " << w.k_tiles << " tiles";
        }
        const auto enter = [&](uint32_t r) { return gate_up_shape(gate_up, r, device); };
        // Experts of 8 bits do not fit on every device: such a model is refused when it is loaded.
        const bool refused = enter(1).shared > device.shared_bytes;
        EXPECT_TRUE(!refused || (planes == 2 && device.shared_bytes < 128 * 1024));
        if (!refused) {
          EXPECT_LE(enter(rows_at_once(rows, device, enter)).shared, device.shared_bytes)
              << "gate and up, " << planes << " planes, wide " << wide << ", " << rows << " rows";
        }
        const auto leave = [&](uint32_t r) { return down_shape(down, r, device); };
        EXPECT_LE(leave(rows_at_once(rows, device, leave)).shared, device.shared_bytes)
            << "down, " << planes << " planes, wide " << wide << ", " << rows << " rows";
        const uint32_t own = rows > kDeltaRingSegments ? kDeltaRingStatic : 0;  // beside what it asks for
        EXPECT_LE(delta_step_shape(in_proj, kDims, rows, rows, device).shared + own, device.shared_bytes);
      }
    }
  }
}

TEST(TuningH200, TakesAllRowsAtOnce) {
  const DeviceTraits h200{.multiprocessors = 132, .compute_capability = 90, .shared_bytes = 232'448};
  const auto gate_up = matrix(1024, 2048, 1, 0);
  EXPECT_EQ(rows_at_once(32, h200, [&](uint32_t r) { return gate_up_shape(gate_up, r, h200); }), 32U);
  const auto out_proj = matrix(2048, 4096, 1, 0);
  EXPECT_EQ(rows_at_once(32, h200, [&](uint32_t r) { return project_shape(out_proj, r, h200); }), 32U);
  const LaunchShape delta = delta_step_shape(matrix(12'352, 2048, 1, 0), kDims, 32, 32, h200);
  EXPECT_EQ(delta.stages, 3U);
  EXPECT_EQ(delta.blocks * 8, 32U * 32);
}

INSTANTIATE_TEST_SUITE_P(
    Devices, Tuning,
    ::testing::Values(DeviceTraits{.multiprocessors = 108, .compute_capability = 80, .shared_bytes = 166'912},
                      DeviceTraits{.multiprocessors = 82, .compute_capability = 86, .shared_bytes = 101'376},
                      DeviceTraits{.multiprocessors = 128, .compute_capability = 89, .shared_bytes = 101'376},
                      DeviceTraits{.multiprocessors = 132, .compute_capability = 90, .shared_bytes = 232'448},
                      DeviceTraits{
                          .multiprocessors = 170, .compute_capability = 120, .shared_bytes = 101'376}),
    [](const auto& tested) { return "sm_" + std::to_string(tested.param.compute_capability); });

}  // namespace
}  // namespace lily::cuda
