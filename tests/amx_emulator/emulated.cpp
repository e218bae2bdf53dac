// Tiles as the architecture describes them, one set a thread. What the processor would refuse stops the test.
#include "tests/amx_emulator/emulated.h"

#if defined(__AVX512VNNI__)
#include "backends/cpu/isa/amx_halves.h"

namespace lily::cpu {
namespace {

struct EmulatedTiles {
  struct Tile {
    uint32_t rows;  // 0: not configured
    std::byte bytes[16][64];
  };
  static thread_local Tile tiles[8];

  static Tile& tile(int number) {
    if (tiles[number].rows == 0) {
      __builtin_trap();
    }
    return tiles[number];
  }
  static void configure(uint32_t rows) {
    if (rows == 0 || rows > 16) {
      __builtin_trap();
    }
    for (uint32_t i = 0; i < 8; ++i) {
      tiles[i] = {};
      tiles[i].rows = i >= 6 ? 16 : rows;
    }
  }
  template <int Number>
  static void load(const std::byte* from, size_t stride) {
    Tile& to = tile(Number);
    for (uint32_t row = 0; row < to.rows; ++row) {
      __builtin_memcpy(to.bytes[row], from + row * stride, 64);
    }
    for (uint32_t row = to.rows; row < 16; ++row) {
      __builtin_memset(to.bytes[row], 0, 64);
    }
  }
  template <int Number>
  static void store(std::byte* to, size_t stride) {
    const Tile& from = tile(Number);
    for (uint32_t row = 0; row < from.rows; ++row) {
      __builtin_memcpy(to + row * stride, from.bytes[row], 64);
    }
  }
  template <int Number>
  static void zero() {
    __builtin_memset(tile(Number).bytes, 0, sizeof(Tile::bytes));
  }
  template <int Sums, int A, int B>
  static void dot() {
    Tile& sums = tile(Sums);
    const Tile& a = tile(A);
    const Tile& b = tile(B);
    if (sums.rows != a.rows || b.rows != 16) {
      __builtin_trap();
    }
    for (uint32_t row = 0; row < sums.rows; ++row) {
      int32_t sum[16];
      __builtin_memcpy(sum, sums.bytes[row], sizeof(sum));
      for (uint32_t k = 0; k < 64; ++k) {
        const int32_t x = static_cast<int8_t>(a.bytes[row][k]);
        for (uint32_t column = 0; column < 16; ++column) {
          sum[column] += x * static_cast<int32_t>(b.bytes[k / 4][column * 4 + k % 4]);
        }
      }
      __builtin_memcpy(sums.bytes[row], sum, sizeof(sum));
    }
  }
  template <int Sums, int A, int B>
  static void dot_halves() {
    Tile& sums = tile(Sums);
    const Tile& a = tile(A);
    const Tile& b = tile(B);
    if (sums.rows != a.rows || b.rows != 16) {
      __builtin_trap();
    }
    for (uint32_t row = 0; row < sums.rows; ++row) {
      uint32_t pairs[16];
      __builtin_memcpy(pairs, a.bytes[row], sizeof(pairs));
      float even[16] = {};  // a product of two bf16 is exact
      float odd[16] = {};
      for (uint32_t k = 0; k < 16; ++k) {
        uint32_t words[16];
        __builtin_memcpy(words, b.bytes[k], sizeof(words));
        for (uint32_t column = 0; column < 16; ++column) {
          even[column] += low_half(pairs[k]) * low_half(words[column]);
          odd[column] += high_half(pairs[k]) * high_half(words[column]);
        }
      }
      float sum[16];
      __builtin_memcpy(sum, sums.bytes[row], sizeof(sum));
      for (uint32_t column = 0; column < 16; ++column) {
        sum[column] += even[column] + odd[column];
      }
      __builtin_memcpy(sums.bytes[row], sum, sizeof(sum));
    }
  }
  static float low_half(uint32_t pair) { return __builtin_bit_cast(float, pair << 16); }
  static float high_half(uint32_t pair) { return __builtin_bit_cast(float, pair & 0xffff0000U); }
  static void release() {
    for (Tile& each : tiles) {
      each.rows = 0;
    }
  }
};
thread_local EmulatedTiles::Tile EmulatedTiles::tiles[8];

}  // namespace

namespace test {

const TileKernels* emulated_amx_tiles() { return &AmxProducts<EmulatedTiles>::kKernels; }
const TileKernels* emulated_amx_bf16_tiles() { return &AmxHalves<EmulatedTiles>::kKernels; }

}  // namespace test
}  // namespace lily::cpu
#else

const lily::cpu::TileKernels* lily::cpu::test::emulated_amx_tiles() { return nullptr; }
const lily::cpu::TileKernels* lily::cpu::test::emulated_amx_bf16_tiles() { return nullptr; }

#endif
