// A decoding pass of up to eight rows, each of a sequence of its own, as one kernel: from the ids to the
// logits. Its blocks stay on the device through all layers and hand their results to one another as words
// that carry a tag (machine.cuh), while the weights of what comes next are on their way to shared memory. The
// sums are added in the same order as by the kernels of decode.h.
#pragma once

#include "backends/cuda/kernels/decode.h"

namespace lily::cuda {

inline constexpr uint32_t kStepRows = 8;  // most rows: columns of a tensor instruction

// What a layer reads. Matrices are tiles of 4-bit codes, the router's of 8-bit codes, all with narrow scales.
struct StepLayer {
  const uint8_t *in_proj, *out_proj, *router, *gate_up, *down;
  const float* post_norm;
  const float* next_norm;  // input norm of the next layer, or the norm before the head
  const float *conv, *decay_rate, *dt_bias, *norm;  // Gated DeltaNet
  const float *q_norm, *k_norm;                     // attention
};

struct StepArgs {
  Dims dims;
  const StepLayer* layers;  // [dims.layers], device memory; the fourth of every four is attention
  EmbedArgs embed;          // without a stream and a feed
  const uint8_t* head;
  const Segment* segments;      // [rows]: of one row each
  const uint32_t* row_segment;  // [rows]
  const float* rotary;
  float* partial;   // as in AttendArgs
  uint64_t* board;  // step_board_bytes(); the words of earlier launches have other tags
  uint32_t tag;     // never 0, and of this launch alone
  uint32_t rows;
  float* logits;           // [rows][vocab]
  uint32_t* experts_used;  // [layers][kExpertWords]
};
inline constexpr uint32_t kStepExpertWords = 8;

// A grid of `blocks` blocks, one to a multiprocessor, all of which must be there at once.
struct StepLaunch {
  uint32_t blocks;
  uint32_t shared;  // bytes of dynamic shared memory
};
uint64_t step_board_bytes(const Dims& dims, uint32_t rows);
// Shared memory of a block for `rows` rows on a grid of `blocks`.
uint32_t step_shared_bytes(const Dims& dims, uint32_t rows, uint32_t blocks);
// Whether there is a kernel for these widths on a grid of `blocks`.
bool step_takes(const Dims& dims, uint32_t blocks);
// To be called once for the device and a number of rows before its first launch. `resident`: whether the
// device can have a block of `shared` bytes on each of `blocks` multiprocessors at once.
int prepare_step(const Dims& dims, uint32_t rows, const StepLaunch& launch, bool& resident);
int launch_step(const StepArgs& args, const StepLaunch& launch, Stream queue);

}  // namespace lily::cuda
