// The kernels, written once over a vector type V of V::N floats. Each ISA file includes this with its own V
// and is the only one compiled for its instruction set. Everything lies in an unnamed namespace, and nothing
// inline of other headers is called: a function shared between files could be the copy compiled for a newer
// processor than the one it runs on.
//
// Matrices: a row of codes is read as vectors of V::N u32 words. Word l holds E = 32/bits codes; code k of
// all words of a vector is isolated in place (its value times 2^(bits*k), exact in float), and the input lies
// transposed to match: prepared[vector][k][l] = x[E*(vector*N + l) + k] * 2^(-bits*k), exact as well. The
// last code is shifted down instead, so that it cannot reach the sign. So a vector costs one AND, one
// conversion and one FMA per V::N weights. After the vectors come the sums of the input over each group, for
// the bias.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernels.h"

namespace lily::cpu {
namespace {

#define LILY_UNROLL _Pragma("GCC unroll 16")
#define LILY_INLINE __attribute__((always_inline)) static inline

constexpr uint32_t kSumPad = 16;  // group sums and scales are padded with zeros to a multiple of this
constexpr uint32_t kMaxGroups = kMaxCols / 32;
constexpr uint32_t kTileOutputs = 4;  // outputs whose scales are expanded at once
constexpr uint32_t kTileRows = 48;    // rows of a many-row product that stay in the second-level cache

constexpr uint32_t round_up(uint32_t value, uint32_t step) { return (value + step - 1) / step * step; }
constexpr uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

// Scales and biases of a few outputs as floats.
struct Expanded {
  alignas(64) float scale[kTileOutputs][kMaxGroups + kSumPad];
  alignas(64) float bias[kTileOutputs][kMaxGroups + kSumPad];
};

struct Tile {
  const MatmulArgs* args;
  const Expanded* expanded;
  uint32_t first;      // output that row 0 of `expanded` belongs to
  uint32_t output;     // first output of this tile
  uint32_t row;        // first row of this tile
  uint32_t words;      // u32 words of a row of codes
  uint32_t sums;       // padded number of groups
  size_t sums_offset;  // floats from the start of a prepared row to its sums
};

template <class V>
struct Generic {
  using F = typename V::F;
  using I = typename V::I;
  static constexpr uint32_t N = V::N;

  // ---- elementary functions ----

  // Relative error under 2e-7. A NaN stays one (V::max and V::min return their second argument then).
  LILY_INLINE F exp(F x) {
    x = V::min(V::set1(88.0F), V::max(V::set1(-86.5F), x));
    const F n = V::round(V::mul(x, V::set1(1.44269504F)));
    F r = V::fma(n, V::set1(-0.693359375F), x);
    r = V::fma(n, V::set1(2.12194440e-4F), r);
    F p = V::set1(1.9875691500e-4F);
    p = V::fma(p, r, V::set1(1.3981999507e-3F));
    p = V::fma(p, r, V::set1(8.3334519073e-3F));
    p = V::fma(p, r, V::set1(4.1665795894e-2F));
    p = V::fma(p, r, V::set1(1.6666665459e-1F));
    p = V::fma(p, r, V::set1(5.0000001201e-1F));
    p = V::add(V::fma(p, V::mul(r, r), r), V::set1(1.0F));
    return V::times_power_of_two(p, n);
  }
  LILY_INLINE F sigmoid(F x) {
    return V::div(V::set1(1.0F), V::add(V::set1(1.0F), exp(V::sub(V::zero(), x))));
  }
  LILY_INLINE F silu(F x) { return V::div(x, V::add(V::set1(1.0F), exp(V::sub(V::zero(), x)))); }

  LILY_INLINE float sum_of_squares(const float* x, uint32_t count) {
    F sum = V::zero();
    for (uint32_t i = 0; i < count; i += N) {
      const F value = V::load(x + i);
      sum = V::fma(value, value, sum);
    }
    return V::reduce_add(sum);
  }

