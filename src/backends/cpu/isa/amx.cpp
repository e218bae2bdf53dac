// AMX: products of many rows in tiles of bytes (Sapphire Rapids and later); everything else is AVX-512 VNNI.
#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)
#include "backends/cpu/isa/avx512vnni.h"
#include "backends/cpu/isa/generic.h"
#else
#include "backends/cpu/kernels.h"
#endif

namespace lily::cpu {

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)
namespace {

using V = Avx512Vnni;
using Vectors = Affine<V, 1>;  // tiles take rows one after the other

constexpr uint32_t kTileRows = 16;
constexpr uint32_t kTileGroup = 64;  // inputs of a tile: one group of the usual size
constexpr uint32_t kLeastRows = 4;   // fewer are as fast without tiles
constexpr uint32_t kWidth = 2;       // blocks of outputs that share the tiles of the rows
constexpr size_t kTile = 1024;       // bytes

// Rows of tiles lie one after the other: a word of a panel is a row of a tile.
uint32_t panel_rows(const InputFormat& format, uint32_t rows) {
  return format.group == kTileGroup && rows >= kLeastRows ? kTileRows : 1;
}

// Tiles 0 to 3: sums of the digits of two blocks. 4 and 5: digits. 6 and 7: codes.
void configure(uint32_t rows) {
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
  _tile_loadconfig(&config);
}

// The intrinsics that load tiles do not tell the compiler that they read memory.
LILY_INLINE void finish_stores() { asm volatile("" ::: "memory"); }

// The codes of a block as tiles, one of each group: a row of a tile is 4 inputs of 16 outputs, the even and
// the odd inputs of 8 in turn, as in prepared rows. Those of 8 bits lie so in the packed matrix.
void lay_out_codes(const PackedMatrix& m, const std::byte* block, std::byte* tiles) {
  const size_t bytes = group_bytes(m);
  const size_t scales = bytes - size_t{kTileGroup} * m.bits * kBlockOutputs / 8;
  const size_t next = block_bytes(m);
  for (uint32_t g = 0; g < m.cols / kTileGroup; ++g, block += bytes) {
    for (size_t i = 0; i < bytes; i += 64) {
      __builtin_prefetch(block + next + i, 0, 2);
    }
    for (uint32_t v = 0; v < 16; v += 2, tiles += 128) {
      if (m.bits == 4) {
        const auto codes = V::load_words(block + scales + size_t{v} * 32);
        _mm512_store_si512(tiles, V::low_halves(codes));
        _mm512_store_si512(tiles + 64, V::high_halves(codes));
      } else {
        _mm512_store_si512(tiles, V::load_words(block + scales + size_t{v} * 64));
        _mm512_store_si512(tiles + 64, V::load_words(block + scales + size_t{v} * 64 + 64));
      }
    }
  }
}

// The products of the digits of one group with B blocks: to[block][digit][row][output].
template <uint32_t B, uint32_t D>
LILY_INLINE void multiply_group(const std::byte* codes, size_t next_block, const std::byte* x, size_t digit,
                                std::byte* to) {
  _tile_loadd(4, x, 64);
  _tile_loadd(6, codes, 64);
  _tile_zero(0);
  _tile_dpbsud(0, 4, 6);
  if constexpr (D == 2) {
    _tile_loadd(5, x + digit, 64);
    _tile_zero(1);
    _tile_dpbsud(1, 5, 6);
  }
  if constexpr (B == 2) {
    _tile_loadd(7, codes + next_block, 64);
    _tile_zero(2);
    _tile_dpbsud(2, 4, 7);
    if constexpr (D == 2) {
      _tile_zero(3);
      _tile_dpbsud(3, 5, 7);
    }
  }
  _tile_stored(0, to, 64);
  if constexpr (D == 2) {
    _tile_stored(1, to + kTile, 64);
  }
  if constexpr (B == 2) {
    _tile_stored(2, to + D * kTile, 64);
    if constexpr (D == 2) {
      _tile_stored(3, to + 3 * kTile, 64);
    }
  }
}

struct RowTile {
  const MatmulArgs* args;
  const std::byte* block;  // packed, for its scales
  const std::byte* codes;  // its tiles
  const std::byte* x;      // the panel
  float* y;
  uint32_t rows;     // 4 to kTileRows
  uint32_t outputs;  // from the block to the end
};

// A panel against B blocks. The next group is multiplied while the sums of this one are scaled; the scaling
// is that of Affine::tile(), so that a row has the same bits in either.
template <uint32_t B, uint32_t D>
void row_tile(const RowTile& t) {
  const MatmulArgs& args = *t.args;
  const PackedMatrix& m = *args.matrix;
  const bool wide = m.scale_type == DType::f32;
  const size_t scales = kBlockOutputs * scale_bytes(m.scale_type);
  const uint32_t groups = m.cols / kTileGroup;
  const size_t digit = size_t{t.rows} * kTileGroup;
  const size_t next_codes = size_t{groups} * kTile;
  const std::byte* scale = t.x + size_t{m.cols} * D * t.rows;
  alignas(64) std::byte products[2][B][D * kTile];
  alignas(64) float sums[B][kTileRows][kBlockOutputs];
  __builtin_memset(sums, 0, sizeof(sums));
  finish_stores();
  multiply_group<B, D>(t.codes, next_codes, t.x, digit, products[0][0]);
  for (uint32_t g = 0; g < groups; ++g) {
    if (g + 1 < groups) {
      const size_t next = g + 1;
      multiply_group<B, D>(t.codes + next * kTile, next_codes, t.x + next * digit * D, digit,
                           products[next % 2][0]);
    }
    const std::byte* of_rows = scale + size_t{g} * kScalePair * t.rows;
    LILY_UNROLL
    for (uint32_t b = 0; b < B; ++b) {
      const std::byte* group = t.block + b * block_bytes(m) + g * group_bytes(m);
      const std::byte* first = products[g % 2][b];
      const auto w_scale = Vectors::load_scale(wide, group, 0);
      const auto w_bias = Vectors::load_scale(wide, group + scales, 0);
      for (uint32_t r = 0; r < t.rows; ++r) {
        auto dot = V::load_words(first + size_t{r} * 64);
        if constexpr (D == 2) {
          dot = V::add_int(V::next_digit(dot), V::load_words(first + kTile + size_t{r} * 64));
        }
        const auto factor = V::mul(w_scale, V::splat(of_rows + size_t{r} * 4));
        auto sum = V::fma(factor, V::to_float(dot), V::load(sums[b][r]));
        sum = V::fma(w_bias, V::splat(of_rows + size_t{t.rows + r} * 4), sum);
        V::store(sums[b][r], sum);
      }
    }
  }
  for (uint32_t b = 0; b < B; ++b) {
    for (uint32_t r = 0; r < t.rows; ++r) {
      const V::F sum[1] = {V::load(sums[b][r])};
      Vectors::store_row(sum, t.y + r * args.y_stride + size_t{b} * kBlockOutputs,
                         smaller(kBlockOutputs, t.outputs - b * kBlockOutputs), args.accumulate);
    }
  }
}

template <uint32_t D>
void product(const MatmulArgs& args) {
  const PackedMatrix& m = *args.matrix;
  alignas(64) std::byte codes[size_t{kMaxCols} * kBlockOutputs * kWidth];
  constexpr uint32_t kStep = 16;  // panels that stay in the second-level cache
  const Panels panels = panels_of(args.rows, kTileRows);
  const size_t bytes = block_bytes(m);
  uint32_t configured = 0;
  for (uint32_t begin = 0; begin < panels.count; begin += kStep) {
    for (uint32_t output = args.begin; output < args.end; output += kWidth * kBlockOutputs) {
      const std::byte* block = m.data + output / kBlockOutputs * bytes;
      const bool both = output + kBlockOutputs < args.end;
      lay_out_codes(m, block, codes);
      if (both) {
        lay_out_codes(m, block + bytes, codes + m.cols / kTileGroup * kTile);
      }
      for (uint32_t p = begin; p < smaller(begin + kStep, panels.count); ++p) {
        const uint32_t row = panel_begin(panels, p);
        const RowTile tile{.args = &args,
                           .block = block,
                           .codes = codes,
                           .x = args.x + row * args.x_stride,
                           .y = args.y + row * args.y_stride + output,
                           .rows = rows_of_panel(panels, p),
                           .outputs = args.end - output};
        if (tile.rows != configured) {
          configured = tile.rows;
          configure(configured);
        }
        both ? row_tile<2, D>(tile) : row_tile<1, D>(tile);
      }
    }
  }
  _tile_release();
}

void matmul(const MatmulArgs& args) {
  if (panel_rows(args.matrix->input(), args.rows) != kTileRows) {
    Vectors::matmul(args);
  } else {
    args.matrix->digits == 1 ? product<1>(args) : product<2>(args);
  }
}

// Three chains of tiles; every row has the same digits, every output the same codes.
uint64_t multiply_add_peak(uint64_t rounds, std::byte* sink) {
  alignas(64) std::byte codes[3][kTile];
  alignas(64) std::byte digits[kTile];
  const auto base = V::load_words(sink);
  auto digit = V::load_words(sink + 64);
  const auto step = V::load_words(sink + 128);
  for (int i = 0; i < 3; ++i) {
    const auto own = V::add_int(base, _mm512_set1_epi8(static_cast<char>(i)));
    for (size_t row = 0; row < kTile; row += 128) {
      _mm512_store_si512(codes[i] + row, V::low_halves(own));
      _mm512_store_si512(codes[i] + row + 64, V::high_halves(own));
    }
  }
  configure(kTileRows);
  finish_stores();
  _tile_loadd(5, codes[0], 64);
  _tile_loadd(6, codes[1], 64);
  _tile_loadd(7, codes[2], 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  for (uint64_t round = 0; round < rounds; ++round) {
    for (size_t row = 0; row < kTile; row += 64) {
      _mm512_store_si512(digits + row, digit);
    }
    finish_stores();
    _tile_loadd(3, digits, 64);
    _tile_dpbsud(0, 3, 5);
    _tile_dpbsud(1, 3, 6);
    _tile_dpbsud(2, 3, 7);
    digit = V::add_int(digit, step);
  }
  alignas(64) std::byte sums[3][kTile];
  _tile_stored(0, sums[0], 64);
  _tile_stored(1, sums[1], 64);
  _tile_stored(2, sums[2], 64);
  _tile_release();
  V::F sum = V::zero();
  for (size_t i = 0; i < sizeof(sums); i += 64) {
    sum = V::add(sum, V::to_float(V::load_words(sums[0] + i)));
  }
  const float total = V::reduce_add(sum);
  __builtin_memcpy(sink, &total, sizeof(total));
  return rounds * 3 * kTileRows * kBlockOutputs * kTileGroup;
}

constexpr Kernels make_table() {
  Kernels table = Generic<V>::table("amx", "tdpbsud");
  table.word = kTileGroup;
  table.panel_rows = panel_rows;
  table.matmul = matmul;
  table.multiply_add_peak = multiply_add_peak;
  return table;
}
constexpr Kernels kTable = make_table();

}  // namespace

const Kernels* amx_kernels() { return &kTable; }

#else

const Kernels* amx_kernels() { return nullptr; }

#endif

}  // namespace lily::cpu
