// The Plan: every size and limit of a run, decided before anything is allocated. The only place where a limit
// is named.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "model/shape.h"

namespace lily {

struct Limits {
  static constexpr uint32_t kMaxContext = 262'144;  // the model's native context, tokens
  static constexpr uint32_t kMinContext = 64;
  static constexpr uint32_t kMaxSequences = 256;  // sequences that may run at once
  static constexpr uint32_t kMaxChunk = 4'096;    // rows of one prefill chunk
  static constexpr uint32_t kDefaultChunk = 256;
  static constexpr uint32_t kMaxDraft = 8;                // rows of one Keep::until_accept slice
  static constexpr uint32_t kMaxTopLogprobs = 20;         // OpenAI's bound
  static constexpr uint32_t kMaxStopStrings = 16;         // per request
  static constexpr uint32_t kMaxStopBytes = 1'024;        // of one stop string
  static constexpr uint32_t kMaxLogitBias = 1'024;        // entries per request
  static constexpr uint32_t kMaxQueue = 1'024;            // waiting requests, upper bound of --queue
  static constexpr uint64_t kMaxBodyBytes = 64ULL << 20;  // HTTP request body
};

struct PlanOptions {
  uint32_t context = 32'768;  // tokens of the longest sequence
  uint32_t sequences = 4;     // that may run at once
  uint32_t chunk = Limits::kDefaultChunk;
};

struct Plan {
  Shape shape;
  uint32_t context;    // tokens of the longest sequence, prompt and answer
  uint32_t sequences;  // that may run at once
  uint32_t chunk;      // most rows of one slice
  uint32_t max_rows;   // most rows of one pass: a chunk and one row for every other sequence
  DType kv_type;       // bf16

  uint64_t kv_bytes_per_token() const;  // keys and values of all attention layers
  uint64_t recurrent_bytes() const;     // convolution and delta-rule states of one sequence, float32
  uint64_t state_bytes(uint32_t tokens) const { return recurrent_bytes() + tokens * kv_bytes_per_token(); }
};

// Fails, naming the option, where an option is outside its limits.
Result<Plan> make_plan(const Shape& shape, const PlanOptions& options);

// The smallest of 1, 2, 4, 8, 16, ... that holds `rows`: kernels and graphs are prepared per bucket.
uint32_t row_bucket(uint32_t rows);

}  // namespace lily
