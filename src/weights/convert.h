// From the published checkpoint to the 4-bit MLX layout that lily runs: docs/QUANTIZATION.md. The result
// equals what the MLX converter makes, and keeps the multi-token-prediction layer, which that one drops.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>

#include "base/function_ref.h"
#include "base/result.h"
#include "weights/config.h"

namespace lily {

struct ConvertOptions {
  QuantFormat format;    // of all modules but the router and the shared gate (8 bits, groups of 64)
  unsigned threads = 0;  // 0: all usable cores
  const std::atomic<bool>* cancel = nullptr;
};

struct ConvertReport {
  Shape shape;
  uint64_t read_bytes = 0;     // of the tensors that were converted
  uint64_t written_bytes = 0;  // of all tensors written
  uint64_t ignored_bytes = 0;  // vision tensors
  bool mtp = false;
};

// Reads `source`, writes `destination` (which must not exist or be empty) under a temporary name and renames
// it last. Streams: memory stays small whatever the size. `progress` is called from the calling thread with
// bytes read so far and in total.
Result<ConvertReport> convert_checkpoint(const std::filesystem::path& source,
                                         const std::filesystem::path& destination,
                                         const ConvertOptions& options,
                                         FunctionRef<void(uint64_t done, uint64_t total)> progress);

}  // namespace lily