  // ---- affine matrices ----

  static uint32_t vectors(const InputFormat& f) { return round_up(f.cols * f.bits / 32, N) / N; }
  static size_t sums_offset(const InputFormat& f) { return size_t{vectors(f)} * N * (32 / f.bits); }
  static size_t prepared_floats(const InputFormat& f) {
    return sums_offset(f) + round_up(f.cols / f.group, kSumPad);
  }

  template <uint32_t Bits>
  static void transpose(const PrepareArgs& args) {
    constexpr uint32_t E = 32 / Bits;
    float factor[E];
    for (uint32_t k = 0; k < E; ++k) {
      factor[k] = k == E - 1 ? 1.0F : 1.0F / static_cast<float>(uint64_t{1} << (Bits * k));
    }
    const uint32_t words = args.format.cols / E;
    const uint32_t padded = vectors(args.format) * N;
    for (uint32_t word = 0; word < padded; ++word) {
      float* out = args.out + size_t{word / N} * N * E + word % N;
      LILY_UNROLL
      for (uint32_t k = 0; k < E; ++k) {
        out[k * N] = word < words ? args.x[size_t{word} * E + k] * factor[k] : 0.0F;
      }
    }
  }

  static void prepare(const PrepareArgs& args) {
    if (args.format.bits == 4) {
      transpose<4>(args);
    } else {
      transpose<8>(args);
    }
    const uint32_t groups = args.format.cols / args.format.group;
    float* sums = args.out + sums_offset(args.format);
    for (uint32_t g = 0; g < round_up(groups, kSumPad); ++g) {
      F sum = V::zero();
      if (g < groups) {
        const float* x = args.x + size_t{g} * args.format.group;
        for (uint32_t i = 0; i < args.format.group; i += N) {
          sum = V::add(sum, V::load(x + i));
        }
      }
      sums[g] = V::reduce_add(sum);
    }
  }

  // Scales or biases of one row to floats, padded with zeros. Never reads past the last one.
  static void expand(const std::byte* from, DType type, uint32_t groups, float* out) {
    const size_t size = type == DType::f32 ? 4 : 2;
    for (uint32_t g = 0; g < round_up(groups, kSumPad); g += N) {
      std::byte padded[N * 4] = {};
      const std::byte* source = from + g * size;
      if (g + N > groups) {
        __builtin_memcpy(padded, source, g < groups ? (groups - g) * size : 0);
        source = padded;
      }
      F value = V::zero();
      if (type == DType::bf16) {
        value = V::load_bf16(source);
      } else if (type == DType::f16) {
        value = V::load_f16(source);
      } else {
        value = V::load_bytes(source);
      }
      V::store(out + g, value);
    }
  }

  static void expand_outputs(const AffineMatrix& m, uint32_t first, uint32_t count, Expanded& out) {
    const uint32_t groups = m.cols / m.group;
    const size_t row_bytes = size_t{groups} * (m.scale_type == DType::f32 ? 4 : 2);
    for (uint32_t o = 0; o < count; ++o) {
      expand(m.scales + (first + o) * row_bytes, m.scale_type, groups, out.scale[o]);
      expand(m.biases + (first + o) * row_bytes, m.scale_type, groups, out.bias[o]);
    }
  }

