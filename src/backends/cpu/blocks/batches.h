// Where each block's intermediate values lie in the workspace. Constructed over a null Carver, a batch tells
// how much of it the block takes.
#pragma once

#include <array>

#include "backends/cpu/blocks/cpu_blocks.h"

namespace lily::cpu {

// Partial sums of attention that a pass may need at once: those of its longest row, or of a batch of short
// ones.
uint32_t attention_partials(const Shape& shape, uint32_t context, uint32_t rows);

struct CpuBlocks::DeltaNetBatch {
  DeltaNetBatch(const Kernels& kernels, Carver carver, const Shape& shape, const PackedDeltaNet& weights,
                BatchRows batch_rows);
  const PackedDeltaNet& w;
  uint32_t rows;
  float* mixed;  // [conv_channels / kKeyDim][rows][kKeyDim]: q | k | v by heads, before the convolution
  float* z;      // [v_heads][rows][kValueDim]
  float* a;      // [rows][v_heads]: what decay is made of
  float* b;      // [rows][v_heads]: and beta
  PreparedRows input;
  PreparedRows output;
  size_t used;
  // Set by the block.
  uint32_t layer = 0;
  const DeltaNetDense* dense = nullptr;
  std::span<const Piece> pieces;
};

// One head group of one row against one partition of its tokens.
struct CpuBlocks::AttendItem {
  const Piece* piece;
  uint32_t row;  // of the batch
  uint32_t kv_head;
  uint32_t partition;
  uint32_t partitions;  // of this row and head
  uint32_t tokens;      // in this partition
};

// The same head and partition of consecutive rows.
struct CpuBlocks::AttendGroup {
  std::array<uint32_t, kAttendRows> items;  // of each row
  uint32_t rows;
};

// The blocks of a partition.
struct CpuBlocks::KeysValues {
  std::array<const std::byte*, kPartitionBlocks> keys;
  std::array<const std::byte*, kPartitionBlocks> values;
};

struct CpuBlocks::AttentionBatch {
  AttentionBatch(const Kernels& kernels, Carver carver, const Shape& shape, const PackedAttention& weights,
                 BatchRows batch_rows, uint32_t partials);
  const PackedAttention& w;
  uint32_t rows;
  float* q_gate;           // [rows][q_heads][query | gate]
  float* q;                // [rows][q_width], normalised, turned, scaled; then the outputs
  float* k;                // [rows][kv_width]
  float* v;                // [rows][kv_width]
  float* partial_out;      // [partials][kGroupHeads][kHeadDim]
  float* partial_largest;  // [partials][kGroupHeads]
  float* partial_total;    // [partials][kGroupHeads]
  PreparedRows input;
  PreparedRows output;
  size_t used;
  // Set by the block.
  uint32_t layer = 0;
  const AttentionDense* dense = nullptr;
  std::span<const Piece> pieces;
};

struct CpuBlocks::MoeBatch {
  MoeBatch(const Kernels& kernels, Carver carver, const Shape& shape, const PackedMoe& weights,
           BatchRows batch_rows);
  const PackedMoe& w;
  uint32_t rows;
  float* logits;          // [rows][experts]
  float* shared_factor;   // [rows], before the sigmoid
  float* shared_gate;     // [rows][shared_ffn]
  float* shared_up;       // [rows][shared_ffn]
  float* shared_out;      // [rows][hidden]
  float* factor;          // [rows][kTopK]
  uint32_t* expert;       // [rows][kTopK]
  uint32_t* pair;         // [rows][kTopK]: where that choice lies in the order by expert
  uint32_t* row_of_pair;  // [rows * kTopK]
  uint32_t* first_pair;   // [experts + 1]
  float* gate;            // [rows * kTopK][expert_ffn], in the order by expert
  float* up;
  float* out;  // [rows * kTopK][hidden]
  PreparedRows input;
  PreparedRows pair_input;    // of gate and up, in the order by expert
  PreparedRows expert_input;  // of down
  PreparedRows shared_input;
  size_t used;
  // Set by the block.
  std::span<const float> post_norm;
};

}  // namespace lily::cpu
