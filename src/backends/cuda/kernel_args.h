// What host code and kernels of the CUDA backend share: the layout of packed weights, of states, and the
// argument structs. The only project header that a .cu file and the headers beside it may see.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define LILY_BOTH __host__ __device__
#else
#define LILY_BOTH
#endif

struct CUstream_st;

namespace lily::cuda {

using Stream = CUstream_st*;  // cudaStream_t

// ---- Packed weights -------------------------------------------------------------------------------------
// A matrix of affine codes, [rows = outputs][cols = inputs], is cut into tiles of 16 outputs x 64 inputs. The
// tiles of one block of 16 outputs lie one after the other along the inputs, blocks one after the other along
// the outputs (rows padded to 16 with zeros), and the matrices of a stack of experts one after the other.
//
// A tile is
//   plane 0: for each of 32 lanes 16 bytes (lane-major, 512 bytes): the low four bits of its 32 codes;
//   plane 1: only with 8-bit codes, the same for the high four bits;
//   scales:  narrow: for each of 16 rows {bf16 scale, bf16 bias} (64 bytes): one group covers the tile;
//            wide:   for each half of 32 inputs, for each of 16 rows {float scale, float bias} (256 bytes).
// w = scale * code + bias. Files with groups of 64 or 128 and bf16 scales become narrow tiles; all others
// (groups of 32, f16 or f32 scales) wide ones. Nothing is rounded in either.
//
// Order within a lane: that of the A operand of mma.m16n8k16, four steps of 16 inputs each. 32-bit word j of
// the lane's four belongs to step j; with g = lane / 4 and t = lane % 4 its nibbles are
//   nibble i     (i < 4): row g + 8 * (i & 1), input 16 j + 2 t + 8 * (i >> 1)
//   nibble i + 4        : the same row, the next input,
// so that ((word >> 4 i) & 0x000f000f) | 0x43004300 is register a_i of step j in bf16, every code 128 too
// large.
inline constexpr uint32_t kTileRows = 16;
inline constexpr uint32_t kTileCols = 64;
inline constexpr uint32_t kPlaneBytes = 512;
inline constexpr uint32_t kNarrowScaleBytes = 64;
inline constexpr uint32_t kWideScaleBytes = 256;

struct PackedMatrix {
  const uint8_t* tiles;   // device memory, 256-byte aligned
  uint64_t matrix_bytes;  // from one matrix of a stack to the next
  uint32_t matrices;      // experts of a stack, else 1
  uint32_t rows;          // outputs that count
  uint32_t row_blocks;    // ceil(rows / 16)
  uint32_t k_tiles;       // cols / 64
  uint32_t planes;        // 1: 4-bit codes, 2: 8-bit codes
  uint32_t wide;          // 0 or 1
  uint32_t tile_bytes;
};

LILY_BOTH constexpr uint32_t tile_bytes_of(uint32_t planes, uint32_t wide) {
  return planes * kPlaneBytes + (wide != 0 ? kWideScaleBytes : kNarrowScaleBytes);
}

// ---- The model ------------------------------------------------------------------------------------------
struct Dims {
  uint32_t hidden, layers, vocab;
  uint32_t q_heads, kv_heads, k_heads, v_heads;
  uint32_t experts, ffn;  // ffn: of one expert, routed or shared
};
inline constexpr uint32_t kHeadDim = 256;
inline constexpr uint32_t kRotaryDim = 64;
inline constexpr uint32_t kDeltaDim = 128;  // keys and values of a Gated DeltaNet head
inline constexpr uint32_t kConvTaps = 4;
inline constexpr uint32_t kTopK = 8;
inline constexpr uint32_t kUses = 9;  // experts per row, the shared one included
inline constexpr uint32_t kPageTokens = 64;
LILY_BOTH constexpr uint32_t conv_channels(const Dims& d) { return (2 * d.k_heads + d.v_heads) * kDeltaDim; }
LILY_BOTH constexpr uint32_t value_width(const Dims& d) { return d.v_heads * kDeltaDim; }
LILY_BOTH constexpr uint32_t q_width(const Dims& d) { return d.q_heads * kHeadDim; }
LILY_BOTH constexpr uint32_t kv_width(const Dims& d) { return d.kv_heads * kHeadDim; }

// Which layers of the file one packed matrix holds, in order of its rows:
//   delta-net projection  in_proj_qkv | in_proj_z | in_proj_a | in_proj_b
//   attention projection  q_proj (per head 256 of q, 256 of gate) | k_proj | v_proj
//   router                router | shared_gate (one row)
//   gate_up               experts + 1 matrices, the last is the shared expert; block i of 16 rows holds rows
//                         8i..8i+7 of gate_proj, then rows 8i..8i+7 of up_proj: a lane of mma has both
//   down                  experts + 1 matrices, the last is the shared expert
// Norms, convolution, A_log and dt_bias are float32. All vectors are device memory.
struct DeltaNetLayer {
  PackedMatrix in_proj, out_proj;
  const float* input_norm;  // [hidden]
  const float* conv;        // [kConvTaps][conv_channels], the last tap on the current token
  const float* decay_rate;  // [v_heads]: exp(A_log); g = -decay_rate * softplus(a + dt_bias)
  const float* dt_bias;     // [v_heads]
  const float* norm;        // [kDeltaDim]
  uint32_t index;           // among the delta-net layers
};
struct AttentionLayer {
  PackedMatrix in_proj, out_proj;
  const float* input_norm;  // [hidden]
  const float* q_norm;      // [kHeadDim]
  const float* k_norm;      // [kHeadDim]
  uint32_t index;           // among the attention layers
};
struct MoeLayer {
  PackedMatrix router, gate_up, down;
  const float* post_norm;  // [hidden]
};

// ---- States ---------------------------------------------------------------------------------------------
// Recurrent memory of a sequence: float [delta-net layer][delta | conv ring] with
//   delta      [v_heads][kDeltaDim keys][kDeltaDim values]
//   conv ring  [kConvTaps][conv_channels]: the projection qkv of the token at position p, before the
//              convolution, lies in row p % 4. A token at p reads rows of p-1, p-2, p-3 and writes its own:
//              no row is read and written in one step. All zero before position 0.
LILY_BOTH constexpr uint64_t delta_floats(const Dims& d) {
  return uint64_t{d.v_heads} * kDeltaDim * kDeltaDim;
}
LILY_BOTH constexpr uint64_t recurrent_stride(const Dims& d) {
  return delta_floats(d) + uint64_t{kConvTaps} * conv_channels(d);
}
// Keys and values: pages of kPageTokens tokens, bf16
//   [attention layer][keys | values][kv head][kPageTokens][kHeadDim].
LILY_BOTH constexpr uint64_t page_plane(const Dims&) { return uint64_t{kPageTokens} * kHeadDim; }
// Element offset in a page of token 0 of one head. `which` is 0 for keys, 1 for values.
LILY_BOTH constexpr uint64_t page_offset(const Dims& d, uint32_t layer, uint32_t which, uint32_t head) {
  return ((uint64_t{layer} * 2 + which) * d.kv_heads + head) * page_plane(d);
}
LILY_BOTH constexpr uint64_t page_elements(const Dims& d) { return page_offset(d, d.layers / 4, 0, 0); }

// The consecutive rows of one sequence in a launch: rows [first_row, first_row + rows) of the stream are its
// tokens at positions [position, position + rows).
struct Segment {
  float* recurrent;
  uint16_t* const* pages;  // device array: page of token p is pages[p / kPageTokens]
  uint32_t first_row;
  uint32_t rows;
  uint32_t position;
  uint32_t pad;
};

// ---- Prefill --------------------------------------------------------------------------------------------
// A block over many rows; its kernels are in kernels/prefill_*.cu. All pointers but `host_segments` are
// device memory. Kernels are launched on `queue` and nothing waits; the segments stay in place until they
// have run.
struct PrefillBatch {
  Dims dims;
  float* stream;                 // [rows][hidden], natural order, updated in place
  const Segment* segments;       // [segment_count]
  const Segment* host_segments;  // the same on the host
  uint32_t segment_count;
  uint32_t rows;           // of all segments; segments lie one after the other from row 0
  const float* rotary;     // [context][kRotaryDim / 2]{cos, sin}, model/rope.h
  uint32_t* experts_used;  // moe: bit e of this layer's words is set for every expert e that a row chose
  uint8_t* workspace;      // prefill_workspace_bytes(dims, max_rows), 256-byte aligned
  uint64_t workspace_bytes;
  uint32_t multiprocessors;
  uint32_t compute_capability;  // 90 for sm_90
  Stream queue;
};

// Memory in which kernels hand values on (kernels/decode.h), to be made ready for the next step.
struct UnwriteArgs {
  uint8_t* memory;  // 16-byte aligned; may be null
  uint64_t bytes;   // a multiple of 16
};
inline constexpr uint32_t kUnwriteBlocks = 256;

// A few bytes from or to page-locked memory of the host, copied by a kernel: between two of them the queue
// would change to a copy engine and back.
struct HostCopyArgs {
  const void* from;  // both 16-byte aligned
  void* to;          // may be null: nothing
  uint32_t bytes;    // a multiple of 16
};

}  // namespace lily::cuda