  // One vector of codes of O outputs against R rows.
  template <uint32_t Bits, uint32_t Group, uint32_t O, uint32_t R>
  LILY_INLINE void step(const I (&codes)[O], const float* const (&x)[R], const float* const (&scale)[O],
                        F (&sum)[O][R], uint32_t vector) {
    constexpr uint32_t E = 32 / Bits;
    constexpr uint32_t kLanes = Group / E;  // lanes that share a scale; may be more than N
    F part[O][R];
    LILY_UNROLL
    for (uint32_t k = 0; k < E; ++k) {
      F input[R];
      LILY_UNROLL
      for (uint32_t r = 0; r < R; ++r) {
        input[r] = V::load(x[r] + (size_t{vector} * E + k) * N);
      }
      LILY_UNROLL
      for (uint32_t o = 0; o < O; ++o) {
        const F code = V::to_float(k == E - 1 ? V::template last_code<Bits>(codes[o])
                                              : V::and_bits(codes[o], ((1U << Bits) - 1U) << (Bits * k)));
        LILY_UNROLL
        for (uint32_t r = 0; r < R; ++r) {
          part[o][r] = k == 0 ? V::mul(code, input[r]) : V::fma(code, input[r], part[o][r]);
        }
      }
    }
    LILY_UNROLL
    for (uint32_t o = 0; o < O; ++o) {
      const F factor = V::template lanes<kLanes>(scale[o], vector);
      LILY_UNROLL
      for (uint32_t r = 0; r < R; ++r) {
        sum[o][r] = V::fma(factor, part[o][r], sum[o][r]);
      }
    }
  }

  template <uint32_t Bits, uint32_t Group, uint32_t O, uint32_t R>
  static void tile(const Tile& t) {
    const MatmulArgs& args = *t.args;
    const size_t row_bytes = size_t{t.words} * 4;
    const std::byte* codes[O];
    const float* scale[O];
    const float* x[R];
    F sum[O][R];
    LILY_UNROLL
    for (uint32_t r = 0; r < R; ++r) {
      const uint32_t row = t.row + r;
      x[r] = args.x + (args.x_rows != nullptr ? args.x_rows[row] : row) * args.x_stride;
    }
    LILY_UNROLL
    for (uint32_t o = 0; o < O; ++o) {
      codes[o] = args.matrix->codes + (t.output + o) * row_bytes;
      scale[o] = t.expanded->scale[t.output - t.first + o];
      LILY_UNROLL
      for (uint32_t r = 0; r < R; ++r) {
        const float* bias = t.expanded->bias[t.output - t.first + o];
        sum[o][r] = V::zero();
        for (uint32_t g = 0; g < t.sums; g += N) {
          sum[o][r] = V::fma(V::load(bias + g), V::load(x[r] + t.sums_offset + g), sum[o][r]);
        }
      }
    }
    const uint32_t full = t.words / N;
    for (uint32_t vector = 0; vector < full; ++vector) {
      I word[O];
      LILY_UNROLL
      for (uint32_t o = 0; o < O; ++o) {
        word[o] = V::load_words(codes[o] + size_t{vector} * N * 4);
        if (R == 1) {  // reading from memory: the next outputs' codes follow these
          __builtin_prefetch(codes[o] + size_t{vector} * N * 4 + O * row_bytes);
        }
      }
      step<Bits, Group, O, R>(word, x, scale, sum, vector);
    }
    if (full * N < t.words) {
      I word[O];
      LILY_UNROLL
      for (uint32_t o = 0; o < O; ++o) {
        word[o] = V::load_some_words(codes[o] + size_t{full} * N * 4, t.words - full * N);
      }
      step<Bits, Group, O, R>(word, x, scale, sum, full);
    }
    LILY_UNROLL
    for (uint32_t r = 0; r < R; ++r) {
      float* y = args.y + (t.row + r) * args.y_stride + t.output;
      LILY_UNROLL
      for (uint32_t o = 0; o < O; ++o) {
        const float value = V::reduce_add(sum[o][r]);
        y[o] = args.accumulate ? y[o] + value : value;
      }
    }
  }

  // Rows [begin, end) against O outputs, V::kRows at a time.
  template <uint32_t Bits, uint32_t Group, uint32_t O>
  static void rows_of(Tile t, uint32_t begin, uint32_t end) {
    for (t.row = begin; t.row + V::kRows <= end; t.row += V::kRows) {
      tile<Bits, Group, O, V::kRows>(t);
    }
    if constexpr (V::kRows > 2) {
      for (; t.row + 2 <= end; t.row += 2) {
        tile<Bits, Group, O, 2>(t);
      }
    }
    for (; t.row < end; ++t.row) {
      tile<Bits, Group, O, 1>(t);
    }
  }

