// The weights of a whole step on their way to shared memory. Each warp has two tapes: chunks of weights in
// the order in which it will multiply them, fetched into slots of its own as far ahead as these reach. One
// tape has the projections in, and the head: known from the start, so that those of the next layer come while
// this one is at its chain of small products. The other has the rest of a layer, and waits where the experts
// of a layer are not known yet.
#pragma once

#include "backends/cuda/kernels/routing.cuh"
#include "backends/cuda/kernels/step_board.cuh"
#include "backends/cuda/kernels/tiles.cuh"

namespace lily::cuda::step {

inline constexpr uint32_t kWarps = 16;
inline constexpr uint32_t kTile = tile_bytes_of(1, 0);      // of 4-bit codes
inline constexpr uint32_t kWideTile = tile_bytes_of(2, 0);  // of the router's 8-bit codes
inline constexpr uint32_t kSlotTiles = 4;
inline constexpr uint32_t kSlot = kSlotTiles * kTile;
static_assert(2 * kWideTile <= kSlot);

// How 16 warps share a product of kInputTiles tiles of inputs: as kernels/project.cu does.
template <class F_, uint32_t kInputTiles_, bool kHeads_>
struct Dense {
  using F = F_;
  static constexpr uint32_t kInputTiles = kInputTiles_;
  static constexpr uint32_t kInputs = kInputTiles * kTileCols;
  static constexpr bool kHeads = kHeads_;  // inputs are normed by heads
  static constexpr uint32_t kSplits = kInputTiles < kWarps ? kInputTiles : kWarps;
  static constexpr uint32_t kTeams = kWarps / kSplits;
  static constexpr uint32_t kTiles = kInputTiles / kSplits;
  static constexpr uint32_t kNormed = kHeads && kTiles > 1 ? 2 : 1;  // tiles with one factor
  static constexpr uint32_t kPiece = kTiles * F::kTileBytes;
  static constexpr uint32_t kPieces = kSlot / kPiece < 2 ? 1 : 2;  // units of a chunk
};
// A shape and a number of rows: with both, every size of a step but the layers is a constant.
template <uint32_t kHidden_, uint32_t kDeltaOut_, uint32_t kAttendOut_, uint32_t kFfn_, uint32_t kExperts_,
          uint32_t kVocab_, uint32_t kRows_>
struct Widths {  // in tiles, but for experts and vocabulary
  static constexpr uint32_t kHidden = kHidden_, kDeltaOut = kDeltaOut_, kAttendOut = kAttendOut_,
                            kFfn = kFfn_, kExperts = kExperts_, kVocab = kVocab_, kRows = kRows_;
  static_assert(kRows > 0 && kRows <= kStepRows);
  // The parts of a unit of gate_up are spread over the warps where there are few units, else a warp has all
  // of one. The sums are the same.
  static constexpr bool kSpreadParts = kRows <= 2;
  // More rows leave less room for weights that are ahead.
  static constexpr uint32_t kInSlots = kRows <= 2 ? 3 : 2;  // of a warp
  static constexpr uint32_t kRestSlots = 2;
  static constexpr uint32_t kGateParts = kHidden / kSlotTiles;  // of a unit of gate_up
  static constexpr uint32_t kGateBlocks = 2 * kFfn * kTileCols / kTileRows;
  static constexpr uint32_t kStreamBlocks = kHidden * kTileCols / kTileRows;
  using In = Dense<Format<1, false>, kHidden, false>;
  using Router = Dense<Format<2, false>, kHidden, false>;
  using DeltaOut = Dense<Format<1, false>, kDeltaOut, true>;
  using AttendOut = Dense<Format<1, false>, kAttendOut, false>;
  // But for the layers, which are not a constant.
  LILY_BOTH static constexpr Dims dims() {
    Dims d{};
    d.hidden = kHidden * kTileCols;
    d.vocab = kVocab;
    d.q_heads = kAttendOut * kTileCols / kHeadDim;
    d.kv_heads = d.q_heads / 8;
    d.v_heads = kDeltaOut * kTileCols / kDeltaDim;
    d.k_heads = d.v_heads / 2;
    d.experts = kExperts;
    d.ffn = kFfn * kTileCols;
    return d;
  }
  LILY_BOTH static constexpr Board board() { return board_of(dims(), kRows); }
};
template <uint32_t kRows>
using FullWidths = Widths<32, 64, 64, 8, 256, 248320, kRows>;
template <uint32_t kRows>
using TinyWidths = Widths<4, 16, 32, 1, 32, 8192, kRows>;

// A warp's slots, filled and used in turn.
struct Slots {
  uint8_t* base;
  uint64_t* full;  // barriers
  uint32_t count;
  uint32_t head = 0, tail = 0, parity = 0;
  uint32_t filled = 0;

