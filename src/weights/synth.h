// Synthetic checkpoints: random but well-conditioned weights in exactly the MLX layout, a pure function of
// tensor name and seed. docs/SYNTH.md is the definition; tools/golden/synth.py is a second implementation of
// it.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "base/function_ref.h"
#include "base/result.h"
#include "model/shape.h"
#include "weights/config.h"

namespace lily {

struct SynthOptions {
  Shape shape = kTiny;  // with the wanted number of layers
  uint64_t seed = 0;
  QuantFormat format;              // of all modules but the router and the shared gate (8 bits, groups of 64)
  DType float_type = DType::bf16;  // of scales, biases and unquantised tensors
  bool mtp = false;                // write the multi-token-prediction layer too
  std::filesystem::path tokenizer;  // folder whose tokenizer is copied; empty: none, or a made one for kTiny
  unsigned threads = 0;             // 0: all usable cores
  const std::atomic<bool>* cancel = nullptr;
};

struct SynthReport {
  uint64_t bytes = 0;          // of all tensors
  bool has_tokenizer = false;  // false: a checkpoint for computing only, not for text
};

// Of all tensors that synthesise() would write, without writing any. The other files are less than 1 MB when
// no tokenizer is copied.
uint64_t synth_bytes(const SynthOptions& options);

// Writes a complete checkpoint folder. `progress` is called from the calling thread with bytes done and in
// total.
Result<SynthReport> synthesise(const std::filesystem::path& destination, const SynthOptions& options,
                               FunctionRef<void(uint64_t done, uint64_t total)> progress);

// A byte-level tokenizer of the Qwen kind that fills `vocab` ids: 256 bytes, pairs of printable characters,
// in a large one pairs with a third, and the 33 added tokens of the family last. tokenizer.json and
// tokenizer_config.json.
std::string synth_tokenizer_json(uint32_t vocab);
std::string synth_tokenizer_config_json();

// The stop ids of a tokenizer.json: those of <|im_end|> and <|endoftext|>, which must be there and below
// `vocab`.
Result<std::vector<int32_t>> stop_ids_of_tokenizer(std::string_view tokenizer_json, uint32_t vocab);

}  // namespace lily
