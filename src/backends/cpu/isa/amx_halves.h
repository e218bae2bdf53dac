// Products of long runs of rows in tiles of bf16, written once over the instructions on tiles (tiles.h):
// weights are decoded and cut to bf16 where they are in the cache, once for all panels of a run. Nothing
// is scaled afterwards: scaling the integer sums of every group took longer than the tiles.
//
// A sum runs over the inputs in steps of 32, in order, whatever the other rows: within a step even and odd
// inputs are added apart, then both to the sum.
#pragma once

#include "backends/cpu/isa/amx_attend.h"
#include "backends/cpu/isa/amx_delta.h"
#include "backends/cpu/isa/amx_products.h"

namespace lily::cpu {
namespace {

template <class T>
struct AmxHalves {
  using V = Avx512Vnni;
  using F = V::F;
  using I = V::I;
  using Vectors = Affine<V, 1>;

  static constexpr uint32_t kWidth = 2;                // blocks of outputs that share the rows of a tile
  static constexpr uint32_t kStepTiles = 16 / kWidth;  // of inputs: the weights of a step are 16 KB
  static constexpr uint32_t kStepPanels = 16;  // whose sums stay in the second-level cache between the steps
  static constexpr uint32_t kRowTile = 4;      // the tile of rows; sums are 0 to 3, weights 6 and 7
  static_assert(kWidth <= kRowTile);

  struct Workspace {
    alignas(64) std::byte weights[kStepTiles][kWidth][kTile];
    alignas(64) float sums[kStepPanels][kWidth][kTileRows][kBlockOutputs];
  };

  // ---- weights ----

  // Weights are cut to bf16, which is a fifth less to do than rounding. Cutting makes a weight of mantissa m
  // smaller by 2^-8 / m of itself in the mean: it is made larger by what leaves no mean error (NUMERICS.md).
  static constexpr float kLarger = 1.0F + 0.72F / 256;

  // Codes of 4 bits become floats where they lie: under an exponent for which their lowest bit counts one. So
  // at bit 8, 12 or 16 of a word, which becomes 2^15, 2^11 or 2^7 and the code; the rest is part of the bias.
  static constexpr uint32_t kPlaces = 3;
  static constexpr float kAbove[kPlaces] = {0x1p15F, 0x1p11F, 0x1p7F};
  struct Affine4 {
    F scale;
    F bias[kPlaces];
  };
  LILY_INLINE Affine4 affine4(F scale, F bias) {
    Affine4 of{.scale = scale, .bias = {}};
    LILY_UNROLL
    for (uint32_t i = 0; i < kPlaces; ++i) {
      of.bias[i] = V::fma(V::set1(-kAbove[i]), scale, bias);
    }
    return of;
  }
  template <uint32_t Place>
  LILY_INLINE F weights4(I words, const Affine4& of) {
    const I mask = _mm512_set1_epi32(15 << (8 + 4 * Place));
    const I exponent = _mm512_castps_si512(V::set1(kAbove[Place]));
    return V::fma(of.scale, _mm512_castsi512_ps(_mm512_ternarylogic_epi32(words, mask, exponent, 0xea)),
                  of.bias[Place]);
  }
  // 8 inputs of a block: four rows of a tile, each two inputs of 16 outputs.
  LILY_INLINE void decode_eight4(const std::byte* codes, const Affine4& of, std::byte* rows) {
    const I words = V::load_words(codes);
    const I left = _mm512_slli_epi32(words, 8);
    const I right = _mm512_srli_epi32(words, 12);
    V::store_words(rows, V::join_cut_bf16(weights4<0>(left, of), weights4<1>(left, of)));
    V::store_words(rows + 64, V::join_cut_bf16(weights4<0>(words, of), weights4<1>(words, of)));
    V::store_words(rows + 128, V::join_cut_bf16(weights4<2>(words, of), weights4<0>(right, of)));
    V::store_words(rows + 192, V::join_cut_bf16(weights4<1>(right, of), weights4<2>(right, of)));
  }

  LILY_INLINE F byte_at(I words, int bit) {
    return V::to_float(
        _mm512_and_si512(_mm512_srli_epi32(words, static_cast<unsigned>(bit)), _mm512_set1_epi32(255)));
  }

  LILY_INLINE void decode_eight8(const std::byte* codes, F scale, F bias, std::byte* rows) {
    const I even = V::load_words(codes);
    const I odd = V::load_words(codes + 64);
    for (int pair = 0; pair < 4; ++pair) {
      V::store_words(rows + pair * 64, V::join_cut_bf16(V::fma(scale, byte_at(even, 8 * pair), bias),
                                                        V::fma(scale, byte_at(odd, 8 * pair), bias)));
    }
  }

