// Sampling on the device: what sampling/sampler.h specifies for a row of logits.
#pragma once

#include "backends/cuda/kernel_args.h"

namespace lily::cuda {

struct BiasEntry {
  int32_t token;
  float bias;
};

// How one row is sampled.
struct SampleRow {
  uint32_t mode;  // 0: none, 1: greedy, 2: random
  float temperature;
  uint32_t top_k;
  float top_p, min_p;
  float presence, frequency, repetition;
  uint64_t seed, position;
  uint32_t first_bias, bias_count;
  uint32_t allowed;             // offset in SampleArgs::allowed, or ~0: all tokens
  uint32_t logits_row;          // row of SampleArgs::logits
  const uint32_t* prompt_bits;  // of the state: bit per token id
  uint32_t* counts;             // of the state: how often each token id is in the answer
  int32_t* sampled;             // of the state: the token sampled last
};

// The largest adjusted logit of a slice of a row.
struct SliceBest {
  float value;
  int32_t id;
  uint32_t usable;  // all logits of the slice are finite and none became NaN or +infinity
  uint32_t pad;
};

inline constexpr uint32_t kSliceTokens = 2048;

struct SampleArgs {
  const float* logits;  // [rows][vocab]
  uint32_t vocab;
  uint32_t rows;  // rows of the table
  const SampleRow* table;
  const BiasEntry* bias;
  const uint32_t* allowed;
  float* adjusted;      // [rows][vocab]
  SliceBest* best;      // [rows][slices]
  int32_t* tokens;      // [rows]: the sampled id, or -1
  uint32_t* finite;     // [rows]: 0 where the row could not be used
  UnwriteArgs unwrite;  // done beside the last kernel
  HostCopyArgs report;  // likewise
};
int launch_sample(const SampleArgs& args, Stream queue);
int prepare_sample();  // to be called once before the first launch

// Adds `change` to the counts of a few tokens, and to that of the token sampled last where `sampled` is not
// null.
struct CountArgs {
  uint32_t* counts;
  const int32_t* sampled;
  int32_t tokens[8];
  uint32_t count;
  int32_t change;
};
int launch_count(const CountArgs& args, Stream queue);

constexpr uint32_t slices_of(uint32_t vocab) { return (vocab + kSliceTokens - 1) / kSliceTokens; }

}  // namespace lily::cuda
