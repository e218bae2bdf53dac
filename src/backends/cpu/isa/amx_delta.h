// The gated delta rule (equation 15) over chunks of 32 rows in tiles of bf16, written once over the
// instructions on tiles (tiles.h). With G_i the product of the decays up to row i, S the state before the
// chunk and D_ij = G_i / G_j:
//   d_i = beta_i (v_i - G_i S^T k_i - sum over j < i of D_ij (k_i k_j) d_j)
//   o_i = G_i S^T q_i + sum over j <= i of D_ij (q_i k_j) d_j,    S <- G_last S + sum of D_last,j k_j d_j^T
// A D_ij is a product of decays, never a quotient. Scores of q and k are made of two bf16 each (a rest is
// 2^-17 of an input), all else is rounded once; the state, sums and the solution for d are float32.
#pragma once

#include "backends/cpu/isa/avx512vnni.h"
#include "backends/cpu/isa/tiles.h"

namespace lily::cpu {
namespace {

template <class T>
struct AmxDelta {
  using V = Avx512Vnni;
  using F = V::F;
  using I = V::I;

  static constexpr uint32_t kRows = kDeltaChunk;
  static constexpr uint32_t kDim = Shape::kKeyDim;
  static constexpr uint32_t kSlices = kDim / 32;         // of a sum over keys
  static constexpr uint32_t kStrips = kDim / kTileRows;  // of values, or of keys as rows
  static_assert(kRows == 2 * kTileRows && Shape::kValueDim == kDim);

  using Tile = std::byte[kTile];
  struct Halves {  // a tile of floats as two of bf16
    alignas(64) Tile high;
    alignas(64) Tile rest;
  };
  // A k head: its value heads share it. Tiles are of 16 rows.
  struct Keys {
    Halves q[2][kSlices];  // rows of the chunk, 32 keys
    Halves k[2][kSlices];
    Halves turned[2][kSlices];           // of k: pairs of keys, rows of the chunk
    alignas(64) Tile columns[kStrips];   // of k: keys, all rows of the chunk
    alignas(64) float kk[kRows][kRows];  // scores; those of later rows than the row's own are not there
    alignas(64) float qk[kRows][kRows];
  };
  // A value head.
  struct Head {
    alignas(64) Tile state[kSlices][kStrips];  // pairs of keys, values
    alignas(64) float found[2][kRows][kDim];   // S^T k and S^T q
    alignas(64) float minus[kRows][kRows];     // -beta_i D_ij (k_i k_j)
    alignas(64) Tile weights[2];               // D_ij (q_i k_j)
    alignas(64) float delta[kRows][kDim];
    alignas(64) Tile pairs[2][kStrips];  // of d: pairs of rows, values; as it is, and by D_last,j
    alignas(64) float decayed[kRows];    // G
    alignas(64) float left[kRows];       // D_last,j
  };

  // ---- keys and queries ----

  // Rows behind the last of the chunk are zeros.
  static void split(const float* x, size_t stride, uint32_t rows, Halves (&to)[2][kSlices]) {
    for (uint32_t row = 0; row < kRows; ++row) {
      for (uint32_t i = 0; i < kDim; i += V::N) {
        Halves& tile = to[row / kTileRows][i / 32];
        const size_t at = size_t{row % kTileRows} * 64 + i % 32 * 2;
        const F value = row < rows ? V::load(x + row * stride + i) : V::zero();
        V::store_bf16(tile.high + at, value);
        V::store_bf16(tile.rest + at, V::sub(value, V::load_bf16(tile.high + at)));
      }
    }
  }