  __device__ __forceinline__ bool room() const { return filled < count; }
  __device__ __forceinline__ void fill(const uint8_t* from, uint32_t pieces, uint32_t bytes,
                                       uint64_t stride) {
    copy_pieces(base + head * kSlot, from, pieces, bytes, stride, full + head, threadIdx.x & 31);
    head = head + 1 == count ? 0 : head + 1;
    ++filled;
  }
  __device__ __forceinline__ const uint8_t* wait() const {
    wait_barrier(full + tail, parity);
    return base + tail * kSlot;
  }
  __device__ __forceinline__ void release() {
    __syncwarp();
    --filled;
    ++tail;
    if (tail == count) {
      tail = 0;
      parity ^= 1;
    }
  }
};

LILY_BOTH constexpr uint32_t blocks_of(uint32_t outputs) { return padded(outputs) / kTileRows; }
__device__ __forceinline__ bool is_attention(uint32_t layer) { return layer % 4 == 3; }

// What both tapes look at.
struct Weights {
  const StepLayer* layers;  // in shared memory
  const uint8_t* head;
  uint32_t count;  // of layers
  template <class W>
  __device__ __forceinline__ uint32_t in_blocks(uint32_t layer) const {
    constexpr Dims d = W::dims();
    return layer == count        ? blocks_of(d.vocab)
           : is_attention(layer) ? blocks_of(attend_outputs(d))
                                 : blocks_of(delta_outputs(d));
  }
};

// Projections in of all layers, then the head.
template <class W>
struct InTape {
  using P = typename W::In;
  Slots slots;
  uint32_t layer = 0;
  uint32_t unit = blockIdx.x + threadIdx.x / 32 / P::kSplits * gridDim.x;
  uint32_t last = 3;  // layer: its shared memory is lent to the attention of this one

  __device__ __forceinline__ void fill(const Weights& w) {
    const uint32_t split = threadIdx.x / 32 % P::kSplits;
    const uint32_t step = P::kTeams * gridDim.x;
    while (slots.room() && layer <= w.count && layer <= last) {
      const uint32_t all = w.template in_blocks<W>(layer);
      if (unit >= all) {
        ++layer;
        unit = blockIdx.x + threadIdx.x / 32 / P::kSplits * gridDim.x;
        continue;
      }
      const uint8_t* const tiles = layer == w.count ? w.head : w.layers[layer].in_proj;
      const uint64_t of_unit = P::kInputTiles * P::F::kTileBytes;
      uint32_t pieces = 1;
#pragma unroll
      for (uint32_t i = 1; i < P::kPieces; ++i) {
        pieces += unit + i * step < all ? 1 : 0;
      }
      slots.fill(tiles + unit * of_unit + split * P::kPiece, pieces, P::kPiece, step * of_unit);
      unit += P::kPieces * step;
    }
  }
};

// The parts of units of gate_up in the order in which a warp works on them.
template <class W>
struct GateTurn {
  static constexpr uint32_t kTogether = W::kSpreadParts ? kWarps / W::kGateParts : kWarps;  // units
  static_assert(kWarps % W::kGateParts == 0);
  uint32_t own;  // unit of the block
  uint32_t part;

  __device__ static __forceinline__ GateTurn first() {
    const uint32_t warp = threadIdx.x / 32;
    return W::kSpreadParts ? GateTurn{warp / W::kGateParts, warp % W::kGateParts} : GateTurn{warp, 0};
  }
  __device__ __forceinline__ uint32_t unit() const { return blockIdx.x + own * gridDim.x; }
  __device__ __forceinline__ void next() {
    if constexpr (W::kSpreadParts) {
      own += kTogether;
    } else {
      part = part + 1 == W::kGateParts ? 0 : part + 1;
      own += part == 0 ? kTogether : 0;
    }
  }
};

// The rest of each layer: projection out, router, gate_up, down of the chosen experts, of the shared one.
template <class W>
struct RestTape {
  enum class Kind : uint32_t { out, router, gate_up, down, shared };
  Slots slots;
  uint32_t layer = 0;
  Kind kind = Kind::out;
  uint32_t at = first_out(0);  // unit, or entry
  uint32_t half = 0;           // of an entry of down, or part of a unit of gate_up
  uint32_t routed = 0;         // layers whose experts are known

