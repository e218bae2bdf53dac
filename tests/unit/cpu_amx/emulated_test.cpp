// The AMX kernels with tiles that are computed in C++: their products have the bits of those without tiles.
// What a processor with AMX makes of them is tested where there is one (the suites over all instruction
// sets).
#include <gtest/gtest.h>

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "backends/cpu/packed.h"
#include "base/aligned.h"
#include "tests/unit/cpu/isa_param.h"

namespace lily::cpu::tiles {

struct Config {
  std::array<uint8_t, 16> head;
  std::array<uint16_t, 16> row_bytes;
  std::array<uint8_t, 16> rows;
};
Config config;
std::array<std::array<std::array<std::byte, 64>, 16>, 8> tile;

void configure(const void* from) {
  std::memcpy(&config, from, sizeof(config));
  EXPECT_EQ(config.head[0], 1) << "palette";
}
void load(size_t to, const void* from, size_t stride) {
  for (size_t row = 0; row < config.rows[to]; ++row) {
    std::memcpy(tile[to][row].data(), static_cast<const std::byte*>(from) + row * stride,
                config.row_bytes[to]);
  }
}
void store(size_t from, void* to, size_t stride) {
  for (size_t row = 0; row < config.rows[from]; ++row) {
    std::memcpy(static_cast<std::byte*>(to) + row * stride, tile[from][row].data(), config.row_bytes[from]);
  }
}
void zero(size_t which) { tile[which] = {}; }
// Signed bytes of a, unsigned bytes of b.
void multiply(size_t to, size_t a, size_t b) {
  ASSERT_EQ(config.rows[to], config.rows[a]);
  ASSERT_EQ(config.row_bytes[a] / 4, config.rows[b]);
  for (size_t row = 0; row < config.rows[to]; ++row) {
    for (size_t column = 0; column < config.row_bytes[to] / 4U; ++column) {
      int32_t sum = 0;
      std::memcpy(&sum, &tile[to][row][column * 4], 4);
      for (size_t k = 0; k < config.row_bytes[a]; ++k) {
        const auto x = static_cast<int8_t>(tile[a][row][k]);
        sum += int32_t{x} * static_cast<uint8_t>(tile[b][k / 4][column * 4 + k % 4]);
      }
      std::memcpy(&tile[to][row][column * 4], &sum, 4);
    }
  }
}

}  // namespace lily::cpu::tiles

#undef _tile_loadconfig
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbsud
#undef _tile_release
#define _tile_loadconfig(from) tiles::configure(from)
#define _tile_loadd(to, from, stride) tiles::load(to, from, stride)
#define _tile_stored(from, to, stride) tiles::store(from, to, stride)
#define _tile_zero(which) tiles::zero(which)
#define _tile_dpbsud(to, a, b) tiles::multiply(to, a, b)
#define _tile_release()
#define amx_kernels emulated_amx_kernels
#include "backends/cpu/isa/amx.cpp"

namespace lily::cpu {
namespace {

// A packed matrix of random codes, scales and biases.
struct RandomMatrix {
  RandomMatrix(uint32_t outputs, uint32_t bits, uint32_t group, DType type, uint32_t digits) {
    form.rows = outputs;
    form.cols = 512;
    form.bits = bits;
    form.group = group;
    form.scale_type = type;
    form.digits = digits;
    data = *AlignedBytes::allocate(form.total_bytes());
    std::mt19937 engine(outputs + bits + group);
    std::generate_n(data.data(), data.size(), [&] { return static_cast<std::byte>(engine()); });
    const size_t size = scale_bytes(type);
    for (size_t at = 0; at < data.size(); at += group_bytes(form)) {
      for (size_t i = 0; i < 2 * size_t{kBlockOutputs}; ++i) {
        const float value = (static_cast<float>(engine() % 2001) - 1000) * 1e-3F;
        const uint16_t half = float_to_bf16(value);
        std::memcpy(data.data() + at + i * size,
                    type == DType::f32 ? static_cast<const void*>(&value) : &half, size);
      }
    }
    form.data = data.data();
  }
  PackedMatrix form;
  AlignedBytes data;
};

void expect_same_bits(const RandomMatrix& matrix, uint32_t rows, bool accumulate) {
  const PackedMatrix& m = matrix.form;
  const size_t stride = prepared_bytes(m.input());
  const auto x = test::randoms(size_t{rows} * m.cols, rows);
  const auto prepare = [&](uint32_t most, uint32_t word) {
    auto prepared = *AlignedBytes::allocate(rows * stride);
    const Panels panels = panels_of(rows, most);
    for (uint32_t row = 0; row < rows; ++row) {
      const uint32_t panel = panel_of_row(panels, row);
      kTable.prepare({.format = m.input(),
                      .x = x.data() + size_t{row} * m.cols,
                      .begin = 0,
                      .end = m.cols,
                      .panel = prepared.data() + panel_begin(panels, panel) * stride,
                      .panel_rows = rows_of_panel(panels, panel),
                      .row = row - panel_begin(panels, panel),
                      .word = word});
    }
    return prepared;
  };
  const auto panels = prepare(kTable.panel_rows(m.input(), rows), kTable.word);
  const auto single = prepare(1, 4);
  std::vector<float> found(size_t{rows} * 60, 1.5F);
  std::vector<float> expected = found;
  MatmulArgs args{.matrix = &m,
                  .x = panels.data(),
                  .x_stride = stride,
                  .rows = rows,
                  .begin = 0,
                  .end = m.rows,
                  .y = found.data(),
                  .y_stride = 60,
                  .accumulate = accumulate};
  kTable.matmul(args);
  args.x = single.data();
  args.y = expected.data();
  Vectors::matmul(args);
  EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0)
      << rows << " rows, " << m.rows << " outputs, " << m.bits << " bits, group " << m.group << ", digits "
      << m.digits;
}

TEST(EmulatedAmx, ProductsHaveTheBitsOfThoseWithoutTiles) {
  for (const uint32_t bits : {4U, 8U}) {
    for (const DType type : {DType::bf16, DType::f32}) {
      for (const uint32_t group : {32U, 64U}) {
        for (const uint32_t outputs : {16U, 53U}) {
          for (const uint32_t digits : {1U, 2U}) {
            const RandomMatrix matrix(outputs, bits, group, type, digits);
            for (const uint32_t rows : {1U, 3U, 4U, 16U, 19U, 20U, 128U, 129U, 140U}) {
              expect_same_bits(matrix, rows, rows % 2 == 0);
            }
          }
        }
      }
    }
  }
}

TEST(EmulatedAmx, DoesTheMultiplyAddsOfItsPeak) {
  std::array<std::byte, kPeakSink> sink{};
  std::fill_n(sink.begin(), 64, std::byte{0x32});  // codes 2 and 3, and 0, 1, 2 more in the three chains
  std::fill_n(sink.begin() + 64, 64, std::byte{1});
  const uint64_t count = kTable.multiply_add_peak(10, sink.data());
  EXPECT_EQ(load_unaligned<float>(sink.data()), static_cast<float>(count) / 2 * (3 + 3));
}

}  // namespace
}  // namespace lily::cpu
