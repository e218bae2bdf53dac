// Launches of the prefill kernels, one function per kernel family, for prefill.cpp, tests and measurements.
// All pointers are device memory; `tokens` are the rows of the pass. bf16 arrays are uint16_t, so that the
// host compiler needs no CUDA header for them.
#pragma once

#include "backends/cuda/kernel_args.h"

namespace lily::cuda::prefill {

// Where a launch goes.
struct Device {
  uint32_t processors;    // streaming multiprocessors
  uint32_t shared_bytes;  // shared memory that a block may have
  Stream queue;
};

// Equation 1: y = x * rsqrt(mean(x^2) + eps) * weight in bf16; `rest`, unless null, is what rounding took
// from it, in bf16 too.
struct NormArgs {
  const float* x;       // [tokens][width]
  const float* weight;  // [width]
  uint16_t* y;          // [tokens][width]
  uint16_t* rest;       // [tokens][width] or null
  uint32_t tokens;
  uint32_t width;  // a multiple of 4, at most 2048
};
void norm(const NormArgs& args, Device device);

// y = W x. The outputs go to up to kDenseRanges arrays: range i takes those below `end` that earlier ranges
// left.
enum class Store : uint32_t { bf16, f32, add_f32 };
struct DenseRange {
  void* y;          // [tokens][stride]
  uint32_t stride;  // elements from one token to the next, even
  uint32_t end;     // a multiple of 16, but for the last range
  Store store;
};
constexpr uint32_t kDenseRanges = 3;
struct DenseArgs {
  PackedMatrix weights;
  DenseRange ranges[kDenseRanges];
  const uint16_t* x;  // [tokens][64 * k_tiles]
  uint32_t tokens;
};
void dense(const DenseArgs& args, Device device);
// How many tokens a block of dense() works on at a time: 32, 64 or 128.
uint32_t dense_tile_tokens(uint32_t outputs, uint32_t tokens, uint32_t processors);

// Equation 20 and the scalar gate of the shared expert. Both factors are pairs of bf16 (high part and rest),
// so that logits are good to 2^-16 and only true near-ties of the router can fall differently than in
// float32.
struct RouterArgs {
  PackedMatrix router;   // [experts + 1, hidden]: the last row is the shared expert's gate
  const uint16_t* x;     // [tokens][hidden]
  const uint16_t* rest;  // [tokens][hidden]
  float* logits;         // [tokens][logits_stride(experts)]
  uint16_t* chosen;      // [tokens][kTopK]: experts in ascending order
  float* weights;        // [tokens][kUses]: of `chosen`; the last is the shared expert's
  uint32_t* counts;      // [experts]: how many tokens chose it
  uint32_t* uses;        // [experts][tokens]: token * kUses + slot, ascending
  uint32_t* used_bits;   // bit e is set for every expert with a token; may be null
  uint32_t experts;
  uint32_t tokens;
};
LILY_BOTH constexpr uint32_t logits_stride(uint32_t experts) { return experts + 16; }
void route(const RouterArgs& args, Device device);

// Equations 21 and 22 over the uses that route() found; the sum of a token's nine, in ascending order of the
// experts and the shared one last, is added to the stream.
struct ExpertsArgs {
  PackedMatrix gate_up, down;
  const uint16_t* x;       // [tokens][hidden]
  const float* weights;    // as in RouterArgs
  const uint32_t* counts;  // as in RouterArgs
  const uint32_t* uses;    // as in RouterArgs
  uint16_t* inner;         // [tokens * kUses][ffn]: silu(gate x) * up x
  uint16_t* outer;         // [tokens * kUses][hidden]: down of it
  float* stream;           // [tokens][hidden]
  uint32_t experts;
  uint32_t tokens;
};
void experts(const ExpertsArgs& args, Device device);
// Its stages, in this order.
void experts_enter(const ExpertsArgs& args, Device device);    // inner
void experts_leave(const ExpertsArgs& args, Device device);    // outer
void experts_combine(const ExpertsArgs& args, Device device);  // stream
// How many uses of one expert a block of experts() works on at a time: 32, 64, 96 or 128.
uint32_t experts_tile_tokens(uint32_t experts, uint32_t tokens);

// Gated DeltaNet between its two projections (equations 11 to 17) in chunks of kChunk tokens. Chunks begin at
// multiples of kChunk of a sequence's positions, whatever the pass; a pass that begins inside one works on
// its rest.
enum : uint32_t { kChunk = 64 };
LILY_BOTH constexpr uint32_t chunks_of(const Segment& segment) {
  return (segment.position % kChunk + segment.rows + kChunk - 1) / kChunk;
}
struct DeltaArgs {
  Dims dims;
  uint32_t layer;  // among the delta-net layers
  const Segment* segments;
  uint32_t segment_count;
  uint32_t chunks;  // of all segments
  uint32_t tokens;
  const float* conv;        // as in DeltaNetLayer
  const float* decay_rate;  // as in DeltaNetLayer
  const float* dt_bias;     // as in DeltaNetLayer
  const float* norm;        // as in DeltaNetLayer
  const uint16_t* mixed;    // [tokens][conv_channels]
  const uint16_t* z;        // [tokens][value_width]
  const float* gates;       // [tokens][2 * v_heads]: a, then b
  // Workspace
  uint16_t* q;  // [tokens][k_heads * kDeltaDim]: unit vectors * kDeltaDim^-1/2
  uint16_t* k;  // [tokens][k_heads * kDeltaDim]: unit vectors
  uint16_t* v;  // [tokens][value_width]
  // With S the state where a token's chunk starts, d = u - w S is what it changes.
  uint16_t* u;        // [tokens][value_width]
  uint16_t* w;        // [tokens][value_width]
  uint16_t* scores;   // [tokens][v_heads][kChunk]: decayed q.k of a token with those of its chunk
  float* log_decays;  // [tokens][v_heads]: sum of g from the chunk's first token on
  uint16_t* out;      // [tokens][value_width]: S^T q, then the gated norm of it
};
void delta_net(const DeltaArgs& args, Device device);
// Its stages, in this order.
void delta_convolve(const DeltaArgs& args, Device device);     // q, k, v and the conv ring
void delta_prepare(const DeltaArgs& args, Device device);      // u, w, scores, log_decays
void delta_pass_states(const DeltaArgs& args, Device device);  // out and the states
void delta_gated_norm(const DeltaArgs& args, Device device);   // out

// Attention between its two projections (equations 5 to 9).
struct AttentionArgs {
  Dims dims;
  uint32_t layer;  // among the attention layers
  const Segment* segments;
  const Segment* host_segments;
  uint32_t segment_count;
  uint32_t tokens;
  const float* q_norm;    // [kHeadDim]
  const float* k_norm;    // [kHeadDim]
  const float* rotary;    // as in PrefillBatch
  const uint16_t* mixed;  // [tokens][2 * q_width + 2 * kv_width]: per head q | gate; k; v
  uint16_t* q;            // [tokens][q_width]: normed and turned
  uint16_t* out;          // [tokens][q_width]
};
void attention(const AttentionArgs& args, Device device);
// Its stages, in this order.
void attention_enter(const AttentionArgs& args, Device device);   // q, and keys and values to the pages
void attention_attend(const AttentionArgs& args, Device device);  // out

}  // namespace lily::cuda::prefill
