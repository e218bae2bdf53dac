// Products of quantised rows with packed matrices (backends/cpu/packed.h), written once over the vectors of
// an ISA. A block of 16 outputs is H vectors wide; R rows share each vector of codes.
//
// Bounds: a product of a code and a digit is at most 255 * 128, a group has at most 128 of them, and two
// digits weigh 257 together: below 2^31, whatever the format. Every ISA computes the same integers, and adds
// the groups in order with one rounding per term (the portable one with two).
#pragma once

#include "backends/cpu/isa/vectors.h"

namespace lily::cpu {
namespace {

constexpr size_t kTileBytes = size_t{384} << 10;  // of prepared rows, kept in the second-level cache

template <class V>
struct Affine {
  using F = typename V::F;
  using I = typename V::I;
  static constexpr uint32_t N = V::N;
  static constexpr uint32_t H = kBlockOutputs / N;

  // ---- quantisation of a row ----

  template <uint32_t D>
  static void prepare_digits(const PrepareArgs& args) {
    constexpr float kTop = D == 1 ? 127.0F : 32512.0F;  // the first digit stays below 128
    const uint32_t group = args.format.group;
    const uint32_t groups = args.format.cols / group;
    std::byte* scales = args.out + prepared_scales(args.format);
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
      for (uint32_t i = 0; i < group; i += N) {
        const F whole = V::round(V::mul(V::load(x + i), inverse));
        sum = V::add(sum, whole);
        const I value = V::to_int(whole);
        std::byte* out = args.out + size_t{g} * group + i;
        if constexpr (D == 1) {
          V::store_digits(out, value);
        } else {
          V::store_digits(out, V::first_digit(value));
          V::store_digits(out + args.format.cols, value);
        }
      }
      const float scale = (any ? top / kTop : 0.0F) + V::reduce_add(poison);
      const float total = scale * V::reduce_add(sum);
      __builtin_memcpy(scales + size_t{g} * sizeof(float), &scale, sizeof(float));
      __builtin_memcpy(scales + (size_t{groups} + g) * sizeof(float), &total, sizeof(float));
    }
  }
  static void prepare(const PrepareArgs& args) {
    args.format.digits == Digits::one ? prepare_digits<1>(args) : prepare_digits<2>(args);
  }

  // ---- products ----

  struct Tile {
    const MatmulArgs* args;
    const std::byte* block;  // packed
    const std::byte* x;      // first prepared row
    float* y;                // its outputs of this block
    uint32_t groups;
    uint32_t outputs;  // of the block
  };

  template <DType Type>
  LILY_INLINE F load_scale(const std::byte* p, uint32_t h) {
    if constexpr (Type == DType::f32) {
      return V::load_bytes(p + size_t{h} * N * 4);
    } else {
      return V::load_bf16(p + size_t{h} * N * 2);
    }
  }

  // Chains of additions that one product is spread over, where few rows would leave the units waiting.
  template <uint32_t R>
  static constexpr uint32_t kChains = R* H <= 4 ? 2 : 1;

  // The integer products of one group: dot[r][h].
  template <uint32_t Bits, uint32_t D, uint32_t R>
  LILY_INLINE void dot_group(const std::byte* codes, const std::byte* x, const MatmulArgs& args,
                             I (&dot)[R][H]) {
    constexpr uint32_t C = kChains<R>;
    constexpr uint32_t kInputs = 32 / Bits;  // of a vector
    const uint32_t group = args.matrix->group;
    I sum[C][D][R][H];
    LILY_UNROLL
    for (uint32_t i = 0; i < C * D * R * H; ++i) {
      sum[i / (D * R * H)][i / (R * H) % D][i / H % R][i % H] = V::zero_int();
    }
    for (uint32_t k = 0; k < group; k += 2 * kInputs) {
      LILY_UNROLL
      for (uint32_t step = 0; step < 2; ++step) {
        I code[H];
        LILY_UNROLL
        for (uint32_t h = 0; h < H; ++h) {
          code[h] = V::load_words(codes + size_t{h} * N * 4);
        }
        LILY_UNROLL
        for (uint32_t i = 0; i < D * R; ++i) {
          const uint32_t d = i / R;
          const uint32_t r = i % R;
          const std::byte* input = x + r * args.x_stride + d * args.matrix->cols + k + step * kInputs;
          LILY_UNROLL
          for (uint32_t h = 0; h < H; ++h) {
            I& to = sum[step % C][d][r][h];
            if constexpr (Bits == 4) {
              to = V::dot_halves(to, code[h], V::splat_word(input), V::splat_word(input + 4));
            } else {
              to = V::dot_bytes(to, code[h], V::splat_word(input));
            }
          }
        }
        codes += 64;
      }
    }
    LILY_UNROLL
    for (uint32_t i = 0; i < R * H; ++i) {
      const uint32_t r = i / H;
      const uint32_t h = i % H;
      I digit[D];
      LILY_UNROLL
      for (uint32_t d = 0; d < D; ++d) {
        digit[d] = C == 2 ? V::add_int(sum[0][d][r][h], sum[C - 1][d][r][h]) : sum[0][d][r][h];
      }
      dot[r][h] = D == 2 ? V::join_digits(digit[0], digit[D - 1]) : digit[0];
    }
  }

