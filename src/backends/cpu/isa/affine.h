// Products of quantised rows with packed matrices (backends/cpu/packed.h), written once over the vectors of
// an ISA. A block of 16 outputs is H vectors wide; the R rows of a panel share each vector of codes, and B
// blocks share each word of a row.
//
// Bounds: a product of a code and a digit is at most 255 * 128, a group has at most 128 of them, and two
// digits weigh 257 together: below 2^31, whatever the format. Every ISA computes the same integers, and adds
// the groups in order with one rounding per term (the portable one with two).
#pragma once

#include "backends/cpu/isa/vectors.h"

namespace lily::cpu {
namespace {

inline constexpr size_t kScalePair =
    2 * sizeof(float);  // of a group of a prepared row: its scale and its sum
inline constexpr size_t kTileBytes = size_t{128} << 10;  // of prepared rows, kept in the second-level cache

// Most: rows of a panel.
template <class V, uint32_t Most = V::kRows>
struct Affine {
  using F = typename V::F;
  using I = typename V::I;
  static constexpr uint32_t N = V::N;
  static constexpr uint32_t H = kBlockOutputs / N;

  // ---- quantisation of a row ----

  static void prepare(const PrepareArgs& args) {
    if (args.format.digits == kHalves) {
      prepare_halves(args);
    } else {
      args.format.digits == 1 ? prepare_groups<1>(args) : prepare_groups<2>(args);
    }
  }

  static void prepare_halves(const PrepareArgs& args) {
    const size_t word = size_t{args.panel_rows} * 64;  // from a word of the row to the next
    std::byte* out = args.panel + args.begin / kHalfWord * word + size_t{args.row} * 64;
    const float* x = args.x;
    for (uint32_t c = args.begin; c < args.end; c += kHalfWord, x += kHalfWord, out += word) {
      for (uint32_t i = 0; i < kHalfWord; i += N) {
        V::store_bf16(out + size_t{i} * 2, V::load(x + i));
      }
    }
  }

  template <uint32_t D>
  static void prepare_groups(const PrepareArgs& args) {
    constexpr float kTop = D == 1 ? 127.0F : 32512.0F;  // the first digit stays below 128
    constexpr uint32_t kMostGroup = 128;
    const uint32_t group = args.format.group;
    const uint32_t groups = (args.end - args.begin) / group;
    const size_t rows = args.panel_rows;
    const size_t word = args.word;
    std::byte* out = args.panel + size_t{args.begin} * D * rows + args.row * word;
    std::byte* scales = args.panel + (prepared_scales(args.format) + args.begin / group * kScalePair) * rows +
                        size_t{args.row} * sizeof(float);
    for (uint32_t g = 0; g < groups; ++g) {
      const float* x = args.x + size_t{g} * group;
      F largest = V::zero();
      F poison = V::zero();  // not a number if any input is not finite
      for (uint32_t i = 0; i < group; i += N) {
        const F value = V::load(x + i);
        largest = V::max(largest, V::max(value, V::sub(V::zero(), value)));
        poison = V::fma(value, V::zero(), poison);
      }
      const float top = V::reduce_max(largest);
      const bool any = top > 1e-30F;  // below, the inverse would overflow
      const F inverse = V::set1(any ? kTop / top : 0.0F);
      F sum = V::zero();  // of integers below 2^24: exact
      alignas(64) std::byte digits[kMostGroup * D];
      for (uint32_t i = 0; i < group; i += N) {
        const F whole = V::round(V::mul(V::load(x + i), inverse));
        sum = V::add(sum, whole);
        const I value = V::to_int(whole);
        if constexpr (D == 2) {
          V::store_digits(digits + i, V::first_digit(value));
        }
        V::store_digits(digits + (D - 1) * group + i, value);
      }
      if (rows == 1) {
        __builtin_memcpy(out, digits, size_t{group} * D);
        out += size_t{group} * D;
      } else if (word == 4) {
        for (uint32_t i = 0; i < group * D; i += 4, out += rows * 4) {
          __builtin_memcpy(out, digits + i, 4);
        }
      } else {
        for (uint32_t i = 0; i < group * D; i += 64, out += rows * 64) {
          __builtin_memcpy(out, digits + i, 64);
        }
      }
      const float scale = (any ? top / kTop : 0.0F) + V::reduce_add(poison);
      const float total = scale * V::reduce_add(sum);
      __builtin_memcpy(scales, &scale, sizeof(float));
      __builtin_memcpy(scales + rows * sizeof(float), &total, sizeof(float));
      scales += rows * kScalePair;
    }
  }