  // Columns of k, two rows of the chunk to a word.
  static void lay_out_columns(const float* k, size_t stride, uint32_t rows, Keys& keys) {
    alignas(64) Tile pairs;  // pairs of rows, 16 keys
    for (uint32_t strip = 0; strip < kStrips; ++strip) {
      for (uint32_t row = 0; row < kRows; row += 2) {
        const float* at = k + row * stride + size_t{strip} * V::N;
        V::store_words(pairs + size_t{row} * 32,
                       V::join_bf16(row < rows ? V::load(at) : V::zero(),
                                    row + 1 < rows ? V::load(at + stride) : V::zero()));
      }
      V::turn_words(pairs, keys.columns[strip]);
    }
  }

  // Row tile `Row` of q and k with column tile `column` of k.
  static void score_tile(uint32_t row, uint32_t column, Keys& keys) {
    T::template zero<0>();
    T::template zero<1>();
    for (uint32_t s = 0; s < kSlices; ++s) {
      T::template load<6>(keys.turned[column][s].high, 64);
      T::template load<4>(keys.k[row][s].high, 64);
      T::template dot_halves<0, 4, 6>();
      T::template load<5>(keys.q[row][s].high, 64);
      T::template dot_halves<1, 5, 6>();
      T::template load<7>(keys.turned[column][s].rest, 64);
      T::template dot_halves<0, 4, 7>();
      T::template dot_halves<1, 5, 7>();
      T::template load<4>(keys.k[row][s].rest, 64);
      T::template dot_halves<0, 4, 6>();
      T::template load<5>(keys.q[row][s].rest, 64);
      T::template dot_halves<1, 5, 6>();
    }
    const size_t at = size_t{row} * kTileRows * kRows + size_t{column} * kTileRows;
    T::template store<0>(reinterpret_cast<std::byte*>(keys.kk[0] + at), sizeof(keys.kk[0]));
    T::template store<1>(reinterpret_cast<std::byte*>(keys.qk[0] + at), sizeof(keys.qk[0]));
  }

  static void read_keys(const DeltaChunksArgs& args, uint32_t first, uint32_t rows, Keys& keys) {
    const float* k = args.k + first * args.stride;
    split(args.q + first * args.stride, args.stride, rows, keys.q);
    split(k, args.stride, rows, keys.k);
    for (uint32_t i = 0; i < 2 * kSlices; ++i) {
      const Halves& from = keys.k[i / kSlices][i % kSlices];
      V::turn_words(from.high, keys.turned[i / kSlices][i % kSlices].high);
      V::turn_words(from.rest, keys.turned[i / kSlices][i % kSlices].rest);
    }
    lay_out_columns(k, args.stride, rows, keys);
    score_tile(0, 0, keys);
    score_tile(1, 0, keys);
    score_tile(1, 1, keys);
  }

  // ---- a value head ----

  // Returns G_last.
  static float weigh(const DeltaChunksArgs& args, uint32_t head, uint32_t first, uint32_t rows,
                     const Keys& keys, Head& at) {
    const float* decay = args.decay + first * args.gate_stride + head;
    const float* beta = args.beta + first * args.gate_stride + head;
    F ratio[2] = {V::zero(), V::zero()};  // D of the row; zero from its own on, until it is one
    float total = 1.0F;
    for (uint32_t row = 0; row < kRows; ++row) {
      const bool there = row < rows;
      const float factor = there ? decay[row * args.gate_stride] : 1.0F;
      const F minus_beta = V::set1(there ? -beta[row * args.gate_stride] : 0.0F);
      total *= factor;
      at.decayed[row] = total;
      for (uint32_t half = 0; half <= row / kTileRows; ++half) {
        const uint32_t column = half * kTileRows;
        ratio[half] = V::mul(V::set1(factor), ratio[half]);
        V::store(at.minus[row] + column,
                 V::mul(minus_beta, V::mul(ratio[half], V::load(keys.kk[row] + column))));
      }
      ratio[row / kTileRows] = V::set_lane(ratio[row / kTileRows], row % kTileRows, 1.0F);
      std::byte* weights = at.weights[row / kTileRows] + size_t{row % kTileRows} * 64;
      V::store_bf16(weights, V::mul(ratio[0], V::load(keys.qk[row])));
      V::store_bf16(weights + 32,
                    row < kTileRows ? V::zero() : V::mul(ratio[1], V::load(keys.qk[row] + kTileRows)));
    }
    V::store(at.left, ratio[0]);
    V::store(at.left + kTileRows, ratio[1]);
    return total;
  }