  // Outputs [first, first + count), count <= kTileOutputs, of all rows of [begin, end).
  template <uint32_t Bits, uint32_t Group>
  static void outputs_of(Tile t, uint32_t count, uint32_t begin, uint32_t end) {
    t.output = t.first;
    if (count == kTileOutputs && end - begin == 1) {
      t.row = begin;
      tile<Bits, Group, kTileOutputs, 1>(t);
      return;
    }
    if (count == kTileOutputs) {
      for (; t.output < t.first + count; t.output += V::kOutputs) {
        rows_of<Bits, Group, V::kOutputs>(t, begin, end);
      }
      return;
    }
    for (; t.output < t.first + count; ++t.output) {
      rows_of<Bits, Group, 1>(t, begin, end);
    }
  }

  template <uint32_t Bits, uint32_t Group>
  static void product(const MatmulArgs& args) {
    const AffineMatrix& m = *args.matrix;
    const InputFormat format{m.cols, Bits, Group};
    Expanded expanded;
    Tile t{.args = &args,
           .expanded = &expanded,
           .first = 0,
           .output = 0,
           .row = 0,
           .words = m.cols * Bits / 32,
           .sums = round_up(m.cols / Group, kSumPad),
           .sums_offset = sums_offset(format)};
    for (uint32_t row = 0; row < args.rows; row += kTileRows) {
      const uint32_t row_end = smaller(row + kTileRows, args.rows);
      for (t.first = args.begin; t.first < args.end; t.first += kTileOutputs) {
        const uint32_t count = smaller(kTileOutputs, args.end - t.first);
        expand_outputs(m, t.first, count, expanded);
        outputs_of<Bits, Group>(t, count, row, row_end);
      }
    }
  }

  static void matmul(const MatmulArgs& args) {
    const bool four = args.matrix->bits == 4;
    switch (args.matrix->group) {
      case 32:
        four ? product<4, 32>(args) : product<8, 32>(args);
        break;
      case 64:
        four ? product<4, 64>(args) : product<8, 64>(args);
        break;
      default:
        four ? product<4, 128>(args) : product<8, 128>(args);
        break;
    }
  }

  // ---- elementwise ----

  static void scale_by(const float* x, const float* weight, float factor, float* out, uint32_t count) {
    for (uint32_t i = 0; i < count; i += N) {
      V::store(out + i, V::mul(V::mul(V::load(x + i), V::set1(factor)), V::load(weight + i)));
    }
  }
  static void rms_norm(const NormArgs& args) {
    const float mean = sum_of_squares(args.x, args.count) / static_cast<float>(args.count);
    const float factor = 1.0F / __builtin_sqrtf(mean + Shape::kNormEps);
    scale_by(args.x, args.weight, factor, args.out, args.count);
  }
  static void gated_norm(const GatedNormArgs& args) {
    constexpr uint32_t kCount = Shape::kValueDim;
    const float mean = sum_of_squares(args.x, kCount) / static_cast<float>(kCount);
    const F factor = V::set1(1.0F / __builtin_sqrtf(mean + Shape::kNormEps));
    for (uint32_t i = 0; i < kCount; i += N) {
      const F normed = V::mul(V::mul(V::load(args.x + i), factor), V::load(args.weight + i));
      V::store(args.out + i, V::mul(normed, silu(V::load(args.z + i))));
    }
  }
  static void l2_normalize(float* x, uint32_t count, float scale) {
    const F factor = V::set1(scale / __builtin_sqrtf(sum_of_squares(x, count) + 1e-6F));
    for (uint32_t i = 0; i < count; i += N) {
      V::store(x + i, V::mul(V::load(x + i), factor));
    }
  }
  static void silu_multiply(float* gate, const float* up, uint32_t count) {
    for (uint32_t i = 0; i < count; i += N) {
      V::store(gate + i, V::mul(silu(V::load(gate + i)), V::load(up + i)));
    }
  }
  static void sigmoid_multiply(float* x, const float* gate, uint32_t count) {
    for (uint32_t i = 0; i < count; i += N) {
      V::store(x + i, V::mul(V::load(x + i), sigmoid(V::load(gate + i))));
    }
  }
  static void multiply_add(float* y, const float* x, float factor, uint32_t count) {
    for (uint32_t i = 0; i < count; i += N) {
      V::store(y + i, V::fma(V::load(x + i), V::set1(factor), V::load(y + i)));
    }
  }
  static void to_bf16(const float* x, std::byte* out, uint32_t count) {
    for (uint32_t i = 0; i < count; i += N) {
      V::store_bf16(out + size_t{i} * 2, V::load(x + i));
    }
  }

