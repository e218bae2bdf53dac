// How the next token is chosen. Parameters only; the algorithm and its specification are in
// sampling/sampler.h.
#pragma once

#include <cstdint>
#include <span>

namespace lily {

struct LogitBias {
  int32_t token;
  float bias;  // added to the logit before anything else
};

struct Sampling {
  enum class Mode : uint8_t {
    none,    // nothing is sampled (prefill that goes on, scoring)
    greedy,  // the largest adjusted logit, the lowest id among equals
    random,  // temperature, then top_k, top_p, min_p
  };
  Mode mode = Mode::none;
  float temperature = 1.0F;        // > 0; temperature 0 of a request is Mode::greedy
  uint32_t top_k = 0;              // 0 = all
  float top_p = 1.0F;              // (0, 1]
  float min_p = 0.0F;              // [0, 1]
  float presence_penalty = 0.0F;   // subtracted once from tokens of the answer so far
  float frequency_penalty = 0.0F;  // subtracted per occurrence in the answer so far
  float repetition_penalty =
      1.0F;           // > 0; divides positive, multiplies negative logits of tokens of prompt and answer
  uint64_t seed = 0;  // of this request; the draw at position p depends on (seed, p) alone
  std::span<const LogitBias> bias{};
  // Bit t of word t/32 allows token t. Empty = all allowed. Must outlive the pass.
  std::span<const uint32_t> allowed{};
};

}  // namespace lily
