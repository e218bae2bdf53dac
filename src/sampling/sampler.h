// The sampler's specification, on the host: what every device must compute for a row of logits.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "sampling/sampling.h"

namespace lily {

// Which tokens the prompt and the answer of a running generation hold: what the penalties look at.
class TokenCounts {
 public:
  // Starts an answer after `prompt` (token ids in [0, vocab); others are ignored).
  void begin(std::span<const int32_t> prompt, uint32_t vocab);
  void add(int32_t token);     // a token of the answer
  void remove(int32_t token);  // takes back one add(): a drafted token that was not accepted
  const std::unordered_map<int32_t, uint32_t>& answer() const { return answer_; }
  bool in_prompt(int32_t token) const;
  std::span<const uint64_t> prompt_bits() const { return prompt_; }

 private:
  std::vector<uint64_t> prompt_;  // bit per token id
  std::unordered_map<int32_t, uint32_t> answer_;
};

// Reused between calls so that sampling allocates only when it grows.
struct SamplerScratch {
  std::vector<float> adjusted;  // [vocab]
  std::vector<int32_t> order;   // candidate ids, the first of them in descending order
};

struct Sampled {
  int32_t token = -1;
  bool finite = true;  // false: the row held a NaN or +infinity, or allowed nothing; then token is -1
};

// Steps, in this order: bias; repetition, then frequency and presence penalty; mask; greedy stops here with
// the argmax. Else divide by temperature; keep the top_k largest (ties by lower id); softmax; keep the
// shortest prefix whose mass reaches top_p (at least one); drop those under min_p times the largest; draw by
// inverse transform over the kept tokens in descending order with philox_uniform(seed, position).
// Logits stay float32 up to the division by temperature; weights exp(x - max) and their sums are doubles,
// summed by id over the whole row (top_k off) or in descending order over the top_k.
Sampled sample(std::span<const float> logits, const Sampling& sampling, const TokenCounts& counts,
               uint64_t position, SamplerScratch& scratch);

// The four output words of Philox 4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2,
// 3").
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Uniform in [0, 1): the upper 53 bits of output words 0 (high) and 1 (low) of Philox 4x32-10 with key `seed`
// and counter `position`, both low word first.
double philox_uniform(uint64_t seed, uint64_t position);

// The natural logarithm of the softmax of an untempered row at `token`, summed in double.
double log_softmax_at(std::span<const float> logits, int32_t token);

struct TokenLogprob {
  int32_t token;
  double logprob;
};

// The `count` largest log-probabilities of an untempered row, descending, ties by lower id.
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, uint32_t count);

}  // namespace lily
