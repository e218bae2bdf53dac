// The mixers of a whole step between their two projections: Gated DeltaNet, a strip of a head to a block, and
// attention, a split of a context to a block.
#pragma once

#include "backends/cuda/kernels/attend.cuh"
#include "backends/cuda/kernels/delta_step.cuh"
#include "backends/cuda/kernels/step_product.cuh"

namespace lily::cuda::step {

// ---- Gated DeltaNet: the first eight warps ----------------------------------------------------------------
static_assert(sizeof(delta::Shared) <= kMixerBytes);

template <class W>
__device__ __forceinline__ delta::TokenInputs wait_inputs(const Block<W>& b, const uint64_t* mixed,
                                                          const delta::Channels& of, uint32_t head,
                                                          uint32_t output) {
  constexpr Dims d = W::dims();
  const uint64_t* const gates = mixed + conv_channels(d) + value_width(d);
  const uint64_t* const from[5] = {mixed + of.key.at, mixed + of.value.at, gates + head,
                                   gates + d.v_heads + head, mixed + conv_channels(d) + output};
  uint32_t bits[5];
  wait_each(bits, from, b.a.tag);
  return {__uint_as_float(bits[0]), __uint_as_float(bits[1]), __uint_as_float(bits[2]),
          __uint_as_float(bits[3]), __uint_as_float(bits[4])};
}

// One strip of one head of one row.
template <class W>
__device__ __forceinline__ void delta_strip(const Block<W>& b, uint32_t layer, uint32_t row, uint32_t head,
                                            uint32_t strip) {
  constexpr Dims d = W::dims();
  const StepLayer& of = b.weights.layers[layer];
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t warp = threadIdx.x / 32;
  constexpr uint32_t share = d.v_heads / d.k_heads;
  constexpr uint32_t key_width = d.k_heads * kDeltaDim;
  const uint32_t output = head * kDeltaDim + strip * delta::kColumns + lane;
  const uint32_t key_channel =
      threadIdx.x / kDeltaDim * key_width + head / share * kDeltaDim + threadIdx.x % kDeltaDim;
  const uint32_t position = b.a.segments[row].position;
  float* const states = b.a.segments[row].recurrent + (layer - layer / 4) * recurrent_stride(d);
  float* const ring = states + delta_floats(d);
  float* const state =
      states + (size_t{head} * kDeltaDim + warp * delta::kKeys) * kDeltaDim + strip * delta::kColumns + lane;
  float s[delta::kKeys];
  delta::load_state(s, state);
  delta::Channels channels{delta::load_channel(d, of.conv, position, ring, key_channel),
                           delta::load_channel(d, of.conv, position, ring, 2 * key_width + output)};
  const delta::Place place{head, strip, of.decay_rate[head], of.dt_bias[head],
                           of.norm[strip * delta::kColumns + lane]};
  const delta::TokenInputs in =
      wait_inputs(b, b.words(layer) + W::board().mixed + row * W::board().mixed_row, channels, head, output);
  uint64_t* const to = b.words(layer) + W::board().heads + row * W::board().heads_row;
  delta::step(
      *b.template place<delta::Shared>(b.at.mixer), s, channels, place, in, GroupSync<1, 256>(),
      [&](float o, float gate) { put_feed(to, value_width(d), output, o * gate, o * o, true, b.a.tag); });
#pragma unroll
  for (uint32_t i = 0; i < delta::kKeys; ++i) {
    state[i * kDeltaDim] = s[i];
  }
  float* const kept = ring + (position % kConvTaps) * conv_channels(d);
  if (strip == 0 && head % share == 0) {
    kept[key_channel] = in.key;
  }
  if (warp == 0) {
    kept[2 * key_width + output] = in.value;
  }
}

template <class W>
__device__ __forceinline__ void delta_net(const Block<W>& b, uint32_t layer) {
  if (threadIdx.x >= delta::kWarps * 32) {
    return;
  }
  constexpr uint32_t strips = W::dims().v_heads * delta::kStrips;
#pragma unroll 1
  for (uint32_t i = blockIdx.x; i < W::kRows * strips; i += gridDim.x) {
    delta_strip(b, layer, i / strips, i % strips / delta::kStrips, i % delta::kStrips);
    GroupSync<1, 256>()();  // before the next strip writes to the same shared memory
  }
}

// ---- Attention: splits by the first four warps, what combines them by the last eight
// ------------------------
inline constexpr uint32_t kAttendWarps = 4;
inline constexpr uint32_t kHalves = 3;  // of tiles on their way: keys, values, keys of the next, ..
inline constexpr uint32_t kAttendWarpBytes = kHalves * attend::kHalfStage;
static_assert(attend::kQueryBytes + kAttendWarps * kAttendWarpBytes <= kAttendBytes);
static_assert(kAttendWarpBytes >= (attend::kHeads * kHeadDim + 2 * attend::kHeads) * 4);
inline constexpr uint32_t kCombineWarp = 8;  // the first

// q | gate of each head, k, v of a row, as words.
struct MixedWords {
  const uint64_t* from;
  uint32_t tag;
  __device__ __forceinline__ void operator()(float (&x)[attend::kEach]) const {
    const uint64_t* each[attend::kEach];
    uint32_t bits[attend::kEach];
#pragma unroll
    for (uint32_t i = 0; i < attend::kEach; ++i) {
      each[i] = from + i * 32 + (threadIdx.x & 31);
    }
    wait_each(bits, each, tag);
#pragma unroll
    for (uint32_t i = 0; i < attend::kEach; ++i) {
      x[i] = __uint_as_float(bits[i]);
    }
  }
  __device__ __forceinline__ MixedWords at(uint32_t value) const { return {from + value, tag}; }
};

// A warp's tiles of a split, through halves of stages: keys 2 i, values 2 i + 1.
struct HalfTiles {
  const attend::Part& part;
  uint8_t* own;
  uint64_t plane[2];
  uint32_t fetched = 0;

