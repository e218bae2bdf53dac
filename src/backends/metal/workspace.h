// The buffers between the kernels of a block, and the kernels that belong to no matrix.
#pragma once

#include "backends/metal/model.h"

namespace lily::metal {

// Floats unless said otherwise; R is the most rows of a batch, C of chunks.
struct DeviceModel::Workspace {
  std::unique_ptr<Buffer> mixed;    // [R][conv_channels] or [R][q_heads][q 256 | gate 256]
  std::unique_ptr<Buffer> z;        // [R][value_width]
  std::unique_ptr<Buffer> ab;       // [R][a of the value heads | b]
  std::unique_ptr<Buffer> keys;     // [R][kv_width]
  std::unique_ptr<Buffer> values;   // [R][kv_width]
  std::unique_ptr<Buffer> heads;    // [R][max(value_width, q_width)]
  std::unique_ptr<Buffer> parts;    // [kSmallRows][kv_heads][kAttendParts][8][kPartFloats]
  std::unique_ptr<Buffer> router;   // [R][experts + 1]
  std::unique_ptr<Buffer> weights;  // [R][9]
  std::unique_ptr<Buffer> inner;    // [9 R][ffn]
  std::unique_ptr<Buffer> head_in;  // [kHeadRows][hidden]
  // Many rows only.
  std::unique_ptr<Buffer> normed;                       // [R][hidden]
  std::unique_ptr<Buffer> qkv;                          // [R][conv_channels]
  std::unique_ptr<Buffer> u, w, q, k, out;              // [C][v_heads][32][128]
  std::unique_ptr<Buffer> p;                            // [C][v_heads][32][32]
  std::unique_ptr<Buffer> decays;                       // [C][v_heads]
  std::unique_ptr<Buffer> counts, uses, places, tiles;  // u32: [experts], [8 R], [8 R], 1 + 3 * tiles
  std::unique_ptr<Buffer> results;                      // [9 R][hidden]

  // Each buffer with its size, for a plan.
  struct Sized {
    std::unique_ptr<Buffer> Workspace::*buffer;
    const char* name;
    uint64_t bytes;
  };
  static std::vector<Sized> sizes(const Plan& plan);
  static uint32_t batch_rows(const Plan& plan);
};

struct DeviceModel::Kernels {
  const Pipeline *embed, *norm_rows, *gather_rows, *copy_floats;
  const Pipeline *delta_step, *conv_update;
  const Pipeline *attend_prepare, *attend, *attend_combine, *attend_many;
  const Pipeline* route;
  const Pipeline *chunk_conv, *chunk_pairs, *chunk_scan, *chunk_finish;
  const Pipeline *group_count, *group_scatter, *combine_experts;
};

}  // namespace lily::metal
