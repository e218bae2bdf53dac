// Products of rows of quantised bytes in tiles, written once over the instructions on tiles (tiles.h). A row
// has the bits that it has in Affine.
#pragma once

#include "backends/cpu/isa/affine.h"
#include "backends/cpu/isa/avx512vnni.h"
#include "backends/cpu/isa/tiles.h"

namespace lily::cpu {
namespace {

template <class T>
struct AmxProducts {
  using V = Avx512Vnni;
  using F = V::F;
  using I = V::I;
  using Vectors = Affine<V, 1>;  // tiles take rows one after the other

  static constexpr uint32_t kTileGroup = 64;  // inputs of a tile: one group of the usual size
  static constexpr uint32_t kLeastRows = 4;   // fewer are as fast without tiles
  static constexpr uint32_t kWidth = 2;       // blocks of outputs that are laid out together
  // Inputs are taken a few groups at a time, so that the codes of kWidth blocks (8 KB) and the digits of a
  // panel (8 KB) stay in the first-level cache while they meet, and a row's sums in registers.
  static constexpr uint32_t kStepGroups = 4;
  static constexpr uint32_t kStepPanels = 16;  // whose sums stay in the second-level cache between the steps

  // Rows of tiles lie one after the other: a word of a panel is a row of a tile.
  static uint32_t panel_rows(const InputFormat& format, uint32_t rows) {
    return format.group == kTileGroup && rows >= kLeastRows ? kTileRows : 1;
  }

  struct Workspace {
    alignas(64) std::byte codes[kWidth * kStepGroups * kTile];
    alignas(64) std::byte products[2][kMostDigits * kTile];  // of one group, and of the next
    alignas(64) float scales[kStepGroups][2][kTileRows];     // scale and sum of the rows of a panel
    alignas(64) float sums[kStepPanels][kWidth][kTileRows][kBlockOutputs];
  };

  // Groups [first, first + groups) of a panel and of `blocks` blocks.
  struct Step {
    const MatmulArgs* args;
    Workspace* at;
    const std::byte* block;  // packed, the first
    uint32_t blocks;
    uint32_t first;
    uint32_t groups;
    const std::byte* x;  // the panel
    uint32_t rows;       // 4 to kTileRows
    float (*sums)[kTileRows][kBlockOutputs];
  };

  // The codes of a block's groups as tiles, one each: a row of a tile is 4 inputs of 16 outputs, the even and
  // the odd inputs of 8 in turn, as in prepared rows. Those of 8 bits lie so in the packed matrix.
  static void lay_out_codes(const PackedMatrix& m, const std::byte* group, size_t next, uint32_t groups,
                            std::byte* tiles) {
    const size_t bytes = group_bytes(m);
    const size_t scales = bytes - size_t{kTileGroup} * m.bits * kBlockOutputs / 8;
    for (uint32_t g = 0; g < groups; ++g, group += bytes) {
      for (size_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch(group + next + i, 0, 2);
      }
      for (uint32_t v = 0; v < 16; v += 2, tiles += 128) {
        if (m.bits == 4) {
          const I codes = V::load_words(group + scales + size_t{v} * 32);
          _mm512_store_si512(tiles, V::low_halves(codes));
          _mm512_store_si512(tiles + 64, V::high_halves(codes));
        } else {
          _mm512_store_si512(tiles, V::load_words(group + scales + size_t{v} * 64));
          _mm512_store_si512(tiles + 64, V::load_words(group + scales + size_t{v} * 64 + 64));
        }
      }
    }
  }

  // to[digit][row][output]
  template <uint32_t D>
  LILY_INLINE void multiply_group(const std::byte* codes, const std::byte* x, size_t next_digit,
                                  std::byte* to) {
    T::template load<6>(codes, 64);
    T::template load<4>(x, 64);
    T::template zero<0>();
    T::template dot<0, 4, 6>();
    if constexpr (D == 2) {
      T::template load<5>(x + next_digit, 64);
      T::template zero<1>();
      T::template dot<1, 5, 6>();
    }
    T::template store<0>(to, 64);
    if constexpr (D == 2) {
      T::template store<1>(to + kTile, 64);
    }
  }