  __device__ __forceinline__ uint32_t token(uint32_t tile) const {
    return part.begin + (tile * kAttendWarps + threadIdx.x / 32) * attend::kTokens;
  }
  __device__ __forceinline__ uint8_t* half(uint32_t i) const {
    return own + i % kHalves * attend::kHalfStage;
  }
  __device__ __forceinline__ void fetch() {
    const uint32_t first = token(fetched / 2);
    const uint32_t lane = threadIdx.x & 31;
    if (first < part.end) {
      const uint16_t* const from = part.place.segment.pages[first / kPageTokens] + plane[fetched % 2] +
                                   uint64_t{first % kPageTokens} * kHeadDim + lane * 8;
      uint8_t* const to = half(fetched) + lane * 16;
#pragma unroll 4
      for (uint32_t t = 0; t < attend::kTokens; ++t) {
        copy_or_clear(to + t * attend::kRow, from + t * kHeadDim, first + t < part.end);
      }
    }
    commit_copies();
    ++fetched;
  }
};

template <class W>
__device__ __forceinline__ AttendArgs attend_args(const Block<W>& b, uint32_t layer) {
  const StepLayer& of = b.weights.layers[layer];
  AttendArgs args{};
  args.dims = W::dims();
  args.segments = b.a.segments;
  args.row_segment = b.a.row_segment;
  args.rows = W::kRows;
  args.layer = layer / 4;
  args.q_norm = of.q_norm;
  args.k_norm = of.k_norm;
  args.rotary = b.a.rotary;
  args.partial = b.a.partial;
  args.single = 1;
  args.warps = kAttendWarps;
  return args;
}

template <class W>
__device__ __forceinline__ void attend_split(const Block<W>& b, const AttendArgs& args, uint32_t layer,
                                             const attend::Part& part) {
  using Sync = GroupSync<2, kAttendWarps * 32>;
  const uint32_t warp = threadIdx.x / 32;
  uint8_t* const memory = b.shared + b.at.in_slots;
  const MixedWords mixed{b.words(layer) + W::board().mixed + part.row * W::board().mixed_row, b.a.tag};
  HalfTiles tiles{part,
                  memory + attend::kQueryBytes + warp * kAttendWarpBytes,
                  {page_offset(W::dims(), args.layer, 0, part.kv_head),
                   page_offset(W::dims(), args.layer, 1, part.kv_head)}};
  // Tiles without a row of this pass can be fetched at once.
  while (tiles.fetched < kHalves && tiles.token(tiles.fetched / 2) + attend::kTokens <= part.place.position) {
    tiles.fetch();
  }
  if (part.end == part.place.position + 1 && warp == 0) {
    attend::write_key_value(args, part.place, mixed, part.kv_head);
  }
  uint32_t q[16][2];  // has a barrier: the key and value are written
  attend::load_queries(q, memory, args, mixed, part, Sync());
  while (tiles.fetched < kHalves) {
    tiles.fetch();
  }
  attend::Seen seen = {{-INFINITY, -INFINITY}, {0, 0}, {}};
#pragma unroll 1
  for (uint32_t i = 0; tiles.token(i) < part.end; ++i) {
    wait_copies<kHalves - 1>();
    __syncwarp();
    const attend::TileWeights weights =
        attend::weigh_tile(seen, tiles.half(2 * i), q, part.end - tiles.token(i));
    __syncwarp();
    tiles.fetch();
    wait_copies<kHalves - 1>();
    __syncwarp();
    attend::see_values(seen, tiles.half(2 * i + 1), weights);
    __syncwarp();
    tiles.fetch();
  }
  wait_copies<0>();
  __syncwarp();
  attend::put_seen(seen, reinterpret_cast<float*>(tiles.own));
  Sync()();
  size_t place = 0;
  float largest = 0;
  float sum = 0;
  bool own = false;
  attend::merge_warps(args, memory + attend::kQueryBytes, kAttendWarpBytes, part,
                      [&](size_t p, float l, float s) {
                        place = p;
                        largest = l;
                        sum = s;
                        own = true;
                      });
  Sync()();  // all values are written; and the memory may be used again
  if (own) {
    uint64_t* const to = b.words(layer) + W::board().splits + place * 2;
    release_word(to, __float_as_uint(largest), b.a.tag);
    release_word(to + 1, __float_as_uint(sum), b.a.tag);
  }
}

template <class W>
__device__ __forceinline__ void attend_splits(const Block<W>& b, uint32_t layer) {
  const AttendArgs args = attend_args(b, layer);
  attend::Part part;
  uint32_t turn = blockIdx.x;  // splits of all rows and heads are dealt to the blocks in turn
#pragma unroll 1
  for (part.row = 0; part.row < W::kRows; ++part.row) {
    part.place = attend::place_of(args, part.row);
    const uint32_t length = part.place.position + 1;
    const uint32_t each = attend::split_tokens(length);
    const uint32_t splits = (length + each - 1) / each;
#pragma unroll 1
    for (; turn < splits * W::dims().kv_heads; turn += gridDim.x) {
      part.kv_head = turn / splits;
      part.split = turn % splits;
      part.begin = part.split * each;
      part.end = min(part.begin + each, length);
      attend_split(b, args, layer, part);
    }
    turn -= splits * W::dims().kv_heads;
  }
  order_copies_after_writes();  // its memory goes back to the in-tape
}

// The splits of a head of a row to one, times the gate. 256 threads.
template <class W>
__device__ __forceinline__ void combine_head(const Block<W>& b, uint32_t layer, uint32_t row, uint32_t head) {
  using Sync = GroupSync<3, kHeadDim>;
  const uint32_t dim = threadIdx.x - kCombineWarp * 32;
  float* const factors = b.template place<float>(b.at.mixer);
  float& total = factors[kMaxSplits];
  const uint32_t length = b.a.segments[row].position + 1;
  const uint32_t each = attend::split_tokens(length);
  const uint32_t splits = (length + each - 1) / each;
  const size_t first = (size_t{row} * W::dims().q_heads + head) * kMaxSplits;
  if (dim < 32) {
    const uint64_t* const words = b.words(layer) + W::board().splits + first * 2;
    float2 ml[kMaxSplits / 32];
#pragma unroll
    for (uint32_t i = 0; i < kMaxSplits / 32; ++i) {
      const uint32_t split = i * 32 + dim;
      ml[i] = make_float2(-INFINITY, 0);
      if (split < splits) {
        uint64_t largest = 0;
        uint64_t sum = 0;
        while (true) {
          largest = acquire_word(words + split * 2);
          sum = acquire_word(words + split * 2 + 1);
          if (static_cast<uint32_t>(largest >> 32) == b.a.tag &&
              static_cast<uint32_t>(sum >> 32) == b.a.tag) {
            break;
          }
          pause();
        }
        ml[i] = make_float2(__uint_as_float(static_cast<uint32_t>(largest)),
                            __uint_as_float(static_cast<uint32_t>(sum)));
      }
    }
    __syncwarp();
    attend::weigh_splits(factors, total, ml);
  }
  Sync()();
  const uint64_t* const gate_word[1] = {b.words(layer) + W::board().mixed + row * W::board().mixed_row +
                                        head * 2 * kHeadDim + kHeadDim + dim};
  uint32_t gate[1];
  wait_each(gate, gate_word, b.a.tag);
  float value = 0;
#pragma unroll 8
  for (uint32_t s = 0; s < splits; ++s) {
    value = fmaf(factors[s], load_l2(b.a.partial + (first + s) * kHeadDim + dim), value);
  }
  const float out = value / total * sigmoid(__uint_as_float(gate[0]));
  put_feed(b.words(layer) + W::board().heads + row * W::board().heads_row, q_width(W::dims()),
           head * kHeadDim + dim, out, 0, true, b.a.tag);
  Sync()();  // before the next head's factors
}

template <class W>
__device__ __forceinline__ void attention(const Block<W>& b, uint32_t layer) {
  static_assert(kAttendBytes <= shared_of<W>(1).rest_slots);
  const uint32_t warp = threadIdx.x / 32;
  if (warp < kAttendWarps) {
    attend_splits(b, layer);
  } else if (warp >= kCombineWarp) {
#pragma unroll 1
    for (uint32_t i = gridDim.x - 1 - blockIdx.x; i < W::kRows * W::dims().q_heads; i += gridDim.x) {
      combine_head(b, layer, i / W::dims().q_heads, i % W::dims().q_heads);
    }
  }
}

}  // namespace lily::cuda::step