  // ---- products ----

  // Rows and blocks of outputs that share registers.
  struct Tile {
    const MatmulArgs* args;
    const std::byte* block;  // packed, the first of them
    const std::byte* x;      // the panel
    float* y;                // outputs of its first row
    uint32_t outputs;        // of these blocks, from here to the end of the matrix
    size_t prefetch;         // from what is read to what will be read later; 0 = nothing
    size_t next_panel;       // from the panel to the one that will be read after it; 0 = nothing
  };

  LILY_INLINE F load_scale(bool wide, const std::byte* p, uint32_t h) {
    return wide ? V::load_bytes(p + size_t{h} * N * 4) : V::load_bf16(p + size_t{h} * N * 2);
  }

  // Adds the products of one group with D digits, one after the other at `digits`, to sum[d][chain][b * H +
  // h][r].
  template <uint32_t Bits, uint32_t D, uint32_t C, uint32_t B, uint32_t R>
  LILY_INLINE void dot_digits(const PackedMatrix& m, const std::byte* codes, const std::byte* digits,
                              I (&sum)[D][C][B * H][R]) {
    constexpr size_t kWord = size_t{R} * 4;  // from a word of a row to the next
    const size_t next_digit = m.group / 4 * kWord;
    const size_t next_block = block_bytes(m);
    for (uint32_t k = 0; k < m.group; k += 16) {
      LILY_UNROLL
      for (uint32_t i = 0; i < 2; ++i) {  // 8 inputs
        I first[B * H];
        I second[B * H];
        LILY_UNROLL
        for (uint32_t j = 0; j < B * H; ++j) {
          const std::byte* code = codes + j / H * next_block + size_t{j % H} * N * 4;
          const I words = V::load_words(code);
          first[j] = Bits == 4 ? V::low_halves(words) : words;
          second[j] = Bits == 4 ? V::high_halves(words) : V::load_words(code + 64);
        }
        LILY_UNROLL
        for (uint32_t dr = 0; dr < D * R; ++dr) {
          const std::byte* x = digits + dr / R * next_digit + size_t{dr % R} * 4 + size_t{i} * 2 * kWord;
          const I even = V::splat_word(x);
          const I odd = V::splat_word(x + kWord);
          LILY_UNROLL
          for (uint32_t j = 0; j < B * H; ++j) {
            I& to = sum[dr / R][i % C][j][dr % R];
            to = Bits == 4 ? V::dot_halves(to, first[j], second[j], even, odd)
                           : V::dot_bytes(V::dot_bytes(to, first[j], even), second[j], odd);
          }
        }
        codes += Bits == 4 ? 64 : 128;
      }
      digits += 4 * kWord;
    }
  }

  // The integer products of one group: dot[b * H + h][r]. Many: one chain of additions for each, digit after
  // digit. Few: a chain for each digit and, of very few, several, or the units would wait.
  template <uint32_t Bits, uint32_t D, uint32_t B, uint32_t R>
  LILY_INLINE void dot_group(const PackedMatrix& m, const std::byte* codes, const std::byte* x,
                             I (&dot)[B * H][R]) {
    constexpr uint32_t kSums = R * B * H;
    if constexpr (kSums <= 4) {
      constexpr uint32_t kChains = D * kSums <= 4 ? 2 : 1;
      I sum[D][kChains][B * H][R];
      LILY_UNROLL
      for (uint32_t i = 0; i < D * kChains * kSums; ++i) {
        sum[i / (kChains * kSums)][i / kSums % kChains][i / R % (B * H)][i % R] = V::zero_int();
      }
      dot_digits<Bits, D, kChains, B, R>(m, codes, x, sum);
      LILY_UNROLL
      for (uint32_t i = 0; i < kSums; ++i) {
        const uint32_t j = i / R;
        const uint32_t r = i % R;
        I digit[D];
        LILY_UNROLL
        for (uint32_t d = 0; d < D; ++d) {
          digit[d] = sum[d][0][j][r];
          LILY_UNROLL
          for (uint32_t c = 1; c < kChains; ++c) {
            digit[d] = V::add_int(digit[d], sum[d][c][j][r]);
          }
        }
        dot[j][r] = D == 1 ? digit[0] : V::add_int(V::next_digit(digit[0]), digit[D - 1]);
      }
    } else {
      I sum[1][1][B * H][R];
      LILY_UNROLL
      for (uint32_t d = 0; d < D; ++d) {
        LILY_UNROLL
        for (uint32_t i = 0; i < kSums; ++i) {
          I& start = sum[0][0][i / R][i % R];
          start = d == 0 ? V::zero_int() : V::next_digit(start);
        }
        dot_digits<Bits, 1, 1, B, R>(m, codes, x + size_t{d} * m.group * R, sum);
      }
      LILY_UNROLL
      for (uint32_t i = 0; i < kSums; ++i) {
        dot[i / R][i % R] = sum[0][0][i / R][i % R];
      }
    }
  }

