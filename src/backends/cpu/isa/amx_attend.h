// Attention of many rows of one sequence in tiles of bf16, written once over the instructions on tiles
// (tiles.h). 16 queries are a column: the heads of two rows. Keys and values are those of one partition; its
// scores are all there before the softmax, which rounds its weights to bf16. Queries are rounded, too.
//
// A row sees nothing of the others: what is behind its last token has a weight of zero.
#pragma once

#include "backends/cpu/isa/avx512vnni.h"
#include "backends/cpu/isa/generic.h"
#include "backends/cpu/isa/tiles.h"

namespace lily::cpu {
namespace {

template <class T>
struct AmxAttend {
  using V = Avx512Vnni;
  using F = V::F;
  using I = V::I;

  static constexpr uint32_t kDim = Shape::kHeadDim;
  static constexpr uint32_t kColumns = 4;  // that share each tile of keys and of values
  static constexpr uint32_t kColumnRows = kTileRows / kGroupHeads;
  static constexpr uint32_t kSlices = kDim / 32;  // of a score's sum
  static constexpr uint32_t kStrips = kDim / kTileRows;
  static constexpr uint32_t kTokens = kPartitionBlocks * kAttendTokens;
  static constexpr uint32_t kSteps = kTokens / 32;  // of a weighted sum
  static_assert(kColumnRows == 2);

  struct Workspace {
    alignas(64) std::byte values[kSteps][kStrips][kTile];  // pairs of tokens, 16 values
    alignas(64) std::byte queries[kColumns][kSlices][kTile];
    alignas(64) float scores[kColumns][kTokens][kTileRows];
    alignas(64) std::byte weights[kColumns][kSteps][kTile];  // queries, 32 tokens
    alignas(64) float out[kColumns][kTileRows][kDim];
  };

  static uint32_t tokens_of(const AttendRowsArgs& args, uint32_t row) {
    return smaller(args.tokens + row, args.most);
  }

  // Values of the first `tokens` tokens, behind them zeros, to the end of a step.
  static void lay_out_values(const AttendRowsArgs& args, uint32_t tokens, Workspace& at) {
    const I first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const I second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const auto row = [&](uint32_t token) {
      return args.values[token / kAttendTokens] + size_t{token % kAttendTokens} * kDim * 2;
    };
    for (uint32_t token = 0; token < (tokens + 31) / 32 * 32; token += 2) {
      for (uint32_t strip = 0; strip < kStrips; strip += 2) {
        const size_t from = size_t{strip} * 32;
        const I even = token < tokens ? V::load_words(row(token) + from) : V::zero_int();
        const I odd = token + 1 < tokens ? V::load_words(row(token + 1) + from) : V::zero_int();
        const I low = _mm512_unpacklo_epi16(even, odd);
        const I high = _mm512_unpackhi_epi16(even, odd);
        const size_t to = size_t{token % 32} * 32;
        V::store_words(at.values[token / 32][strip] + to, _mm512_permutex2var_epi64(low, first, high));
        V::store_words(at.values[token / 32][strip + 1] + to, _mm512_permutex2var_epi64(low, second, high));
      }
    }
  }

  // Two rows as pairs of inputs of 16 queries; an absent row is zeros.
  static void lay_out_queries(const AttendRowsArgs& args, uint32_t first, std::byte (&to)[kSlices][kTile]) {
    alignas(64) std::byte queries[kTile];
    for (uint32_t slice = 0; slice < kSlices; ++slice) {
      for (uint32_t query = 0; query < kTileRows; ++query) {
        const uint32_t row = first + query / kGroupHeads;
        const float* q =
            args.q + row * args.q_stride + size_t{query % kGroupHeads} * kDim + size_t{slice} * 32;
        const bool there = row < args.rows;
        V::store_bf16(queries + size_t{query} * 64, there ? V::load(q) : V::zero());
        V::store_bf16(queries + size_t{query} * 64 + 32, there ? V::load(q + V::N) : V::zero());
      }
      V::turn_words(queries, to[slice]);
    }
  }

  // ---- tiles ----

  template <uint32_t C = 0>
  LILY_INLINE void clear() {
    T::template zero<C>();
    if constexpr (C + 1 < kColumns) {
      clear<C + 1>();
    }
  }
  template <uint32_t C = 0>
  LILY_INLINE void score_slice(const Workspace& at, uint32_t slice) {
    T::template load<6 + C % 2>(at.queries[C][slice], 64);
    T::template dot_halves<C, 4, 6 + C % 2>();
    if constexpr (C + 1 < kColumns) {
      score_slice<C + 1>(at, slice);
    }
  }
  template <uint32_t C = 0>
  LILY_INLINE void store_scores(Workspace& at, uint32_t token) {
    T::template store<C>(reinterpret_cast<std::byte*>(at.scores[C][token]), 64);
    if constexpr (C + 1 < kColumns) {
      store_scores<C + 1>(at, token);
    }
  }
  static void score(const AttendRowsArgs& args, uint32_t tokens, Workspace& at) {
    constexpr size_t kRow = size_t{kDim} * 2;
    for (uint32_t token = 0; token < tokens; token += kTileRows) {
      const std::byte* keys = args.keys[token / kAttendTokens] + token % kAttendTokens * kRow;
      clear();
      for (uint32_t slice = 0; slice < kSlices; ++slice) {
        T::template load<4>(keys + size_t{slice} * 64, kRow);
        score_slice(at, slice);
      }
      store_scores(at, token);
    }
  }

