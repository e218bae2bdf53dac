// The experts of a whole step: router, routing, gate_up and down.
#pragma once

#include "backends/cuda/kernels/experts.cuh"
#include "backends/cuda/kernels/step_product.cuh"

namespace lily::cuda::step {

using NarrowFour = Format<1, false>;

// The feed of the experts to shared memory, by all threads; ends with a barrier.
template <class W>
__device__ __forceinline__ experts::Rows<NarrowFour, W::kHidden> bring_rows(const Block<W>& b,
                                                                            uint32_t layer) {
  constexpr uint32_t kChunks = W::kHidden * kTileCols / 8;
  const experts::Rows<NarrowFour, W::kHidden> rows{b.shared + b.at.columns,
                                                   b.template place<float>(b.at.sums), W::kRows};
  const uint64_t* const feed = b.words(layer) + W::board().after;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < W::kRows * kChunks; i += kWarps * 32) {
    const uint32_t row = i / kChunks;
    const uint32_t chunk = i % kChunks;
    uint32_t v[4];
    wait_words<1, 2>(v, feed + row * W::board().feed_row + chunk * 4, 0, b.a.tag);
    __syncwarp();
    rows.put(row, chunk, make_uint4(v[0], v[1], v[2], v[3]));
  }
  wait_scales<W::kHidden * kTileCols, W::kRows>(b.template place<float>(b.at.scales) + kStepRows, feed,
                                                W::board().feed_row, b.a.tag);
  __syncthreads();
  return rows;
}

// The block's units of the router, if it has any.
template <class W>
__device__ __forceinline__ void router(const Block<W>& b, uint32_t layer,
                                       const experts::Rows<NarrowFour, W::kHidden>& rows) {
  using P = typename W::Router;
  constexpr uint32_t blocks = blocks_of(W::kExperts + 1);
  if (blockIdx.x >= blocks) {
    return;
  }
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t split = threadIdx.x / 32 % P::kSplits;
  Inputs<P> in;
#pragma unroll
  for (uint32_t i = 0; i < P::kTiles; ++i) {
    in.x[i] = rows.column(min(lane >> 2, W::kRows - 1), split * P::kTiles + i, lane);
  }
  in.sum();
  const float* const scales = b.template place<float>(b.at.scales) + kStepRows;
  uint64_t* const to = b.words(layer) + W::board().router;
  multiply_all<W::kRows>(
      b.template place<float>(b.at.router_parts), blocks, in, b.rest.slots,
      [&] { b.rest.fill(b.weights, b.routing); },
      [&](uint32_t row, uint32_t output, float value, bool active) {
        if (active) {
          store_word(to + row * W::board().router_row + output, __float_as_uint(value * scales[row]),
                     b.a.tag);
        }
      });
}

// Where the rows go; ends with a barrier, behind which the tape knows the layer's experts.
template <class W>
__device__ __forceinline__ void route(const Block<W>& b, uint32_t layer) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  constexpr uint32_t experts = W::kExperts;
  if (warp < W::kRows) {
    const uint64_t* const from = b.words(layer) + W::board().router + warp * W::board().router_row;
    uint32_t v[Logits::kEach];
    wait_words<1, Logits::kEach / 2>(v, from + min(lane * Logits::kEach, experts - Logits::kEach), 0,
                                     b.a.tag);
    const uint64_t* const gate_word[1] = {from + experts};
    uint32_t gate[1];
    wait_each(gate, gate_word, b.a.tag);
    __syncwarp();
    Logits logits;
    logits.low = make_float4(__uint_as_float(v[0]), __uint_as_float(v[1]), __uint_as_float(v[2]),
                             __uint_as_float(v[3]));
    logits.high = make_float4(__uint_as_float(v[4]), __uint_as_float(v[5]), __uint_as_float(v[6]),
                              __uint_as_float(v[7]));
    logits.gate = __uint_as_float(gate[0]);
    route_row(b.routing, logits, experts, warp, W::kRows);
  }
  __syncthreads();
  if (W::kRows > 1) {
    list_entries(b.routing, W::kRows);
    __syncthreads();
  }
  b.rest.routed = layer + 1;
  b.rest.fill(b.weights, b.routing);
}

template <class W>
__device__ __forceinline__ uint64_t* word_of_h(const Block<W>& b, uint32_t layer, uint32_t row, uint32_t slot,
                                               uint32_t output) {
  return b.words(layer) + W::board().h + row * W::board().h_row + slot * (W::dims().ffn / 2) +
         fragment_position(output) / 2;
}