  // ---- gated delta net ----

  static void conv_silu(const ConvArgs& args) {
    for (uint32_t c = 0; c < args.channels; c += N) {
      const F w0 = V::load(args.weight + c);
      const F w1 = V::load(args.weight + args.width + c);
      const F w2 = V::load(args.weight + 2 * args.width + c);
      const F w3 = V::load(args.weight + 3 * args.width + c);
      F x0 = V::load(args.state + c);
      F x1 = V::load(args.state + args.width + c);
      F x2 = V::load(args.state + 2 * args.width + c);
      for (uint32_t row = 0; row < args.rows; ++row) {
        float* x = args.x + row * args.stride + c;
        const F x3 = V::load(x);
        F sum = V::mul(w0, x0);
        sum = V::fma(w1, x1, sum);
        sum = V::fma(w2, x2, sum);
        sum = V::fma(w3, x3, sum);
        V::store(x, silu(sum));
        x0 = x1;
        x1 = x2;
        x2 = x3;
      }
      V::store(args.state + c, x0);
      V::store(args.state + args.width + c, x1);
      V::store(args.state + 2 * args.width + c, x2);
    }
  }

  // One row on one strip of value columns: 32 of them, so that the strip (16 KB) stays in the first-level
  // cache between the reading of m and the update.
  static constexpr uint32_t kStrip = 32;
  static void delta_strip(float* state, const DeltaArgs& args, uint32_t row, uint32_t column) {
    constexpr uint32_t kVectors = kStrip / N;
    const float* q = args.q + row * args.stride;
    const float* k = args.k + row * args.stride;
    const F decay = V::set1(args.decay[row * args.gate_stride]);
    const F beta = V::set1(args.beta[row * args.gate_stride]);
    F even[kVectors];
    F odd[kVectors];
    LILY_UNROLL
    for (uint32_t j = 0; j < kVectors; ++j) {
      even[j] = odd[j] = V::zero();
    }
    for (uint32_t i = 0; i < Shape::kKeyDim; i += 2) {
      const float* s = state + size_t{i} * Shape::kValueDim;
      LILY_UNROLL
      for (uint32_t j = 0; j < kVectors; ++j) {
        even[j] = V::fma(V::set1(k[i]), V::load(s + j * N), even[j]);
        odd[j] = V::fma(V::set1(k[i + 1]), V::load(s + Shape::kValueDim + j * N), odd[j]);
      }
    }
    F delta[kVectors];
    F out_even[kVectors];
    F out_odd[kVectors];
    LILY_UNROLL
    for (uint32_t j = 0; j < kVectors; ++j) {
      const F m = V::mul(decay, V::add(even[j], odd[j]));
      delta[j] = V::mul(beta, V::sub(V::load(args.v + row * args.stride + column + j * N), m));
      out_even[j] = out_odd[j] = V::zero();
    }
    for (uint32_t i = 0; i < Shape::kKeyDim; i += 2) {
      float* s = state + size_t{i} * Shape::kValueDim;
      LILY_UNROLL
      for (uint32_t j = 0; j < kVectors; ++j) {
        float* s0 = s + j * N;
        float* s1 = s0 + Shape::kValueDim;
        const F new0 = V::fma(V::set1(k[i]), delta[j], V::mul(decay, V::load(s0)));
        const F new1 = V::fma(V::set1(k[i + 1]), delta[j], V::mul(decay, V::load(s1)));
        V::store(s0, new0);
        V::store(s1, new1);
        out_even[j] = V::fma(V::set1(q[i]), new0, out_even[j]);
        out_odd[j] = V::fma(V::set1(q[i + 1]), new1, out_odd[j]);
      }
    }
    LILY_UNROLL
    for (uint32_t j = 0; j < kVectors; ++j) {
      V::store(args.out + row * args.out_stride + column + j * N, V::add(out_even[j], out_odd[j]));
    }
  }
  static void delta_rule(const DeltaArgs& args) {
    for (uint32_t column = 0; column < Shape::kValueDim; column += kStrip) {
      for (uint32_t row = 0; row < args.rows; ++row) {
        delta_strip(args.state + column, args, row, column);
      }
    }
  }

