// Where the kernels of a layer, for few rows, find and leave what they hand to each other.
#pragma once

#include <algorithm>

#include "backends/cuda/kernels/decode.h"

namespace lily::cuda {

struct Places {
  StreamArgs before;   // the stream that the mixer finds, and its feed
  float* mixed;        // [rows][widest projection]
  Feed heads;          // what the heads of the mixer put out
  StreamArgs mixer;    // what the mixer adds to, and the feed of the experts
  float* router;       // [rows][router_width]
  uint16_t* h;         // of the experts
  StreamArgs experts;  // what the experts add to, and the feed of the next layer
  struct {
    Relay in_proj, mixer, combine, out_proj, router, gate_up, down;
  } relays;
};
// Steps of up to so many rows are relayed (docs/CUDA.md).
inline constexpr uint32_t kRelayedStepRows = 2;
static_assert(kRelayedStepRows <= kRelayedRows);
inline constexpr uint64_t kCountBytes = 128;  // of a count of Relay
inline constexpr uint32_t kCounts = 7;

constexpr uint32_t padded(uint32_t rows) { return (rows + kTileRows - 1) / kTileRows * kTileRows; }
constexpr uint32_t mixed_width(const Dims& d) {
  return std::max(padded(conv_channels(d) + value_width(d) + 2 * d.v_heads),
                  padded(2 * q_width(d) + 2 * kv_width(d)));
}
constexpr uint32_t heads_width(const Dims& d) { return std::max(value_width(d), q_width(d)); }
constexpr uint32_t router_width(const Dims& d) { return padded(d.experts + 1); }

// What the kernels of one layer of a step hand on, for `rows` rows; a multiple of 256.
constexpr uint64_t relay_bytes(const Dims& d, uint64_t rows) {
  const auto feed = [](uint64_t inputs) { return inputs * 2 + inputs / kFeedBlock * 4; };
  const uint64_t of_row = 2 * feed(d.hidden) + feed(heads_width(d)) +
                          uint64_t{4} * (2 * d.hidden + mixed_width(d) + router_width(d)) +
                          uint64_t{kUses} * d.ffn * 2;
  return (rows * of_row + kCounts * kCountBytes + 255) / 256 * 256;
}

}  // namespace lily::cuda
