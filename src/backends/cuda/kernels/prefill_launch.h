// Launches of the prefill kernels, one function per kernel family, for prefill.cpp, tests and measurements. All
// pointers are device memory; `tokens` are the rows of the pass. bf16 arrays are uint16_t, so that the host compiler
// needs no CUDA header for them.
#pragma once

#include "backends/cuda/kernel_args.h"

namespace lily::cuda::prefill {

// Where a launch goes.
struct Device {
  uint32_t processors;  // streaming multiprocessors
  Stream queue;
};

// Equation 1: y = x * rsqrt(mean(x^2) + eps) * weight in bf16; `rest`, unless null, is what rounding took from it, in
// bf16 too.
struct NormArgs {
  const float* x;       // [tokens][width]
  const float* weight;  // [width]
  uint16_t* y;          // [tokens][width]
  uint16_t* rest;       // [tokens][width] or null
  uint32_t tokens;
  uint32_t width;  // a multiple of 4, at most 2048
};
void norm(const NormArgs& args, Device device);

// y = W x. The outputs go to up to kDenseRanges arrays: range i takes those below `end` that earlier ranges left.
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

// Equation 20 and the scalar gate of the shared expert. Both factors are pairs of bf16 (high part and rest), so that
// logits are good to 2^-16 and only true near-ties of the router can fall differently than in float32.
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

// Equations 21 and 22 over the uses that route() found; the sum of a token's nine, in ascending order of the experts
// and the shared one last, is added to the stream.
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
// How many uses of one expert a block of experts() works on at a time: 32, 64, 96 or 128.
uint32_t experts_tile_tokens(uint32_t experts, uint32_t tokens);

}  // namespace lily::cuda::prefill