  template <uint32_t C = 0>
  LILY_INLINE void add_step(const Workspace& at, uint32_t step) {
    T::template load<4 + C % 2>(at.weights[C][step], 64);
    T::template dot_halves<C, 4 + C % 2, 6>();
    if constexpr (C + 1 < kColumns) {
      add_step<C + 1>(at, step);
    }
  }
  template <uint32_t C = 0>
  LILY_INLINE void store_sums(Workspace& at, uint32_t strip) {
    T::template store<C>(reinterpret_cast<std::byte*>(at.out[C][0] + size_t{strip} * V::N),
                         kDim * sizeof(float));
    if constexpr (C + 1 < kColumns) {
      store_sums<C + 1>(at, strip);
    }
  }
  static void add_values(uint32_t tokens, Workspace& at) {
    for (uint32_t strip = 0; strip < kStrips; ++strip) {
      clear();
      for (uint32_t step = 0; step * 32 < tokens; ++step) {
        T::template load<6>(at.values[step][strip], 64);
        add_step(at, step);
      }
      store_sums(at, strip);
    }
  }

  // ---- softmax ----

  // What lanes keep of x: those of the rows that see the token.
  struct Seen {
    uint32_t first;   // tokens of the column's first row, at least
    uint32_t second;  // and of the second, at most one more
    LILY_INLINE F of(F x, uint32_t token, const Seen& seen, F otherwise) {
      return token < seen.first    ? x
             : token < seen.second ? _mm512_mask_mov_ps(otherwise, 0xff00, x)
                                   : otherwise;
    }
  };

  // Scores to weights, of a column, for `tokens` tokens to the end of a step.
  static void soften(const AttendRowsArgs& args, uint32_t first, uint32_t tokens, uint32_t column,
                     Workspace& at) {
    const Seen seen{tokens_of(args, first), first + 1 < args.rows ? tokens_of(args, first + 1) : 0};
    const auto& scores = at.scores[column];
    const F nothing = V::set1(-__builtin_huge_valf());
    F largest = V::load(scores[0]);
    for (uint32_t token = 1; token < tokens; ++token) {
      largest = V::max(largest, Seen::of(V::load(scores[token]), token, seen, nothing));
    }
    F total = V::zero();
    alignas(64) std::byte pairs[kTile];
    for (uint32_t step = 0; step * 32 < tokens; ++step) {
      for (uint32_t i = 0; i < 32; i += 2) {
        F weight[2];
        LILY_UNROLL
        for (uint32_t j = 0; j < 2; ++j) {
          const uint32_t token = step * 32 + i + j;
          const F power = Generic<V>::exp(V::sub(V::load(scores[token]), largest));
          weight[j] = Seen::of(power, token, seen, V::zero());
          total = V::add(total, weight[j]);
        }
        V::store_words(pairs + size_t{i} * 32, V::join_bf16(weight[0], weight[1]));
      }
      V::turn_words(pairs, at.weights[column][step]);
    }
    alignas(64) float lanes[2][kTileRows];
    V::store(lanes[0], largest);
    V::store(lanes[1], total);
    for (uint32_t row = first; row < smaller(first + kColumnRows, args.rows); ++row) {
      const uint32_t lane = (row - first) * kGroupHeads;
      const size_t to = size_t{args.partial[row]} * kGroupHeads;
      __builtin_memcpy(args.largest + to, lanes[0] + lane, kGroupHeads * sizeof(float));
      __builtin_memcpy(args.total + to, lanes[1] + lane, kGroupHeads * sizeof(float));
    }
  }

  static void attend_rows(const AttendRowsArgs& args) {
    Workspace at;
    T::configure(kTileRows);
    lay_out_values(args, tokens_of(args, args.rows - 1), at);
    for (uint32_t first = 0; first < args.rows; first += kColumns * kColumnRows) {
      const uint32_t rows = smaller(kColumns * kColumnRows, args.rows - first);
      const uint32_t tokens = tokens_of(args, first + rows - 1);
      for (uint32_t c = 0; c < kColumns; ++c) {
        lay_out_queries(args, first + c * kColumnRows, at.queries[c]);
      }
      score(args, tokens, at);
      for (uint32_t c = 0; c * kColumnRows < rows; ++c) {
        soften(args, first + c * kColumnRows, tokens, c, at);
      }
      add_values(tokens, at);
      for (uint32_t row = 0; row < rows; ++row) {
        constexpr size_t kFloats = size_t{kGroupHeads} * kDim;
        __builtin_memcpy(args.out + args.partial[first + row] * kFloats,
                         at.out[row / kColumnRows][row % kColumnRows * kGroupHeads], kFloats * sizeof(float));
      }
    }
    T::release();
  }
};

}  // namespace
}  // namespace lily::cpu
