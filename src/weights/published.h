// The published layout of the model (Hugging Face, unquantised), bound strictly to the places of the model's
// table: the input of convert. Expert matrices are fused (gate and up in one tensor, all experts stacked) or
// one tensor per expert.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/tensors.h"
#include "weights/config.h"
#include "weights/container.h"

namespace lily {

// One tensor or module of the model and where its rows lie in the published checkpoint.
struct PublishedSite {
  TensorSite site;
  DType type = DType::bf16;                // bf16, f16 or f32; the same in all parts
  std::vector<const StoredTensor*> parts;  // one, or one per expert
  uint32_t part_rows = 0;  // rows of one expert in its part (twice the expert's when gate and up are fused)
  uint32_t first_row = 0;  // of this module within those

  bool is_matrix() const { return std::holds_alternative<AffineMatrix*>(site.view); }
  uint64_t rows() const { return uint64_t{site.experts} * site.rows; }  // of all experts
  const StoredTensor& part_of(uint32_t expert) const { return *parts[parts.size() == 1 ? 0 : expert]; }
  // `count` rows beginning with `row` of expert `expert`.
  std::span<const std::byte> row_bytes(uint32_t expert, uint32_t row, uint32_t count) const;
};

struct PublishedModel {
  ModelWeights weights;  // only its structure is used: `sites` point into it
  std::vector<PublishedSite> sites;
  uint64_t bound_bytes = 0;
};

// Whether a tensor or module is of the vision tower, which lily does not run, by its name in any layout.
bool is_vision(std::string_view name);

// True when the names are those of the published layout rather than of the MLX layout.
bool is_published_layout(const Container& container);

// All faults at once. Vision tensors are ignored.
Result<PublishedModel> bind_published(const Container& container, const ModelConfig& config);

}  // namespace lily