// Of a unit that one warp has: silu(gate) * up of the lane's columns. Neighbours of an output are lanes of
// the next group of four.
template <class W>
__device__ __forceinline__ void finish_unit(const Block<W>& b, uint32_t layer, uint32_t unit,
                                            const float (&f)[4]) {
  const uint32_t lane = threadIdx.x & 31;
  const Entry& entry = b.routing.entries[unit / W::kGateBlocks];
  const float* const scales = b.template place<float>(b.at.scales) + kStepRows;
#pragma unroll
  for (uint32_t c = 0; c < 2; ++c) {
    const uint32_t column = (lane & 3) * 2 + c;
    const uint32_t row = entry.rows[column];
    const float scale = row != kAbsent ? scales[row] : 0.0f;
    const uint32_t bits = to_bf16(silu(scale * f[c]) * (scale * f[c + 2]));
    const uint32_t other = __shfl_xor_sync(kAll, bits, 4);
    if (row != kAbsent && (lane & 4) == 0) {
      store_word(word_of_h(b, layer, row, entry.slots[column], unit % W::kGateBlocks * 8 + (lane >> 2)),
                 bits | other << 16, b.a.tag);
    }
  }
}

// Of units whose parts are of several warps: their sums in order, eight outputs of each column of gate, of
// up.
template <class W>
__device__ __forceinline__ void finish_spread_units(const Block<W>& b, uint32_t layer, const float* parts) {
  constexpr uint32_t of_part = W::kRows * kTileRows;
  const uint32_t all = b.routing.count * W::kGateBlocks;
  const uint32_t units = blockIdx.x < all ? (all - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
  const float* const scales = b.template place<float>(b.at.scales) + kStepRows;
  const uint32_t work = units * W::kRows * 8;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < (work + 31) / 32 * 32; i += kWarps * 32) {
    const uint32_t own = i / (W::kRows * 8);
    const uint32_t column = i / 8 % W::kRows;
    const uint32_t unit = min(blockIdx.x + own * gridDim.x, all - 1);
    const Entry& entry = b.routing.entries[unit / W::kGateBlocks];
    const uint32_t row = entry.rows[column];
    const bool active = i < work && row != kAbsent;
    uint32_t bits = 0;
    if (active) {
      const float* const part = parts + own * W::kGateParts * of_part + column * kTileRows + i % 8;
      float gate = part[0];
      float up = part[8];
#pragma unroll
      for (uint32_t p = 1; p < W::kGateParts; ++p) {
        gate = gate + part[p * of_part];
        up = up + part[p * of_part + 8];
      }
      bits = to_bf16(silu(scales[row] * gate) * (scales[row] * up));
    }
    const uint32_t other = __shfl_down_sync(kAll, bits, 1);
    if (active && i % 2 == 0) {
      store_word(word_of_h(b, layer, row, entry.slots[column], unit % W::kGateBlocks * 8 + i % 8),
                 bits | other << 16, b.a.tag);
    }
  }
}

// h = silu(gate x) * (up x), the parts of a unit's inputs one after the other.
template <class W>
__device__ __forceinline__ void gate_up(const Block<W>& b, uint32_t layer,
                                        const experts::Rows<NarrowFour, W::kHidden>& rows) {
  const uint32_t all = b.routing.count * W::kGateBlocks;
  float* const parts = b.template place<float>(b.at.parts);
  float total[4] = {};
#pragma unroll 1
  for (GateTurn<W> turn = GateTurn<W>::first(); turn.unit() < all; turn.next()) {
    float f[4] = {};
    experts::add_part<NarrowFour>(f, b.rest.slots.wait(), rows,
                                  b.routing.entries[turn.unit() / W::kGateBlocks], turn.part);
    b.rest.slots.release();
    b.rest.fill(b.weights, b.routing);
    if constexpr (W::kSpreadParts) {
      store_columns<W::kRows>(parts + (turn.own * W::kGateParts + turn.part) * (W::kRows * kTileRows), f);
    } else {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        total[i] = turn.part == 0 ? f[i] : total[i] + f[i];
      }
      if (turn.part + 1 == W::kGateParts) {
        finish_unit(b, layer, turn.unit(), total);
      }
    }
  }
  if constexpr (W::kSpreadParts) {
    __syncthreads();
    finish_spread_units(b, layer, parts);
  }
  if (blockIdx.x == gridDim.x - 1) {
    for (uint32_t i = b.routing.shared + threadIdx.x; i < b.routing.count; i += blockDim.x) {
      const uint32_t expert = b.routing.entries[i].expert;
      atomicOr(b.a.experts_used + layer * kStepExpertWords + expert / 32, 1u << (expert % 32));
    }
  }
}