  template <uint32_t Bits, DType Type, uint32_t D, uint32_t R>
  static void tile(const Tile& t) {
    const MatmulArgs& args = *t.args;
    const PackedMatrix& m = *args.matrix;
    constexpr size_t kScales = kBlockOutputs * (Type == DType::f32 ? 4 : 2);
    const std::byte* group = t.block;
    const std::byte* x = t.x;
    const std::byte* scale = t.x + size_t{m.cols} * D;
    F sum[R][H];
    LILY_UNROLL
    for (uint32_t i = 0; i < R * H; ++i) {
      sum[i / H][i % H] = V::zero();
    }
    for (uint32_t g = 0; g < t.groups; ++g) {
      I dot[R][H];
      dot_group<Bits, D, R>(group + 2 * kScales, x, args, dot);
      LILY_UNROLL
      for (uint32_t h = 0; h < H; ++h) {
        const F w_scale = load_scale<Type>(group, h);
        const F w_bias = load_scale<Type>(group + kScales, h);
        LILY_UNROLL
        for (uint32_t r = 0; r < R; ++r) {
          const std::byte* of_row = scale + r * args.x_stride;
          const F factor = V::mul(w_scale, V::splat(of_row));
          sum[r][h] = V::fma(factor, V::to_float(dot[r][h]), sum[r][h]);
          sum[r][h] = V::fma(w_bias, V::splat(of_row + t.groups * sizeof(float)), sum[r][h]);
        }
      }
      group += 2 * kScales + size_t{m.group} * Bits * kBlockOutputs / 8;
      x += m.group;
      scale += sizeof(float);
    }
    LILY_UNROLL
    for (uint32_t r = 0; r < R; ++r) {
      store_row(sum[r], t.y + r * args.y_stride, t.outputs, args.accumulate);
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

  // Rows of one block: as many at a time as the registers hold.
  template <uint32_t Bits, DType Type, uint32_t D, uint32_t R>
  static void rows_of(Tile& t, uint32_t& rows) {
    if constexpr (R <= V::kRows / D) {
      for (; rows >= R; rows -= R) {
        tile<Bits, Type, D, R>(t);
        t.x += R * t.args->x_stride;
        t.y += R * t.args->y_stride;
      }
    }
  }

  template <uint32_t Bits, DType Type, uint32_t D>
  static void product(const MatmulArgs& args) {
    const PackedMatrix& m = *args.matrix;
    const auto step = static_cast<uint32_t>(kTileBytes / args.x_stride) / 12 * 12;
    for (uint32_t row = 0; row < args.rows; row += step) {
      for (uint32_t output = args.begin; output < args.end; output += kBlockOutputs) {
        Tile t{.args = &args,
               .block = m.data + output / kBlockOutputs * block_bytes(m),
               .x = args.x + row * args.x_stride,
               .y = args.y + row * args.y_stride + output,
               .groups = m.cols / m.group,
               .outputs = smaller(kBlockOutputs, args.end - output)};
        uint32_t rows = smaller(step, args.rows - row);
        rows_of<Bits, Type, D, 12>(t, rows);
        rows_of<Bits, Type, D, 8>(t, rows);
        rows_of<Bits, Type, D, 6>(t, rows);
        rows_of<Bits, Type, D, 4>(t, rows);
        rows_of<Bits, Type, D, 3>(t, rows);
        rows_of<Bits, Type, D, 2>(t, rows);
        rows_of<Bits, Type, D, 1>(t, rows);
      }
    }
  }

  template <uint32_t Bits, DType Type>
  static void product_of(const MatmulArgs& args) {
    args.matrix->digits == Digits::one ? product<Bits, Type, 1>(args) : product<Bits, Type, 2>(args);
  }
  static void matmul(const MatmulArgs& args) {
    const bool wide = args.matrix->scale_type == DType::f32;
    if (args.matrix->bits == 4) {
      wide ? product_of<4, DType::f32>(args) : product_of<4, DType::bf16>(args);
    } else {
      wide ? product_of<8, DType::f32>(args) : product_of<8, DType::bf16>(args);
    }
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
        chain[i] = V::dot_halves(chain[i], codes[i], digits, digits);
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
