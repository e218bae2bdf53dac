// Binding: from a checkpoint folder to the views that a backend loads. Strict: an absent, extra, mis-shaped
// or mis-typed tensor is refused, all faults at once with name, expected and found. Vision tensors are
// ignored.
#pragma once

#include <filesystem>
#include <memory>

#include "model/tensors.h"
#include "weights/config.h"
#include "weights/container.h"

namespace lily {

// A checkpoint, mapped, bound and checked. Immutable; keeps the mapping alive for all views.
class WeightFile {
 public:
  // Reads config.json and the safetensors of `folder` (the MLX layout).
  // Disposable: whoever packs a tensor may use up its pages (ModelWeights::disposable).
  static Result<std::unique_ptr<WeightFile>> open(const std::filesystem::path& folder,
                                                  Ownership ownership = Ownership::shared);

  const Shape& shape() const { return config_.shape; }
  const ModelConfig& config() const { return config_; }
  const ModelWeights& weights() const { return weights_; }
  const Container& container() const { return container_; }
  const std::filesystem::path& folder() const { return folder_; }
  uint64_t bound_bytes() const { return bound_bytes_; }  // of the tensors that were bound, MTP included

 private:
  WeightFile() = default;
  std::filesystem::path folder_;
  ModelConfig config_;
  Container container_;
  ModelWeights weights_;
  uint64_t bound_bytes_ = 0;
};

// Binds an open container: fills `weights` from the names of the MLX layout. Exposed for tests and `inspect`.
// Returns the bytes bound.
Result<uint64_t> bind_weights(const Container& container, const ModelConfig& config, ModelWeights& weights);

}  // namespace lily