// Waits for tiles [first, first + kTiles) of the hidden values of the lane's column of an entry.
template <class W, uint32_t kTiles>
__device__ __forceinline__ void wait_uses(Column (&x)[kTiles], const Block<W>& b, uint32_t layer,
                                          const Entry& entry, uint32_t first) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t row = min(uint32_t{entry.rows[lane >> 2]}, W::kRows - 1);
  const uint32_t slot = min(uint32_t{entry.slots[lane >> 2]}, kTopK);
  const uint64_t* const from = b.words(layer) + W::board().h + row * W::board().h_row +
                               slot * (W::dims().ffn / 2) + first * (kTileCols / 2) + (lane & 3) * 8;
  uint32_t pairs[kTiles * 8];
  wait_words<kTiles, 4>(pairs, from, kTileCols / 2, b.a.tag);
  __syncwarp();
#pragma unroll
  for (uint32_t i = 0; i < kTiles; ++i) {
#pragma unroll
    for (uint32_t j = 0; j < 8; ++j) {
      x[i].b[j] = pairs[i * 8 + j];
    }
  }
}

// The sums of a block's 16 outputs over the experts, in ascending order, then the shared one: to the stream
// and the feed that comes next.
template <class W>
__device__ __forceinline__ void down(const Block<W>& b, uint32_t layer) {
  if (blockIdx.x >= W::kStreamBlocks) {
    __syncthreads();  // the partial sums of gate_up have been read: those of the next projection may come
    return;
  }
  constexpr uint32_t kTiles = W::kFfn < kSlotTiles ? W::kFfn : kSlotTiles;  // of a chunk
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  const Routing& r = b.routing;
  const auto refill = [&] { b.rest.fill(b.weights, b.routing); };
  float* const y = b.template place<float>(b.at.y);
  float* const shared_y = b.template place<float>(b.at.shared_y);
  const float norm = b.has_stream() ? b.weights.layers[layer].next_norm[b.stream_output()] : 0;
#pragma unroll 1
  for (uint32_t at = r.shared + warp; at < r.count; at += kWarps) {
    float f[4] = {};
#pragma unroll 1
    for (uint32_t first = 0; first < W::kFfn; first += kTiles) {
      Column x[kTiles];
      wait_uses<W, kTiles>(x, b, layer, r.entries[at], first);
      const uint8_t* const tiles = b.rest.slots.wait();
#pragma unroll
      for (uint32_t i = 0; i < kTiles; ++i) {
        add_tile<NarrowFour>(f, load_tile<NarrowFour>(tiles + i * kTile, lane), x[i],
                             sums_of<NarrowFour>(x[i]));
      }
      b.rest.slots.release();
      refill();
    }
    experts::put_outputs(y, r.entries[at], kTopK, true, 0, f);
  }
  if (warp >= kTopK && warp - kTopK < W::kFfn) {
    Column x[1];
    wait_uses<W, 1>(x, b, layer, r.entries[0], warp - kTopK);
    float f[4] = {};
    add_tile<NarrowFour>(f, load_tile<NarrowFour>(b.rest.slots.wait(), lane), x[0],
                         sums_of<NarrowFour>(x[0]));
    b.rest.slots.release();
    refill();
    experts::put_outputs(shared_y, r.entries[0], W::kFfn, false, warp - kTopK, f);
  }
  __syncthreads();
  if (warp * 32 < W::kRows * kTileRows) {
    const bool active = b.has_stream();
    float now = 0;
    if (active) {
      float& stream = b.template place<float>(b.at.stream)[threadIdx.x];
      now = stream + experts::sum_of_row<W::kFfn>(r, y, shared_y, b.stream_row(), threadIdx.x % kTileRows);
      stream = now;
    }
    put_feed(b.words(layer + 1) + b.stream_row() * W::board().feed_row, W::dims().hidden, b.stream_output(),
             now * norm, now * now, active, b.a.tag);
  }
}

}  // namespace lily::cuda::step
