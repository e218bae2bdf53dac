// Kernels for few rows: every weight is read once for all rows of a launch. Launch functions return 0 or a
// cudaError_t; nothing waits.
#pragma once

#include "backends/cuda/kernel_args.h"

namespace lily::cuda {

inline constexpr uint32_t kGroupRows = 8;   // columns of mma.m16n8k16
inline constexpr uint32_t kSmallRows = 32;  // most rows of a launch
inline constexpr uint32_t kMaxSplits = 64;  // parts of a context in attention
inline constexpr uint32_t kFewRows = 2;     // most rows of project.cu and experts.cu; others have *_many.cu
inline constexpr uint32_t kFeedBlock = 16;  // inputs per partial sum of a feed

// What a product reads: activations in fragment order (kernels/common.cuh) and, per kFeedBlock inputs, the
// sum of squares of what the norm divides by.
struct Feed {
  uint16_t* x;     // [rows][inputs]
  float* squares;  // [rows][inputs / kFeedBlock]
  // The same from a later row on; none stays none.
  Feed from(uint32_t row, size_t inputs) const {
    return x == nullptr ? *this : Feed{x + row * inputs, squares + row * (inputs / kFeedBlock)};
  }
};

// A kernel that does not wait for the one before it to end but for the values that it reads (machine.cuh): at
// most kRelayedRows rows, and products of narrow tiles. What it writes holds kUnwritten before and is written
// once.
inline constexpr uint32_t kRelayedRows = 2;
struct Relay {
  uint32_t on;  // 0: an ordinary kernel, which waits
  // Counts of the blocks of a kernel that are about to write their results, from -1 on. They say when it is
  // worth looking: values that many look for arrive late. `before` is of the kernel that writes what this one
  // reads, of `blocks` blocks; null: look at once. `own` may be null.
  const uint32_t* before;
  uint32_t blocks;
  uint32_t* own;
};

// The residual stream and the feed made of it for the next product.
struct StreamArgs {
  const float* from;       // [rows][hidden]: what is added to
  float* stream;           // [rows][hidden]: the sum; often the same
  const float* next_norm;  // [hidden]: weight of the norm that comes next
  Feed feed;
  uint32_t hidden;
  // The same from a later row on.
  StreamArgs from_row(uint32_t row) const {
    const size_t first = size_t{row} * hidden;
    return {from + first, stream + first, next_norm, feed.from(row, hidden), hidden};
  }
};

enum class Scaling : uint32_t {
  none,  // the feed is used as it is
  row,   // one norm over all inputs of a row: y is multiplied by 1 / rms
  head,  // one norm for each kDeltaDim inputs
};

// y[row][r] = scale * (w x)[r], or added to the stream.
struct ProjectArgs {
  PackedMatrix w;
  Feed feed;
  float* y;  // [rows][ld_y], or null: add to the stream
  uint32_t ld_y;
  uint32_t rows;
  Scaling scaling;
  StreamArgs to;
  Relay relay;
  uint32_t stages;  // of the ring of weights, 1..8
  uint32_t blocks;  // grid width
  uint32_t shared;  // bytes of dynamic shared memory
};
int launch_project(const ProjectArgs& args, Stream queue);

// The convolution, the delta rule and the gated norm of one row or a few rows of each segment.
struct DeltaStepArgs {
  Dims dims;
  const Segment* segments;
  uint32_t segment_count;
  const float* mixed;  // [rows][ld]: qkv | z | a | b
  uint32_t ld;
  uint32_t layer;  // index among the delta-net layers
  const float* conv;
  const float* decay_rate;
  const float* dt_bias;
  const float* norm;
  Feed out;            // value_width inputs; squares are of the heads before their norm
  uint32_t first_row;  // of the launch in the stream: segments count rows from there
  uint32_t single;     // every segment has one row: the step itself writes the convolution ring
  Relay relay;         // with `single` only
  // Of more than kDeltaRingSegments segments: blocks, and the states that a block has room for.
  uint32_t blocks;
  uint32_t stages;
  uint32_t shared;  // bytes of dynamic shared memory; others do not use it: tuning.h
};
int launch_delta_step(const DeltaStepArgs& args, Stream queue);
inline constexpr uint32_t kDeltaRingSegments = 16;
inline constexpr uint32_t kDeltaRingStatic = 12 * 1024;  // at most, bytes of its static shared memory
inline constexpr uint32_t kDeltaColumns = 32;            // of a block

// Attention of rows that each belong to a segment.
struct AttendArgs {
  Dims dims;
  const Segment* segments;
  const uint32_t* row_segment;  // [rows]: index of the row's segment
  uint32_t segment_count;
  uint32_t rows;
  uint32_t first_row;
  const float* mixed;  // [rows][ld]: per head q | gate, then k, then v
  uint32_t ld;
  uint32_t layer;  // index among the attention layers
  const float* q_norm;
  const float* k_norm;
  const float* rotary;
  float* partial;     // [rows][q_heads][kMaxSplits][kHeadDim]
  float* partial_ml;  // [rows][q_heads][kMaxSplits][2]: maximum, sum
  Feed out;           // q_width inputs
  uint32_t single;    // every segment has one row: attention itself writes its key and value
  Relay relay;        // with `single` only
  Relay combine;      // of the kernel that adds up the splits
  uint32_t warps;     // of a block: 2 or 4
};
int launch_attend(const AttendArgs& args, Stream queue);
// Blocks of its two kernels.
inline constexpr uint32_t kCombineParts = 4;  // of a head
constexpr uint32_t attend_blocks(const Dims& d, uint32_t rows) {
  return (kMaxSplits + rows - 1) / rows * d.kv_heads * rows;
}
constexpr uint32_t combine_blocks(const Dims& d, uint32_t rows) { return d.q_heads * kCombineParts * rows; }

// The routing of a launch of gate_up, for down: words in memory, and the mark that they are those of `tag`.
// Tags of launches that follow one another differ.
inline constexpr uint32_t kPublishedBytes = 8 * 1024;
struct Published {
  uint32_t* words;  // kPublishedBytes
  uint32_t* mark;
  uint32_t tag;
};

// Experts. Router logits: [rows][ld_router], experts + 1 of them (the last is the gate of the shared expert).
struct ExpertArgs {
  Dims dims;
  PackedMatrix w;  // gate_up or down
  const float* router;
  uint32_t ld_router;
  uint32_t rows;
  Feed feed;    // gate_up: of the stream
  uint16_t* h;  // [rows][kUses][ffn], fragment order; a row's experts in ascending order, then the shared one
  float* y;     // down of many rows: [rows][kUses][hidden]
  uint32_t* experts_used;  // bits of the layer
  Published routing;
  StreamArgs to;  // down
  Relay relay;
  uint32_t stages;
  uint32_t blocks;
  uint32_t shared;
};
int launch_gate_up(const ExpertArgs& args, Stream queue);
int launch_down(const ExpertArgs& args, Stream queue);

// Token ids to the stream and its first feed.
struct EmbedArgs {
  const uint8_t* codes;  // as in the file
  const uint8_t* scales;
  const uint8_t* biases;
  uint32_t bits, group;
  uint32_t scale_kind;  // 0: bf16, 1: f16, 2: f32
  uint32_t vocab;
  const int32_t* ids;             // [rows]; negative: the token that was sampled for the row
  const int32_t* const* sampled;  // [rows]
  uint32_t rows;
  uint32_t* clear;  // words that are set to 0: the experts used in the pass
  uint32_t clear_count;
  StreamArgs to;
};
int launch_embed(const EmbedArgs& args, Stream queue);

// Sets all words to kUnwritten.
int launch_unwrite(const UnwriteArgs& args, Stream queue);
int launch_host_copy(const HostCopyArgs& args, Stream queue);

// The feed of chosen rows of the stream: to.feed row i is of stream row rows_of[i] (null: of row i).
int launch_prepare(const StreamArgs& to, const uint32_t* rows_of, uint32_t rows, Stream queue);

// Table of cosines and sines for positions below `positions`: [positions][kRotaryDim / 2]{cos, sin}.
int launch_rotary(float* table, const float* frequencies, uint32_t positions, Stream queue);

// Sizes of dynamic shared memory for the launches above.
// Whether a projection has blocks that take all its outputs in turns (project_tall.cu), and the rows that a
// block takes: for the others there are more blocks.
bool projects_in_turns(const PackedMatrix& w, uint32_t rows);
uint32_t project_rows_of_block(const PackedMatrix& w, uint32_t rows);
uint32_t project_shared_bytes(const PackedMatrix& w, uint32_t stages, uint32_t rows, uint32_t blocks);
uint32_t gate_up_shared_bytes(const PackedMatrix& w, uint32_t stages, uint32_t rows, uint32_t blocks);
uint32_t down_shared_bytes(const PackedMatrix& w, uint32_t stages, uint32_t rows);
uint32_t delta_ring_bytes(uint32_t stages);
// Of many rows: more, with which inputs need not be asked for late.
uint32_t gate_up_staged_bytes(const PackedMatrix& w);
uint32_t down_staged_bytes(const PackedMatrix& w);

// To be called once for the device before the first launch; `bytes` is the most shared memory of a block.
int prepare_project(uint32_t bytes);
int prepare_experts(uint32_t bytes);
int prepare_attend(uint32_t bytes);
int prepare_delta_step(uint32_t bytes);
int prepare_stream();

}  // namespace lily::cuda
