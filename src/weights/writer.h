// Writes the tensors of a checkpoint as safetensors: the layout is decided first from names, types and
// shapes, then the bytes come in any order and from any number of threads. Above kShardBytes the tensors are
// spread over several files with an index, as the MLX converter does; the header of every file carries
// {"format": "mlx"}.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"

namespace lily {

struct TensorPlan {
  std::string name;
  DType type = DType::bf16;
  std::vector<uint64_t> shape;
  uint64_t bytes() const;
};

class CheckpointWriter {
 public:
  static constexpr uint64_t kShardBytes = uint64_t{5} << 30;

  // Creates the files in `folder` (which must exist) and reserves their space, so that a full disk is found
  // now.
  static Result<CheckpointWriter> create(const std::filesystem::path& folder, std::vector<TensorPlan> tensors,
                                         uint64_t shard_bytes = kShardBytes);
  CheckpointWriter(CheckpointWriter&&) noexcept;
  CheckpointWriter& operator=(CheckpointWriter&&) noexcept;
  ~CheckpointWriter();

  const std::vector<TensorPlan>& tensors() const;
  uint64_t total_bytes() const;  // of all tensors

  // `bytes` of tensor `index`, beginning at `offset` in it. Thread-safe. Each byte is written once.
  Result<void> write(size_t index, uint64_t offset, std::span<const std::byte> bytes) const;

  // Writes the index if there are several files, and flushes everything to the disk. Every byte of every
  // tensor must have been written.
  Result<void> finish();

 private:
  struct Impl;
  explicit CheckpointWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lily