  template <class P>
  __device__ static __forceinline__ uint32_t first() {
    return blockIdx.x + threadIdx.x / 32 / P::kSplits * gridDim.x;
  }
  __device__ static __forceinline__ uint32_t first_out(uint32_t layer) {
    return is_attention(layer) ? first<typename W::AttendOut>() : first<typename W::DeltaOut>();
  }
  __device__ __forceinline__ void fill(const Weights& w, const Routing& r) {
    while (slots.room() && layer < w.count) {
      Chunk chunk{nullptr, 0};
      if (!next(chunk, w, r)) {
        return;
      }
      if (chunk.bytes != 0) {
        slots.fill(chunk.from, 1, chunk.bytes, 0);
      }
    }
  }

 private:
  struct Chunk {
    const uint8_t* from;
    uint32_t bytes;
  };
  __device__ __forceinline__ void go_on(Kind to, uint32_t from, uint32_t part = 0) {
    kind = to;
    at = from;
    half = part;
  }
  template <class P>
  __device__ __forceinline__ Chunk unit_of(const uint8_t* tiles) {
    const size_t tile = size_t{at} * P::kInputTiles + threadIdx.x / 32 % P::kSplits * P::kTiles;
    at += P::kTeams * gridDim.x;
    return {tiles + tile * P::F::kTileBytes, P::kPiece};
  }
  // The next chunk, or the beginning of the next kind and none. False where the experts are not known yet.
  __device__ __forceinline__ bool next(Chunk& chunk, const Weights& w, const Routing& r) {
    const StepLayer& of = w.layers[layer];
    const uint32_t warp = threadIdx.x / 32;
    switch (kind) {
      case Kind::out:
        if (at >= W::kStreamBlocks) {
          go_on(Kind::router, first<typename W::Router>());
        } else {
          chunk = is_attention(layer) ? unit_of<typename W::AttendOut>(of.out_proj)
                                      : unit_of<typename W::DeltaOut>(of.out_proj);
        }
        return true;
      case Kind::router:
        if (at >= blocks_of(W::kExperts + 1)) {
          go_on(Kind::gate_up, GateTurn<W>::first().own, GateTurn<W>::first().part);
        } else {
          chunk = unit_of<typename W::Router>(of.router);
        }
        return true;
      case Kind::gate_up: {
        GateTurn<W> turn{at, half};
        const uint32_t entry = turn.unit() / W::kGateBlocks;
        const bool known = routed > layer;
        if (!known && entry >= r.shared) {
          return false;
        }
        if (known && entry >= r.count) {
          go_on(Kind::down, r.shared + warp);
          return true;
        }
        const size_t unit = size_t{r.entries[entry].expert} * W::kGateBlocks + turn.unit() % W::kGateBlocks;
        chunk = {of.gate_up + (unit * W::kHidden + turn.part * kSlotTiles) * kTile, kSlot};
        turn.next();
        at = turn.own;
        half = turn.part;
        return true;
      }
      case Kind::down:
        if (blockIdx.x >= W::kStreamBlocks || at >= r.count) {
          go_on(Kind::shared, 0);
        } else {
          constexpr uint32_t kTiles = W::kFfn < kSlotTiles ? W::kFfn : kSlotTiles;
          const size_t unit = size_t{r.entries[at].expert} * W::kStreamBlocks + blockIdx.x;
          chunk = {of.down + (unit * W::kFfn + half * kTiles) * kTile, kTiles * kTile};
          half = half + 1 == W::kFfn / kTiles ? 0 : half + 1;
          at += half == 0 ? kWarps : 0;
        }
        return true;
      default:
        if (blockIdx.x < W::kStreamBlocks && warp >= kTopK && warp - kTopK < W::kFfn) {
          const size_t unit = size_t{W::kExperts} * W::kStreamBlocks + blockIdx.x;
          chunk = {of.down + (unit * W::kFfn + warp - kTopK) * kTile, kTile};
        }
        ++layer;
        go_on(Kind::out, first_out(layer));
        return true;
    }
  }
};

}  // namespace lily::cuda::step