  // Inputs [32 * first, 32 * (first + count)) of a block, a tile for each 32 and kWidth tiles apart.
  template <uint32_t Bits>
  static void decode(const PackedMatrix& m, const std::byte* block, uint32_t first, uint32_t count,
                     std::byte* tile) {
    const bool wide = m.scale_type == DType::f32;
    const size_t scales = kBlockOutputs * scale_bytes(m.scale_type);
    const size_t bytes = group_bytes(m);
    const uint32_t tiles_of_group = m.group / kHalfWord;
    for (uint32_t t = first; t < first + count; ++t, tile += kWidth * kTile) {
      const std::byte* group = block + t / tiles_of_group * bytes;
      const std::byte* codes = group + 2 * scales + t % tiles_of_group * (kHalfWord * Bits * 2);
      for (size_t i = 0; i < size_t{kHalfWord} * Bits * 2 + 64; i += 64) {
        __builtin_prefetch(codes + 8 * bytes + i, 0, 2);
      }
      const F scale = V::mul(V::set1(kLarger), Vectors::load_scale(wide, group, 0));
      const F bias = V::mul(V::set1(kLarger), Vectors::load_scale(wide, group + scales, 0));
      const Affine4 of = affine4(scale, bias);
      LILY_UNROLL
      for (uint32_t v = 0; v < 4; ++v, codes += size_t{Bits} * 16) {
        if constexpr (Bits == 4) {
          decode_eight4(codes, of, tile + size_t{v} * 256);
        } else {
          decode_eight8(codes, scale, bias, tile + size_t{v} * 256);
        }
      }
    }
  }

  // Blocks behind the last output are not there: what their tiles hold is never stored.
  static void decode_step(const MatmulArgs& args, Workspace& at, uint32_t output, uint32_t first,
                          uint32_t count) {
    const PackedMatrix& m = *args.matrix;
    for (uint32_t b = 0; b < kWidth && output + b * kBlockOutputs < args.end; ++b) {
      const std::byte* block = m.data + (output / kBlockOutputs + b) * block_bytes(m);
      m.bits == 4 ? decode<4>(m, block, first, count, at.weights[0][b])
                  : decode<8>(m, block, first, count, at.weights[0][b]);
    }
  }

  // ---- tiles ----

  template <uint32_t B = 0>
  LILY_INLINE void begin_sums(bool first, float (*sums)[kTileRows][kBlockOutputs]) {
    if (first) {
      T::template zero<B>();
    } else {
      T::template load<B>(reinterpret_cast<const std::byte*>(sums[B]), 64);
    }
    if constexpr (B + 1 < kWidth) {
      begin_sums<B + 1>(first, sums);
    }
  }
  template <uint32_t B = 0>
  LILY_INLINE void end_sums(float (*sums)[kTileRows][kBlockOutputs]) {
    T::template store<B>(reinterpret_cast<std::byte*>(sums[B]), 64);
    if constexpr (B + 1 < kWidth) {
      end_sums<B + 1>(sums);
    }
  }
  template <uint32_t B = 0>
  LILY_INLINE void multiply_tile(const std::byte (&weights)[kWidth][kTile]) {
    T::template load<6 + B % 2>(weights[B], 64);
    T::template dot_halves<B, kRowTile, 6 + B % 2>();
    if constexpr (B + 1 < kWidth) {
      multiply_tile<B + 1>(weights);
    }
  }

  // `next`: from the rows to those that are read after them, of another panel; 0 = nothing.
  static void multiply(const Workspace& at, const std::byte* x, size_t word, uint32_t count, ptrdiff_t next) {
    for (uint32_t t = 0; t < count; ++t, x += word) {
      T::template load<kRowTile>(x, 64);
      for (size_t i = 0; i < word && next != 0; i += 64) {
        __builtin_prefetch(x + next + i, 0, 3);
      }
      multiply_tile(at.weights[t]);
    }
  }

  // ---- all of it ----

  static void store_sums(const MatmulArgs& args, const Workspace& at, const Panels& panels, uint32_t begin,
                         uint32_t end, uint32_t output) {
    for (uint32_t p = begin; p < end; ++p) {
      for (uint32_t b = 0; b < kWidth && output + b * kBlockOutputs < args.end; ++b) {
        const uint32_t first = output + b * kBlockOutputs;
        const bool bypass = args.bypass && !args.accumulate && first + kBlockOutputs <= args.end;
        for (uint32_t r = 0; r < rows_of_panel(panels, p); ++r) {
          const F sum[1] = {V::load(at.sums[p - begin][b][r])};
          float* y = args.y + (panel_begin(panels, p) + r) * args.y_stride + first;
          if (bypass) {
            _mm512_stream_ps(y, sum[0]);
          } else {
            Vectors::store_row(sum, y, smaller(kBlockOutputs, args.end - first), args.accumulate);
          }
        }
      }
    }
  }

