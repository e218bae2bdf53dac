// Kernels for few rows at the full width: a row has the bits that it has alone, whatever its companions.
#include <array>
#include <map>
#include <utility>

#include "backends/cuda/tuning.h"
#include "tests/cuda/rig.h"

namespace lily::cuda::test {
namespace {

class CudaFewRows : public NeedsGpu {
 protected:
  DeviceTraits traits() const {
    return {
        .multiprocessors = device_.processors, .compute_capability = 0, .shared_bytes = device_.shared_bytes};
  }
};

template <class T>
bool same_bits(const std::vector<T>& a, size_t a_first, const std::vector<T>& b, size_t b_first,
               size_t count) {
  return std::memcmp(a.data() + a_first, b.data() + b_first, count * sizeof(T)) == 0;
}

PackedMatrix form(uint32_t row_blocks, uint32_t k_tiles, uint32_t planes) {
  PackedMatrix w{};
  w.matrices = 1;
  w.rows = row_blocks * kTileRows;
  w.row_blocks = row_blocks;
  w.k_tiles = k_tiles;
  w.planes = planes;
  w.tile_bytes = tile_bytes_of(planes, 0);
  return w;
}
// Any codes; scales and biases of ordinary sizes.
std::vector<uint8_t> random_tiles(const PackedMatrix& w, uint64_t seed) {
  std::vector<uint8_t> bytes(size_t{w.row_blocks} * w.k_tiles * w.tile_bytes);
  const uint32_t codes = w.planes * kPlaneBytes;
  for (size_t tile = 0; tile < bytes.size() / w.tile_bytes; ++tile) {
    uint8_t* const at = bytes.data() + tile * w.tile_bytes;
    for (uint32_t i = 0; i < codes; i += 8) {
      const uint64_t word = lily::test::mix(seed + tile * 4096 + i);
      std::memcpy(at + i, &word, 8);
    }
    for (uint32_t i = codes; i < w.tile_bytes; i += 2) {
      const auto bits = static_cast<uint16_t>(0x3c00U + (lily::test::mix(seed + tile * 4096 + i) & 0x81ffU));
      std::memcpy(at + i, &bits, 2);
    }
  }
  return bytes;
}

TEST_F(CudaFewRows, ProjectionsOfVeryManyOutputs) {
  ASSERT_EQ(prepare_project(device_.shared_bytes), 0);
  for (const auto& [k_tiles, planes, row_blocks] :
       {std::array<uint32_t, 3>{32, 1, 15'520}, std::array<uint32_t, 3>{32, 2, 1'025},
        std::array<uint32_t, 3>{4, 1, 1'027}, std::array<uint32_t, 3>{4, 2, 1'024}}) {
    PackedMatrix w = form(row_blocks, k_tiles, planes);
    const Array<uint8_t> tiles(random_tiles(w, k_tiles));
    w.tiles = tiles.get();
    const uint32_t inputs = k_tiles * kTileCols;
    const Array<uint16_t> x(to_bf16(random_values(size_t{kSmallRows} * inputs, 1)));
    std::vector<float> sums(size_t{kSmallRows} * inputs / kFeedBlock);
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] = uniform(2, i, 8, 9);
    }
    const Array<float> squares(sums);
    const uint32_t ld = w.rows;
    Array<float> y(size_t{kSmallRows} * ld);
    const auto run = [&](uint32_t first, uint32_t rows, Scaling scaling) {
      EXPECT_EQ(cudaMemset(y.get(), 0xff, y.size() * 4), cudaSuccess);
      const LaunchShape shape = project_shape(w, rows, traits());
      EXPECT_EQ(projects_in_turns(w, rows), rows > kFewRows);
      if (shape.shared > device_.shared_bytes) {
        return std::vector<float>();
      }
      EXPECT_EQ(launch_project({.w = w,
                                .feed = Feed{x.get(), squares.get()}.from(first, inputs),
                                .y = y.get(),
                                .ld_y = ld,
                                .rows = rows,
                                .scaling = scaling,
                                .to = {},
                                .relay = {},
                                .stages = shape.stages,
                                .blocks = shape.blocks,
                                .shared = shape.shared},
                               nullptr),
                0);
      expect_success();
      return y.download();
    };
    for (const Scaling scaling : {Scaling::row, Scaling::none}) {
      std::map<uint32_t, std::vector<float>> together;
      for (const uint32_t rows : {3U, 8U, 13U, 25U, 32U}) {
        together[rows] = run(0, rows, scaling);
      }
      for (uint32_t row = 0; row < kSmallRows; row += 3) {
        const auto alone = run(row, 1, scaling);
        for (const auto& [rows, found] : together) {
          if (row < rows && !found.empty()) {
            EXPECT_TRUE(same_bits(found, size_t{row} * ld, alone, 0, ld))
                << "row " << row << " of " << rows << ", " << k_tiles << " tiles of inputs, " << planes
                << " planes";
          }
        }
      }
    }
  }
}

