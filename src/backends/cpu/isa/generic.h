// The kernels other than products, written once over the vector type of an ISA (vectors.h), and the table of
// all.
#pragma once

#include "backends/cpu/isa/affine.h"
#include "backends/cpu/isa/vectors.h"

namespace lily::cpu {
namespace {

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
        const F x3 = V::load(args.x + row * args.stride + c);
        F sum = V::mul(w0, x0);
        sum = V::fma(w1, x1, sum);
        sum = V::fma(w2, x2, sum);
        sum = V::fma(w3, x3, sum);
        V::store(args.out + row * args.out_stride + c, silu(sum));
        x0 = x1;
        x1 = x2;
        x2 = x3;
      }
      V::store(args.state + c, x0);
      V::store(args.state + args.width + c, x1);
      V::store(args.state + 2 * args.width + c, x2);
    }
  }

  // Value columns are independent of each other: rows pass over a strip of them, two vectors wide, one after
  // the other. A state is read and written once for each row: while row r is absorbed, what the key of row
  // r + 1 finds in the new state is summed, too.
  static constexpr uint32_t kStripVectors = 2;
  static constexpr uint32_t kStrip = kStripVectors * N;
  using StripSums = F[2][kStripVectors];  // of even and of odd keys

  LILY_INLINE void clear(StripSums& sums) {
    LILY_UNROLL
    for (uint32_t i = 0; i < 2 * kStripVectors; ++i) {
      sums[i / kStripVectors][i % kStripVectors] = V::zero();
    }
  }
  LILY_INLINE void read_strip(const float* state, size_t stride, const float* k, StripSums& found) {
    clear(found);
    for (uint32_t i = 0; i < Shape::kKeyDim; i += 2) {
      LILY_UNROLL
      for (uint32_t s = 0; s < 2 * kStripVectors; ++s) {
        F& sum = found[s / kStripVectors][s % kStripVectors];
        const float* at = state + (i + s / kStripVectors) * stride + s % kStripVectors * N;
        sum = V::fma(V::set1(k[i + s / kStripVectors]), V::load(at), sum);
      }
    }
  }
  // found: of the key of this row; then, if there is a next one, of its key.
  template <bool Next>
  LILY_INLINE void absorb_row(float* state, size_t stride, const DeltaArgs& args, uint32_t row,
                              uint32_t column, StripSums& found) {
    const float* q = args.q + row * args.stride;
    const float* k = args.k + row * args.stride;
    const float* next_k = k + (Next ? args.stride : 0);
    const F decay = V::set1(args.decay[row * args.gate_stride]);
    const F beta = V::set1(args.beta[row * args.gate_stride]);
    const float* v = args.v + row * args.stride + column;
    F delta[kStripVectors];
    LILY_UNROLL
    for (uint32_t j = 0; j < kStripVectors; ++j) {
      const F m = V::mul(decay, V::add(found[0][j], found[1][j]));
      delta[j] = V::mul(beta, V::sub(V::load(v + j * N), m));
    }
    StripSums out;
    clear(out);
    clear(found);
    for (uint32_t i = 0; i < Shape::kKeyDim; i += 2) {
      LILY_UNROLL
      for (uint32_t s = 0; s < 2 * kStripVectors; ++s) {
        const uint32_t odd = s / kStripVectors;
        const uint32_t j = s % kStripVectors;
        float* at = state + (i + odd) * stride + j * N;
        const F now = V::fma(V::set1(k[i + odd]), delta[j], V::mul(decay, V::load(at)));
        V::store(at, now);
        out[odd][j] = V::fma(V::set1(q[i + odd]), now, out[odd][j]);
        if constexpr (Next) {
          found[odd][j] = V::fma(V::set1(next_k[i + odd]), now, found[odd][j]);
        }
      }
    }
    LILY_UNROLL
    for (uint32_t j = 0; j < kStripVectors; ++j) {
      V::store(args.out + row * args.out_stride + column + j * N, V::add(out[0][j], out[1][j]));
    }
  }
  static void delta_strip(float* state, size_t stride, const DeltaArgs& args, uint32_t column) {
    StripSums found;
    read_strip(state, stride, args.k, found);
    for (uint32_t row = 0; row + 1 < args.rows; ++row) {
      absorb_row<true>(state, stride, args, row, column, found);
    }
    absorb_row<false>(state, stride, args, args.rows - 1, column, found);
  }
  static void copy_strip(const float* from, size_t from_stride, float* to, size_t to_stride) {
    for (uint32_t i = 0; i < Shape::kKeyDim; ++i) {
      LILY_UNROLL
      for (uint32_t j = 0; j < kStripVectors; ++j) {
        V::store(to + i * to_stride + j * N, V::load(from + i * from_stride + j * N));
      }
    }
  }
  // Rows of a state are 512 bytes: a strip of them falls on a quarter of the sets of a first-level cache, and
  // does not fit. Many rows work on a copy.
  static void delta_rule(const DeltaArgs& args) {
    constexpr uint32_t kCopiedFrom = 4;
    alignas(64) float copy[Shape::kKeyDim * kStrip];
    for (uint32_t column = 0; column < Shape::kValueDim; column += kStrip) {
      float* state = args.state + column;
      if (args.rows < kCopiedFrom) {
        delta_strip(state, Shape::kValueDim, args, column);
      } else {
        copy_strip(state, Shape::kValueDim, copy, kStrip);
        delta_strip(copy, kStrip, args, column);
        copy_strip(copy, kStrip, state, Shape::kValueDim);
      }
    }
  }

  // ---- attention ----

  static constexpr uint32_t kDim = Shape::kHeadDim;
  struct Scores {
    alignas(64) float value[kGroupHeads][kAttendTokens];  // scores, then exp(score - largest)
  };

  // T tokens share each load of a query. What is at `ahead` will be read next: it is asked for meanwhile, in
  // the order of the tokens.
  template <uint32_t T>
  LILY_INLINE void score_tokens(const float* q, const std::byte* keys, const std::byte* ahead, uint32_t token,
                                Scores& scores) {
    constexpr size_t kRow = size_t{kDim} * 2;
    const std::byte* key = keys + token * kRow;
    F sum[T][kGroupHeads];
    LILY_UNROLL
    for (uint32_t i = 0; i < T * kGroupHeads; ++i) {
      sum[i / kGroupHeads][i % kGroupHeads] = V::zero();
    }
    for (uint32_t d = 0; d < kDim; d += N) {
      F value[T];
      LILY_UNROLL
      for (uint32_t t = 0; t < T; ++t) {
        value[t] = V::load_bf16(key + t * kRow + size_t{d} * 2);
        if (d % 32 == 0) {
          __builtin_prefetch(ahead + (token + t) * kRow + size_t{d} * 2, 0, 2);
        }
      }
      LILY_UNROLL
      for (uint32_t h = 0; h < kGroupHeads; ++h) {
        const F query = V::load(q + h * kDim + d);
        LILY_UNROLL
        for (uint32_t t = 0; t < T; ++t) {
          sum[t][h] = V::fma(query, value[t], sum[t][h]);
        }
      }
    }
    if constexpr (T == 2) {
      alignas(64) float pairs[kGroupHeads][2];
      V::reduce_pairs(sum, pairs);
      for (uint32_t h = 0; h < kGroupHeads; ++h) {
        __builtin_memcpy(scores.value[h] + token, pairs[h], sizeof(pairs[h]));
      }
    } else {
      LILY_UNROLL
      for (uint32_t i = 0; i < T * kGroupHeads; ++i) {
        scores.value[i % kGroupHeads][token + i / kGroupHeads] =
            V::reduce_add(sum[i / kGroupHeads][i % kGroupHeads]);
      }
    }
  }
  static void score_block(const float* q, const std::byte* keys, const std::byte* ahead, uint32_t tokens,
                          Scores& scores) {
    uint32_t token = 0;
    for (; token + V::kScoreTokens <= tokens; token += V::kScoreTokens) {
      score_tokens<V::kScoreTokens>(q, keys, ahead, token, scores);
    }
    for (; token < tokens; ++token) {
      score_tokens<1>(q, keys, ahead, token, scores);
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

  static void add_values(const AttendArgs& args, const std::byte* values, const std::byte* ahead,
                         uint32_t tokens, const Scores& scores) {
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
          if (first == 0) {
            __builtin_prefetch(ahead + (size_t{token} * kDim + d) * 2, 0, 2);
          }
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
      const bool last = (block + 1) * kAttendTokens >= args.tokens;
      score_block(args.q, args.keys[block], args.values[block], tokens, scores);
      for (uint32_t h = 0; h < kGroupHeads; ++h) {
        const F factor = V::set1(soften(args, h, tokens, scores));
        for (uint32_t d = 0; d < kDim && block > 0; d += N) {
          V::store(args.out + h * kDim + d, V::mul(V::load(args.out + h * kDim + d), factor));
        }
      }
      add_values(args, args.values[block], args.keys[last ? block : block + 1], tokens, scores);
    }
  }

  static uint32_t panel_rows(const InputFormat&, uint32_t) { return V::kRows; }

  static constexpr Kernels table(std::string_view name, std::string_view multiply) {
    return {.name = name,
            .word = 4,
            .halves = false,
            .panel_rows = panel_rows,
            .prepare = Affine<V>::prepare,
            .matmul = Affine<V>::matmul,
            .rms_norm = rms_norm,
            .gated_norm = gated_norm,
            .conv_silu = conv_silu,
            .delta_rule = delta_rule,
            .delta_chunks = nullptr,
            .attend = attend,
            .attend_rows = nullptr,
            .l2_normalize = l2_normalize,
            .silu_multiply = silu_multiply,
            .sigmoid_multiply = sigmoid_multiply,
            .multiply_add = multiply_add,
            .to_bf16 = to_bf16,
            .multiply = multiply,
            .multiply_add_peak = Affine<V>::multiply_add_peak};
  }
};

}  // namespace
}  // namespace lily::cpu