  // As in Affine::tile(), so that a row has the same bits in either.
  template <uint32_t D, uint32_t R>
  LILY_INLINE void scale_group(const std::byte* products, F w_scale, F w_bias,
                               const float (&of_rows)[2][kTileRows], F (&sum)[R]) {
    LILY_UNROLL
    for (uint32_t r = 0; r < R; ++r) {
      I dot = V::load_words(products + size_t{r} * 64);
      if constexpr (D == 2) {
        dot = V::add_int(V::next_digit(dot), V::load_words(products + kTile + size_t{r} * 64));
      }
      const F factor = V::mul(w_scale, V::set1(of_rows[0][r]));
      sum[r] = V::fma(factor, V::to_float(dot), sum[r]);
      sum[r] = V::fma(w_bias, V::set1(of_rows[1][r]), sum[r]);
    }
  }

  // The next group is multiplied while the sums of this one are scaled. R: the rows, rounded up to a multiple
  // of 4; what the last of them hold is no row's and is never stored.
  template <uint32_t D, uint32_t R>
  static void run_step(const Step& s) {
    const PackedMatrix& m = *s.args->matrix;
    const bool wide = m.scale_type == DType::f32;
    const size_t scales = kBlockOutputs * scale_bytes(m.scale_type);
    const size_t digit = size_t{s.rows} * kTileGroup;
    const std::byte* x = s.x + s.first * digit * D;
    const std::byte* of_rows = s.x + (size_t{m.cols} * D + s.first * kScalePair) * s.rows;
    for (uint32_t g = 0; g < s.groups; ++g, of_rows += kScalePair * s.rows) {
      __builtin_memcpy(s.at->scales[g][0], of_rows, s.rows * sizeof(float));
      __builtin_memcpy(s.at->scales[g][1], of_rows + s.rows * sizeof(float), s.rows * sizeof(float));
    }
    const auto multiply = [&](uint32_t i) __attribute__((always_inline)) {
      multiply_group<D>(s.at->codes + i * kTile, x + i % s.groups * digit * D, digit, s.at->products[i % 2]);
    };
    const uint32_t count = s.blocks * s.groups;
    multiply(0);
    for (uint32_t b = 0, i = 0; b < s.blocks; ++b) {
      const std::byte* group = s.block + b * block_bytes(m) + s.first * group_bytes(m);
      F sum[R];
      LILY_UNROLL
      for (uint32_t r = 0; r < R; ++r) {
        sum[r] = s.first == 0 ? V::zero() : V::load(s.sums[b][r]);
      }
      for (uint32_t g = 0; g < s.groups; ++g, ++i, group += group_bytes(m)) {
        if (i + 1 < count) {
          multiply(i + 1);
        }
        scale_group<D, R>(s.at->products[i % 2], Vectors::load_scale(wide, group, 0),
                          Vectors::load_scale(wide, group + scales, 0), s.at->scales[g], sum);
      }
      LILY_UNROLL
      for (uint32_t r = 0; r < R; ++r) {
        V::store(s.sums[b][r], sum[r]);
      }
    }
  }

  template <uint32_t D>
  static void run_step_of_rows(const Step& s) {
    switch ((s.rows + 3) / 4) {
      case 1:
        return run_step<D, 4>(s);
      case 2:
        return run_step<D, 8>(s);
      case 3:
        return run_step<D, 12>(s);
      default:
        return run_step<D, 16>(s);
    }
  }

  // Sums of a panel that are there, to their rows.
  static void store_panel(const MatmulArgs& args, uint32_t output, uint32_t blocks, uint32_t row,
                          uint32_t rows, const float (*sums)[kTileRows][kBlockOutputs]) {
    for (uint32_t b = 0; b < blocks; ++b, output += kBlockOutputs) {
      for (uint32_t r = 0; r < rows; ++r) {
        const F sum[1] = {V::load(sums[b][r])};
        Vectors::store_row(sum, args.y + (row + r) * args.y_stride + output,
                           smaller(kBlockOutputs, args.end - output), args.accumulate);
      }
    }
  }