  // The state for tiles; what stays of it is `left` of it.
  static void read_state(float* state, float left, Head& at) {
    const F factor = V::set1(left);
    for (uint32_t key = 0; key < kDim; key += 2) {
      for (uint32_t strip = 0; strip < kStrips; ++strip) {
        float* even = state + size_t{key} * kDim + size_t{strip} * V::N;
        const F a = V::load(even);
        const F b = V::load(even + kDim);
        V::store_words(at.state[key / 32][strip] + size_t{key % 32} * 32, V::join_bf16(a, b));
        V::store(even, V::mul(a, factor));
        V::store(even + kDim, V::mul(b, factor));
      }
    }
  }

  // What the keys and the queries find in the state.
  static void find(const Keys& keys, Head& at) {
    constexpr size_t kRow = sizeof(at.found[0][0]);
    for (uint32_t strip = 0; strip < kStrips; ++strip) {
      T::template zero<0>();
      T::template zero<1>();
      T::template zero<2>();
      T::template zero<3>();
      for (uint32_t s = 0; s < kSlices; ++s) {
        T::template load<6>(at.state[s][strip], 64);
        T::template load<4>(keys.k[0][s].high, 64);
        T::template dot_halves<0, 4, 6>();
        T::template load<5>(keys.k[1][s].high, 64);
        T::template dot_halves<1, 5, 6>();
        T::template load<4>(keys.q[0][s].high, 64);
        T::template dot_halves<2, 4, 6>();
        T::template load<5>(keys.q[1][s].high, 64);
        T::template dot_halves<3, 5, 6>();
      }
      const auto to = [&](uint32_t of, uint32_t row) {
        return reinterpret_cast<std::byte*>(at.found[of][row] + size_t{strip} * V::N);
      };
      T::template store<0>(to(0, 0), kRow);
      T::template store<1>(to(0, kTileRows), kRow);
      T::template store<2>(to(1, 0), kRow);
      T::template store<3>(to(1, kTileRows), kRow);
    }
  }

  // d row by row, from those before it.
  static void solve(const DeltaChunksArgs& args, uint32_t head, uint32_t first, uint32_t rows, Head& at) {
    const float* v = args.v + first * args.stride + size_t{head} * kDim;
    const float* beta = args.beta + first * args.gate_stride + head;
    for (uint32_t row = 0; row < rows; ++row) {
      const F of_row = V::set1(beta[row * args.gate_stride]);
      const F minus_decayed = V::set1(-at.decayed[row]);
      F sum[kStrips];
      LILY_UNROLL
      for (uint32_t s = 0; s < kStrips; ++s) {
        const F own = V::load(v + row * args.stride + size_t{s} * V::N);
        const F found = V::load(at.found[0][row] + size_t{s} * V::N);
        sum[s] = V::mul(of_row, V::fma(minus_decayed, found, own));
      }
      for (uint32_t before = 0; before < row; ++before) {
        const F factor = V::set1(at.minus[row][before]);
        LILY_UNROLL
        for (uint32_t s = 0; s < kStrips; ++s) {
          sum[s] = V::fma(factor, V::load(at.delta[before] + size_t{s} * V::N), sum[s]);
        }
      }
      LILY_UNROLL
      for (uint32_t s = 0; s < kStrips; ++s) {
        V::store(at.delta[row] + size_t{s} * V::N, sum[s]);
      }
    }
    for (uint32_t row = rows; row < kRows; ++row) {
      __builtin_memset(at.delta[row], 0, sizeof(at.delta[row]));
    }
    for (uint32_t row = 0; row < kRows; row += 2) {
      const F even = V::set1(at.left[row]);
      const F odd = V::set1(at.left[row + 1]);
      for (uint32_t s = 0; s < kStrips; ++s) {
        const F a = V::load(at.delta[row] + size_t{s} * V::N);
        const F b = V::load(at.delta[row + 1] + size_t{s} * V::N);
        V::store_words(at.pairs[0][s] + size_t{row} * 32, V::join_bf16(a, b));
        V::store_words(at.pairs[1][s] + size_t{row} * 32, V::join_bf16(V::mul(a, even), V::mul(b, odd)));
      }
    }
  }