  // Panels [begin, end) against the blocks from `output` on.
  static void run_blocks(const MatmulArgs& args, Workspace& at, const Panels& panels, uint32_t begin,
                         uint32_t end, uint32_t output) {
    const uint32_t tiles = args.matrix->cols / kHalfWord;
    for (uint32_t first = 0; first < tiles; first += kStepTiles) {
      const uint32_t count = smaller(kStepTiles, tiles - first);
      decode_step(args, at, output, first, count);
      for (uint32_t p = begin; p < end; ++p) {
        const std::byte* panel = args.x + panel_begin(panels, p) * args.x_stride;
        const size_t word = size_t{rows_of_panel(panels, p)} * 64;
        begin_sums(first == 0, at.sums[p - begin]);
        multiply(at, panel + first * word, word, count,
                 p + 1 < end ? static_cast<ptrdiff_t>(word * tiles) : 0);
        end_sums(at.sums[p - begin]);
      }
    }
    store_sums(args, at, panels, begin, end, output);
  }

  // Panels differ by one row at most: tiles have the rows of the first. With a smaller panel the last of them
  // is read from what follows and is no row's.
  static void product(const MatmulArgs& args) {
    Workspace at;
    const Panels panels = panels_of(args.rows, kTileRows);
    T::configure(rows_of_panel(panels, 0));
    for (uint32_t begin = 0; begin < panels.count; begin += kStepPanels) {
      for (uint32_t output = args.begin; output < args.end; output += kWidth * kBlockOutputs) {
        run_blocks(args, at, panels, begin, smaller(begin + kStepPanels, panels.count), output);
      }
    }
    T::release();
    _mm_sfence();  // what bypassed the caches is there before whoever waits for this product reads it
  }

  static uint32_t panel_rows(const InputFormat& format, uint32_t rows) {
    return format.digits == kHalves ? kTileRows : AmxProducts<T>::panel_rows(format, rows);
  }
  static void matmul(const MatmulArgs& args) {
    args.matrix->digits == kHalves ? product(args) : AmxProducts<T>::matmul(args);
  }

  // ---- the limit of the products ----

  // Three chains of tiles, twelve products a round; every row has the same digits, every output the same
  // codes. Digits and codes are small whole numbers, and so are the sums: exact.
  static uint64_t multiply_add_peak(uint64_t rounds, std::byte* sink) {
    alignas(64) std::byte weights[kTile];
    alignas(64) std::byte rows[2][kTile];
    alignas(64) std::byte sums[3][kTile];
    const I codes = V::add_int(V::load_words(sink), _mm512_set1_epi8(1));
    const I low = _mm512_and_si512(codes, _mm512_set1_epi32(15));
    const I high = _mm512_and_si512(_mm512_srli_epi32(codes, 4), _mm512_set1_epi32(15));
    for (size_t row = 0; row < kTile; row += 64) {
      _mm512_store_si512(weights + row, V::join_bf16(V::to_float(low), V::to_float(high)));
    }
    I digits = V::load_words(sink + 64);
    const I step = V::load_words(sink + 128);
    T::configure(kTileRows);
    T::template load<6>(weights, 64);
    for (uint64_t round = 0; round < rounds; ++round) {
      const F digit = V::to_float(_mm512_and_si512(digits, _mm512_set1_epi32(255)));
      for (size_t row = 0; row < kTile; row += 64) {
        _mm512_store_si512(rows[round % 2] + row, V::join_bf16(digit, digit));
      }
      T::template load<kRowTile>(rows[round % 2], 64);
      for (int i = 0; i < 4; ++i) {
        T::template dot_halves<0, kRowTile, 6>();
        T::template dot_halves<1, kRowTile, 6>();
        T::template dot_halves<2, kRowTile, 6>();
      }
      digits = V::add_int(digits, step);
    }
    T::template store<0>(sums[0], 64);
    T::template store<1>(sums[1], 64);
    T::template store<2>(sums[2], 64);
    T::release();
    F sum = V::zero();
    for (size_t i = 0; i < sizeof(sums); i += 64) {
      sum = V::add(sum, V::load_bytes(sums[0] + i));
    }
    const float total = V::reduce_add(sum);
    __builtin_memcpy(sink, &total, sizeof(total));
    return rounds * 12 * kTileRows * kBlockOutputs * kHalfWord;
  }

  static constexpr TileKernels kKernels{.word = 64,
                                        .halves = true,
                                        .panel_rows = panel_rows,
                                        .matmul = matmul,
                                        .delta_chunks = AmxDelta<T>::delta_chunks,
                                        .attend_rows = AmxAttend<T>::attend_rows,
                                        .multiply = "tdpbf16ps",
                                        .multiply_add_peak = multiply_add_peak};
};

}  // namespace
}  // namespace lily::cpu