  // Panels [begin, end) against the blocks from `output` on.
  template <uint32_t D>
  static void run_blocks(const MatmulArgs& args, Workspace& at, const Panels& panels, uint32_t begin,
                         uint32_t end, uint32_t output) {
    const PackedMatrix& m = *args.matrix;
    const size_t bytes = block_bytes(m);
    const uint32_t groups = m.cols / kTileGroup;
    Step step{.args = &args,
              .at = &at,
              .block = m.data + output / kBlockOutputs * bytes,
              .blocks = output + kBlockOutputs < args.end ? kWidth : 1,
              .first = 0,
              .groups = 0,
              .x = nullptr,
              .rows = 0,
              .sums = nullptr};
    uint32_t configured = 0;
    for (; step.first < groups; step.first += kStepGroups) {
      step.groups = smaller(kStepGroups, groups - step.first);
      // Read next: the groups behind these, or the first of the blocks behind.
      const size_t next = step.first + kStepGroups < groups ? kStepGroups * group_bytes(m)
                                                            : kWidth * bytes - step.first * group_bytes(m);
      for (uint32_t b = 0; b < step.blocks; ++b) {
        lay_out_codes(m, step.block + b * bytes + step.first * group_bytes(m), next, step.groups,
                      at.codes + size_t{b} * step.groups * kTile);
      }
      for (uint32_t p = begin; p < end; ++p) {
        step.x = args.x + panel_begin(panels, p) * args.x_stride;
        step.rows = rows_of_panel(panels, p);
        step.sums = at.sums[p - begin];
        if (step.rows != configured) {
          configured = step.rows;
          T::configure(configured);
        }
        run_step_of_rows<D>(step);
      }
    }
    for (uint32_t p = begin; p < end; ++p) {
      store_panel(args, output, step.blocks, panel_begin(panels, p), rows_of_panel(panels, p),
                  at.sums[p - begin]);
    }
  }

  template <uint32_t D>
  static void product(const MatmulArgs& args) {
    Workspace at;
    __builtin_memset(at.products, 0, sizeof(at.products));
    __builtin_memset(at.scales, 0, sizeof(at.scales));
    const Panels panels = panels_of(args.rows, kTileRows);
    for (uint32_t begin = 0; begin < panels.count; begin += kStepPanels) {
      for (uint32_t output = args.begin; output < args.end; output += kWidth * kBlockOutputs) {
        run_blocks<D>(args, at, panels, begin, smaller(begin + kStepPanels, panels.count), output);
      }
    }
    T::release();
  }

  static void matmul(const MatmulArgs& args) {
    if (panel_rows(args.matrix->input(), args.rows) != kTileRows) {
      Vectors::matmul(args);
    } else {
      args.matrix->digits == 1 ? product<1>(args) : product<2>(args);
    }
  }

  // Three chains of tiles, twelve products a round; every row has the same digits, every output the same
  // codes.
  static uint64_t multiply_add_peak(uint64_t rounds, std::byte* sink) {
    alignas(64) std::byte codes[kTile];
    alignas(64) std::byte digits[2][kTile];
    alignas(64) std::byte sums[3][kTile];
    const I own = V::add_int(V::load_words(sink), _mm512_set1_epi8(1));
    I digit = V::load_words(sink + 64);
    const I step = V::load_words(sink + 128);
    for (size_t row = 0; row < kTile; row += 128) {
      _mm512_store_si512(codes + row, V::low_halves(own));
      _mm512_store_si512(codes + row + 64, V::high_halves(own));
    }
    T::configure(kTileRows);
    T::template load<6>(codes, 64);
    for (uint64_t round = 0; round < rounds; ++round) {
      for (size_t row = 0; row < kTile; row += 64) {
        _mm512_store_si512(digits[round % 2] + row, digit);
      }
      T::template load<4>(digits[round % 2], 64);
      for (int i = 0; i < 4; ++i) {
        T::template dot<0, 4, 6>();
        T::template dot<1, 4, 6>();
        T::template dot<2, 4, 6>();
      }
      digit = V::add_int(digit, step);
    }
    T::template store<0>(sums[0], 64);
    T::template store<1>(sums[1], 64);
    T::template store<2>(sums[2], 64);
    T::release();
    F sum = V::zero();
    for (size_t i = 0; i < sizeof(sums); i += 64) {
      sum = V::add(sum, V::to_float(V::load_words(sums[0] + i)));
    }
    const float total = V::reduce_add(sum);
    __builtin_memcpy(sink, &total, sizeof(total));
    return rounds * 12 * kTileRows * kBlockOutputs * kTileGroup;
  }

  static constexpr TileKernels kKernels{.word = kTileGroup,
                                        .halves = false,
                                        .panel_rows = panel_rows,
                                        .matmul = matmul,
                                        .delta_chunks = nullptr,
                                        .attend_rows = nullptr,
                                        .multiply = "tdpbsud",
                                        .multiply_add_peak = multiply_add_peak};
};

}  // namespace
}  // namespace lily::cpu