  template <uint32_t Bits, uint32_t D, uint32_t B, uint32_t R>
  static void tile(const Tile& t) {
    const MatmulArgs& args = *t.args;
    const PackedMatrix& m = *args.matrix;
    const bool wide = m.scale_type == DType::f32;
    const size_t scales = kBlockOutputs * scale_bytes(m.scale_type);
    const size_t bytes_of_group = group_bytes(m);
    const size_t next_block = block_bytes(m);
    const std::byte* group = t.block;
    const std::byte* x = t.x;
    const std::byte* scale = t.x + size_t{m.cols} * D * R;
    F sum[B * H][R];
    LILY_UNROLL
    for (uint32_t i = 0; i < R * B * H; ++i) {
      sum[i / R][i % R] = V::zero();
    }
    for (uint32_t g = 0; g < m.cols / m.group; ++g) {
      for (size_t i = 0; i < bytes_of_group && t.prefetch != 0; i += 64) {
        LILY_UNROLL
        for (uint32_t b = 0; b < B; ++b) {
          __builtin_prefetch(group + b * next_block + t.prefetch + i, 0, 2);
        }
      }
      for (size_t i = 0; i < size_t{m.group} * D * R && t.next_panel != 0; i += 64) {
        __builtin_prefetch(x + t.next_panel + i, 0, 2);
      }
      I dot[B * H][R];
      dot_group<Bits, D, B, R>(m, group + 2 * scales, x, dot);
      LILY_UNROLL
      for (uint32_t j = 0; j < B * H; ++j) {
        const std::byte* of_block = group + j / H * next_block;
        const F w_scale = load_scale(wide, of_block, j % H);
        const F w_bias = load_scale(wide, of_block + scales, j % H);
        LILY_UNROLL
        for (uint32_t r = 0; r < R; ++r) {
          const F factor = V::mul(w_scale, V::splat(scale + size_t{r} * 4));
          sum[j][r] = V::fma(factor, V::to_float(dot[j][r]), sum[j][r]);
          sum[j][r] = V::fma(w_bias, V::splat(scale + size_t{R + r} * 4), sum[j][r]);
        }
      }
      group += bytes_of_group;
      x += size_t{m.group} * D * R;
      scale += kScalePair * R;
    }
    LILY_UNROLL
    for (uint32_t b = 0; b < B; ++b) {
      const uint32_t outputs = smaller(kBlockOutputs, t.outputs - b * kBlockOutputs);
      LILY_UNROLL
      for (uint32_t r = 0; r < R; ++r) {
        F row[H];
        LILY_UNROLL
        for (uint32_t h = 0; h < H; ++h) {
          row[h] = sum[b * H + h][r];
        }
        store_row(row, t.y + r * args.y_stride + size_t{b} * kBlockOutputs, outputs, args.accumulate);
      }
    }
  }

  LILY_INLINE void store_row(const F (&sum)[H], float* y, uint32_t outputs, bool accumulate) {
    alignas(64) float part[kBlockOutputs];
    float* to = outputs == kBlockOutputs ? y : part;
    LILY_UNROLL
    for (uint32_t h = 0; h < H; ++h) {
      const bool add = accumulate && outputs == kBlockOutputs;
      V::store(to + h * N, add ? V::add(V::load(y + h * N), sum[h]) : sum[h]);
    }
    for (uint32_t o = 0; o < outputs && outputs < kBlockOutputs; ++o) {
      y[o] = accumulate ? y[o] + part[o] : part[o];
    }
  }