  // ---- attention ----

  static constexpr uint32_t kDim = Shape::kHeadDim;
  struct Scores {
    alignas(64) float value[kGroupHeads][kAttendTokens];  // scores, then exp(score - largest)
  };

  static void score_block(const float* q, const std::byte* keys, uint32_t tokens, Scores& scores) {
    for (uint32_t token = 0; token < tokens; ++token) {
      const std::byte* key = keys + size_t{token} * kDim * 2;
      F sum[kGroupHeads];
      LILY_UNROLL
      for (uint32_t h = 0; h < kGroupHeads; ++h) {
        sum[h] = V::zero();
      }
      for (uint32_t d = 0; d < kDim; d += N) {
        const F value = V::load_bf16(key + size_t{d} * 2);
        LILY_UNROLL
        for (uint32_t h = 0; h < kGroupHeads; ++h) {
          sum[h] = V::fma(V::load(q + h * kDim + d), value, sum[h]);
        }
      }
      LILY_UNROLL
      for (uint32_t h = 0; h < kGroupHeads; ++h) {
        scores.value[h][token] = V::reduce_add(sum[h]);
      }
    }
  }

  // Turns the scores of head h into weights; returns what the sums so far must be multiplied by.
  static float soften(const AttendArgs& args, uint32_t h, uint32_t tokens, Scores& scores) {
    float* score = scores.value[h];
    for (uint32_t token = tokens; token < kAttendTokens; ++token) {
      score[token] = score[0];
    }
    F largest = V::load(score);
    for (uint32_t token = N; token < kAttendTokens; token += N) {
      largest = V::max(largest, V::load(score + token));
    }
    const float before = args.largest[h];
    const float block_largest = V::reduce_max(largest);
    const float now = before > block_largest ? before : block_largest;
    for (uint32_t token = 0; token < kAttendTokens; token += N) {
      V::store(score + token, exp(V::sub(V::load(score + token), V::set1(now))));
    }
    for (uint32_t token = tokens; token < kAttendTokens; ++token) {
      score[token] = 0.0F;
    }
    F total = V::zero();
    for (uint32_t token = 0; token < kAttendTokens; token += N) {
      total = V::add(total, V::load(score + token));
    }
    alignas(64) float lanes[N];
    V::store(lanes, exp(V::set1(before - now)));
    args.largest[h] = now;
    args.total[h] = args.total[h] * lanes[0] + V::reduce_add(total);
    return lanes[0];
  }

