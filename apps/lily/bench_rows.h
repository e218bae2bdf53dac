// The arithmetic of `lily bench`: lists of options, statistics over repeats, and from what was measured to
// the figures of a row.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/result.h"
#include "model/shape.h"

namespace lily::app {

// "512,2048": whole numbers within [low, high], ascending and each once. An empty text is an error.
Result<std::vector<uint32_t>> parse_list(std::string_view text, uint32_t low, uint32_t high);

struct Statistic {
  double median = 0;
  double spread = 0;  // (largest - smallest) / median
};
Statistic statistic_of(std::vector<double> values);  // at least one, positive

// Multiply-adds with the weights that one token uses, the head left out, and those of the head for one token.
// What is not a weight (attention scores, delta rule) does not count.
uint64_t multiply_adds_per_token(const Shape& shape);
uint64_t multiply_adds_of_head(const Shape& shape);

enum class BenchPhase : uint8_t { prefill, decode };
std::string_view to_string(BenchPhase phase);

// What a row measures: `parallel` sequences of `depth` tokens each either read `prompt` more and sample a
// token, or (prompt is 0) sample token after token, each in the same passes.
struct BenchCase {
  BenchPhase phase;
  uint32_t prompt;
  uint32_t depth;
  uint32_t parallel;
};

// One repeat of a case.
struct BenchRun {
  uint64_t tokens = 0;       // read or sampled, of all sequences
  double seconds = 0;        // from the first submission to the last token
  double first_token = 0;    // from the first submission until every sequence has a token
  uint64_t bytes_read = 0;   // as the device counts them
  uint64_t head_rows = 0;    // tokens that logits were computed for
  std::vector<int32_t> ids;  // the sampled tokens, in the order of passes and slices
};

struct BenchRow {
  BenchCase measured;
  double tok_s;   // median over the repeats
  double spread;  // of tok_s
  double bytes_per_token;
  double gb_s;            // bytes_per_token * tok_s, in 1e9 bytes
  double share_of_limit;  // decode: of the read bandwidth; prefill: of the peak of multiply-adds
  double ttft_s;          // median
  uint64_t peak_bytes;    // resident memory of the process, the most until the end of the row
};
// `runs` are the repeats, at least one; a peak of 0 is filled in by the caller.
BenchRow make_row(const BenchCase& measured, std::span<const BenchRun> runs, const DeviceLimits& limits,
                  const Shape& shape);

// FNV-1a over sampled tokens: 16 hexadecimal digits.
class Fingerprint {
 public:
  void add(std::span<const int32_t> ids);
  std::string text() const;

 private:
  uint64_t hash_ = 0xCBF29CE484222325;
};

}  // namespace lily::app