  // A panel of `rows` rows against `blocks` blocks: as many of them at a time as the registers hold.
  template <uint32_t Bits, uint32_t D, uint32_t R>
  static void panel(uint32_t rows, uint32_t blocks, Tile t) {
    if constexpr (R > Most) {
      __builtin_unreachable();
    } else if (rows != R) {
      panel<Bits, D, R + 1>(rows, blocks, t);
    } else {
      constexpr uint32_t kWide = V::blocks_of_rows(R);
      const size_t next_block = block_bytes(*t.args->matrix);
      uint32_t width = kWide;
      for (; blocks != 0; blocks -= width) {
        if (blocks >= kWide) {
          tile<Bits, D, kWide, R>(t);
        } else {
          width = 1;
          tile<Bits, D, 1, R>(t);
        }
        t.block += width * next_block;
        t.y += size_t{width} * kBlockOutputs;
        t.outputs -= width * kBlockOutputs;
      }
    }
  }

  // Panel by panel in steps that stay in the second-level cache, each against all outputs, kStripe blocks at
  // a time. The first panel to read a block from memory asks for what it will need next: few rows, which are
  // as fast as the memory, the bytes a fixed distance ahead; more rows the next stripe.
  template <uint32_t Bits, uint32_t D>
  static void product(const MatmulArgs& args) {
    constexpr uint32_t kStripe = 6;
    constexpr size_t kAhead = 8192;
    const PackedMatrix& m = *args.matrix;
    const Panels panels = panels_of(args.rows, Most);
    const size_t ahead = V::blocks_of_rows(panels.least) == 1 ? kAhead : kStripe * block_bytes(m);
    const uint32_t step =
        larger(static_cast<uint32_t>(kTileBytes / (args.x_stride * rows_of_panel(panels, 0))), 1);
    const uint32_t all_blocks = (args.end - args.begin + kBlockOutputs - 1) / kBlockOutputs;
    for (uint32_t first = 0; first < panels.count; first += step) {
      for (uint32_t block = 0; block < all_blocks; block += kStripe) {
        const uint32_t output = args.begin + block * kBlockOutputs;
        const uint32_t blocks = smaller(kStripe, all_blocks - block);
        for (uint32_t p = first; p < smaller(first + step, panels.count); ++p) {
          const uint32_t row = panel_begin(panels, p);
          panel<Bits, D, 1>(
              rows_of_panel(panels, p), blocks,
              {.args = &args,
               .block = m.data + output / kBlockOutputs * block_bytes(m),
               .x = args.x + row * args.x_stride,
               .y = args.y + row * args.y_stride + output,
               .outputs = args.end - output,
               .prefetch = p == 0 ? ahead : 0,
               .next_panel =
                   block == 0 && p + 1 < panels.count ? rows_of_panel(panels, p) * args.x_stride : 0});
        }
      }
    }
  }

  template <uint32_t Bits>
  static void product_of_bits(const MatmulArgs& args) {
    args.matrix->digits == 1 ? product<Bits, 1>(args) : product<Bits, 2>(args);
  }
  static void matmul(const MatmulArgs& args) {
    args.matrix->bits == 4 ? product_of_bits<4>(args) : product_of_bits<8>(args);
  }

  // ---- the limit of the products ----

  // Enough chains to hide the latency of the instruction. Each has codes of its own and the digits change
  // from round to round, so that no product is another's and none can be left out or moved out of the loop.
  static uint64_t multiply_add_peak(uint64_t rounds, std::byte* sink) {
    constexpr uint32_t kChains = V::kPeakChains;
    const I base = V::load_words(sink);
    I digits = V::load_words(sink + 64);
    const I step = V::load_words(sink + 128);
    I codes[kChains];
    I chain[kChains];
    LILY_UNROLL
    for (uint32_t i = 0; i < kChains; ++i) {
      alignas(64) std::byte bytes[64];
      __builtin_memset(bytes, static_cast<int>(i), sizeof(bytes));
      codes[i] = V::add_int(base, V::load_words(bytes));
      chain[i] = V::zero_int();
    }
    for (uint64_t round = 0; round < rounds; ++round) {
      LILY_UNROLL
      for (uint32_t i = 0; i < kChains; ++i) {
        chain[i] = V::dot_halves(chain[i], V::low_halves(codes[i]), V::high_halves(codes[i]), digits, digits);
      }
      digits = V::add_int(digits, step);
    }
    F sum = V::zero();
    LILY_UNROLL
    for (uint32_t i = 0; i < kChains; ++i) {
      sum = V::add(sum, V::to_float(chain[i]));
    }
    const float total = V::reduce_add(sum);
    __builtin_memcpy(sink, &total, sizeof(total));
    return rounds * kChains * N * 8;
  }
};

}  // namespace
}  // namespace lily::cpu