  static void add_values(const AttendArgs& args, const std::byte* values, uint32_t tokens,
                         const Scores& scores) {
    constexpr uint32_t kVectors = V::kValueVectors;
    for (uint32_t d = 0; d < kDim; d += kVectors * N) {
      for (uint32_t first = 0; first < kGroupHeads; first += V::kValueHeads) {
        F sum[V::kValueHeads][kVectors];
        LILY_UNROLL
        for (uint32_t h = 0; h < V::kValueHeads; ++h) {
          LILY_UNROLL
          for (uint32_t j = 0; j < kVectors; ++j) {
            sum[h][j] = V::load(args.out + (first + h) * kDim + d + j * N);
          }
        }
        for (uint32_t token = 0; token < tokens; ++token) {
          F value[kVectors];
          LILY_UNROLL
          for (uint32_t j = 0; j < kVectors; ++j) {
            value[j] = V::load_bf16(values + (size_t{token} * kDim + d + j * N) * 2);
          }
          LILY_UNROLL
          for (uint32_t h = 0; h < V::kValueHeads; ++h) {
            const F weight = V::set1(scores.value[first + h][token]);
            LILY_UNROLL
            for (uint32_t j = 0; j < kVectors; ++j) {
              sum[h][j] = V::fma(weight, value[j], sum[h][j]);
            }
          }
        }
        LILY_UNROLL
        for (uint32_t h = 0; h < V::kValueHeads; ++h) {
          LILY_UNROLL
          for (uint32_t j = 0; j < kVectors; ++j) {
            V::store(args.out + (first + h) * kDim + d + j * N, sum[h][j]);
          }
        }
      }
    }
  }

  static void attend(const AttendArgs& args) {
    Scores scores;
    for (uint32_t h = 0; h < kGroupHeads; ++h) {
      args.largest[h] = -__builtin_huge_valf();
      args.total[h] = 0.0F;
    }
    for (uint32_t i = 0; i < kGroupHeads * kDim; i += N) {
      V::store(args.out + i, V::zero());
    }
    for (uint32_t block = 0; block * kAttendTokens < args.tokens; ++block) {
      const uint32_t tokens = smaller(kAttendTokens, args.tokens - block * kAttendTokens);
      score_block(args.q, args.keys[block], tokens, scores);
      for (uint32_t h = 0; h < kGroupHeads; ++h) {
        const F factor = V::set1(soften(args, h, tokens, scores));
        for (uint32_t d = 0; d < kDim && block > 0; d += N) {
          V::store(args.out + h * kDim + d, V::mul(V::load(args.out + h * kDim + d), factor));
        }
      }
      add_values(args, args.values[block], tokens, scores);
    }
  }

  // ---- the limit of the products ----

  // Enough chains to hide the latency of the instruction. x = x / 2 + c stays finite.
  static uint64_t multiply_add_peak(uint64_t rounds, float* sink) {
    constexpr uint32_t kChains = V::kPeakChains;
    const F factor = V::set1(0.5F);
    const F addend = V::set1(*sink);
    F chain[kChains];
    LILY_UNROLL
    for (uint32_t i = 0; i < kChains; ++i) {
      chain[i] = V::set1(static_cast<float>(i));
    }
    for (uint64_t round = 0; round < rounds; ++round) {
      LILY_UNROLL
      for (uint32_t i = 0; i < kChains; ++i) {
        chain[i] = V::fma(chain[i], factor, addend);
      }
    }
    F sum = V::zero();
    LILY_UNROLL
    for (uint32_t i = 0; i < kChains; ++i) {
      sum = V::add(sum, chain[i]);
    }
    *sink = V::reduce_add(sum);
    return rounds * kChains * N;
  }

  static constexpr Kernels table(std::string_view name, std::string_view multiply) {
    return {.name = name,
            .prepared_floats = prepared_floats,
            .prepare = prepare,
            .matmul = matmul,
            .rms_norm = rms_norm,
            .gated_norm = gated_norm,
            .conv_silu = conv_silu,
            .delta_rule = delta_rule,
            .attend = attend,
            .l2_normalize = l2_normalize,
            .silu_multiply = silu_multiply,
            .sigmoid_multiply = sigmoid_multiply,
            .multiply_add = multiply_add,
            .to_bf16 = to_bf16,
            .multiply = multiply,
            .multiply_add_peak = multiply_add_peak};
  }
};

}  // namespace
}  // namespace lily::cpu