// Segments of one row each, and of several: outputs, states and the inputs that are kept for the convolution.
TEST_F(CudaFewRows, TheDeltaStep) {
  ASSERT_EQ(prepare_delta_step(device_.shared_bytes), 0);
  const Dims d = dims_of(kQwen36);
  const uint32_t ld = (conv_channels(d) + value_width(d) + 2 * d.v_heads + 15) / 16 * 16;
  const uint64_t stride = recurrent_stride(d);
  const PackedMatrix in_proj = form(ld / kTileRows, 32, 1);
  const Array<float> mixed(random_values(size_t{kSmallRows} * ld, 3));
  const Array<float> conv(random_values(size_t{kConvTaps} * conv_channels(d), 4, 0.5F));
  std::vector<float> rates(d.v_heads);
  for (uint32_t i = 0; i < d.v_heads; ++i) {
    rates[i] = uniform(5, i, 0.1F, 1.1F);
  }
  const Array<float> rate(rates);
  const Array<float> bias(random_values(d.v_heads, 6));
  const Array<float> norm(random_values(kDeltaDim, 7));
  const std::vector<float> before = random_values(kSmallRows * stride, 8, 0.1F);
  const auto run = [&](const std::vector<uint32_t>& of, uint32_t rows_each, std::vector<float>& states) {
    const Array<float> memory(before);
    Array<uint16_t> x(size_t{kSmallRows} * value_width(d));
    Array<float> squares(size_t{kSmallRows} * value_width(d) / kFeedBlock);
    std::vector<Segment> segments;
    for (const uint32_t i : of) {
      // Rows lie where they lie when all are together.
      segments.push_back({memory.get() + i * stride, nullptr, i * rows_each, rows_each, 3 + i, 0});
    }
    const Array<Segment> table(segments);
    const auto count = static_cast<uint32_t>(of.size());
    const LaunchShape shape = delta_step_shape(in_proj, d, count, count * rows_each, traits());
    EXPECT_EQ(launch_delta_step({.dims = d,
                                 .segments = table.get(),
                                 .segment_count = count,
                                 .mixed = mixed.get(),
                                 .ld = ld,
                                 .layer = 0,
                                 .conv = conv.get(),
                                 .decay_rate = rate.get(),
                                 .dt_bias = bias.get(),
                                 .norm = norm.get(),
                                 .out = {x.get(), squares.get()},
                                 .first_row = 0,
                                 .single = rows_each == 1 ? 1U : 0U,
                                 .relay = {},
                                 .blocks = shape.blocks,
                                 .stages = shape.stages,
                                 .shared = shape.shared},
                                nullptr),
              0);
    expect_success();
    states = memory.download();
    return std::pair(x.download(), squares.download());
  };
  for (const auto& [segments, rows_each] : {std::pair<uint32_t, uint32_t>{32, 1}, {5, 1}, {19, 1}, {10, 3}}) {
    std::vector<uint32_t> all(segments);
    for (uint32_t i = 0; i < segments; ++i) {
      all[i] = i;
    }
    std::vector<float> states;
    const auto [x, squares] = run(all, rows_each, states);
    for (uint32_t i = 0; i < segments; i += 8) {
      std::vector<float> own;
      const auto [x_own, squares_own] = run({i}, rows_each, own);
      const size_t width = size_t{rows_each} * value_width(d);
      EXPECT_TRUE(same_bits(x, i * width, x_own, i * width, width)) << "outputs " << i << " of " << segments;
      EXPECT_TRUE(
          same_bits(squares, i * width / kFeedBlock, squares_own, i * width / kFeedBlock, width / kFeedBlock))
          << "squares " << i << " of " << segments;
      EXPECT_TRUE(same_bits(states, i * stride, own, i * stride, stride))
          << "state " << i << " of " << segments;
      EXPECT_FALSE(same_bits(states, i * stride, before, i * stride, delta_floats(d)));
    }
  }
}

}  // namespace
}  // namespace lily::cuda::test
