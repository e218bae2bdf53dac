// AMX: products of many rows in tiles of bytes or of bf16 (Sapphire Rapids and later); everything else is
// AVX-512 VNNI.
#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)
#include "backends/cpu/isa/amx_halves.h"
#else
#include "backends/cpu/kernels.h"
#endif

namespace lily::cpu {

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)
namespace {

// Not the intrinsics: they take a tile's number as text, and those that load do not tell the compiler that
// they read memory.
struct ProcessorTiles {
  static void configure(uint32_t rows) {
    struct {
      uint8_t palette = 1;
      uint8_t start = 0;
      uint8_t reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (uint32_t i = 0; i < 8; ++i) {
      config.row_bytes[i] = 64;
      config.rows[i] = static_cast<uint8_t>(i >= 6 ? 16 : rows);
    }
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  template <int Tile>
  LILY_INLINE void load(const std::byte* from, size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(Tile) : "memory");
  }
  template <int Tile>
  LILY_INLINE void store(std::byte* to, size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(Tile) : "memory");
  }
  template <int Tile>
  LILY_INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
  }
  template <int Sums, int A, int B>
  LILY_INLINE void dot() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(A), "i"(B));
  }
  template <int Sums, int A, int B>
  LILY_INLINE void dot_halves() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(A), "i"(B));
  }
  static void release() { asm volatile("tilerelease"); }
};

}  // namespace

const TileKernels* amx_tiles() { return &AmxProducts<ProcessorTiles>::kKernels; }
const TileKernels* amx_bf16_tiles() { return &AmxHalves<ProcessorTiles>::kKernels; }

#else

const TileKernels* amx_tiles() { return nullptr; }
const TileKernels* amx_bf16_tiles() { return nullptr; }

#endif

}  // namespace lily::cpu