  static void write_outputs(const DeltaChunksArgs& args, uint32_t head, uint32_t first, uint32_t rows,
                            Head& at) {
    auto& sums = at.found[1];
    constexpr size_t kRow = sizeof(sums[0]);
    for (uint32_t row = 0; row < rows; ++row) {
      const F decayed = V::set1(at.decayed[row]);
      for (uint32_t i = 0; i < kDim; i += V::N) {
        V::store(sums[row] + i, V::mul(decayed, V::load(sums[row] + i)));
      }
    }
    for (uint32_t strip = 0; strip < kStrips; ++strip) {
      auto* upper = reinterpret_cast<std::byte*>(sums[0] + size_t{strip} * V::N);
      auto* lower = upper + kTileRows * kRow;
      T::template load<6>(at.pairs[0][strip], 64);
      T::template load<0>(upper, kRow);
      T::template load<4>(at.weights[0], 64);
      T::template dot_halves<0, 4, 6>();
      T::template load<1>(lower, kRow);
      T::template load<5>(at.weights[1], 64);
      T::template dot_halves<1, 5, 6>();
      T::template store<0>(upper, kRow);
      T::template store<1>(lower, kRow);
    }
    float* out = args.out + first * args.out_stride + size_t{head} * kDim;
    for (uint32_t row = 0; row < rows; ++row) {
      for (uint32_t i = 0; i < kDim; i += V::N) {
        V::store(out + row * args.out_stride + i, V::load(sums[row] + i));
      }
    }
  }

  static void add_to_state(const Keys& keys, const Head& at, float* state) {
    constexpr size_t kRow = size_t{kDim} * sizeof(float);
    for (uint32_t key = 0; key < kStrips; ++key) {
      auto* to = reinterpret_cast<std::byte*>(state + size_t{key} * kTileRows * kDim);
      T::template load<4>(keys.columns[key], 64);
      for (uint32_t strip = 0; strip < kStrips; strip += 2, to += 128) {
        T::template load<0>(to, kRow);
        T::template load<6>(at.pairs[1][strip], 64);
        T::template dot_halves<0, 4, 6>();
        T::template load<1>(to + 64, kRow);
        T::template load<7>(at.pairs[1][strip + 1], 64);
        T::template dot_halves<1, 4, 7>();
        T::template store<0>(to, kRow);
        T::template store<1>(to + 64, kRow);
      }
    }
  }

  static void delta_chunks(const DeltaChunksArgs& args) {
    Keys keys;
    Head head;
    T::configure(kTileRows);
    uint32_t rows = kRows - args.position % kRows;
    for (uint32_t first = 0; first < args.rows; first += rows, rows = kRows) {
      rows = smaller(rows, args.rows - first);
      read_keys(args, first, rows, keys);
      for (uint32_t h = 0; h < args.heads; ++h) {
        float* state = args.state + size_t{h} * kDim * kDim;
        const float left = weigh(args, h, first, rows, keys, head);
        read_state(state, left, head);
        find(keys, head);
        solve(args, h, first, rows, head);
        write_outputs(args, h, first, rows, head);
        add_to_state(keys, head, state);
      }
    }
    T::release();
  }
};

}  // namespace
}  // namespace lily::cpu
