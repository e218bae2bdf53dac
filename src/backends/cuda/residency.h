// The weights of the model in device memory: what each packed matrix is made of, how much memory that is, and
// the upload through page-locked staging.
#pragma once

#include <variant>
#include <vector>

#include "backends/cuda/device.h"
#include "backends/cuda/dims.h"
#include "backends/cuda/kernel_args.h"
#include "base/function_ref.h"
#include "model/plan.h"
#include "model/tensors.h"

namespace lily::cuda {

// The embedding stays in the layout of the file: a row of it is read, not multiplied.
struct EmbedTable {
  const uint8_t* codes;
  const uint8_t* scales;
  const uint8_t* biases;
  uint32_t bits, group;
  uint32_t scale_kind;  // as in EmbedArgs
};

// Views into the memory of Residency.
struct LayerViews {
  std::variant<DeltaNetLayer, AttentionLayer> mixer;
  MoeLayer moe;
  const float* input_norm() const {
    return std::visit([](const auto& m) { return m.input_norm; }, mixer);
  }
};
struct ModelViews {
  EmbedTable embed;
  std::vector<LayerViews> layers;
  const float* final_norm;
  PackedMatrix lm_head;
};

class Residency {
 public:
  // Bytes of device memory that load() allocates. Fails where a matrix has a format that is not supported.
  static Result<uint64_t> bytes(const Shape& shape, const ModelWeights& weights);

  // Allocates once, packs on all cores and uploads. Progress in [0, 1].
  Result<void> load(const Shape& shape, const ModelWeights& weights, Meter& meter, Stream queue,
                    FunctionRef<void(double)> progress);
  const ModelViews& views() const { return views_; }

 private:
  DeviceMemory memory_;
  ModelViews views_;
};

}  // namespace lily::cuda
