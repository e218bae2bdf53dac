// What one conversation owns in host memory. Keys and values lie in blocks of kBlockTokens tokens that states
// and checkpoints share by reference; a shared block is copied before it is written. Recurrent states are
// plain arrays.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/aligned.h"
#include "sampling/sampler.h"

namespace lily::host {

inline constexpr uint32_t kBlockTokens = 64;

// Keys and values of kBlockTokens consecutive tokens in all attention layers:
// [attention layer][keys | values][kv head][token][kHeadDim], elements f32 or bf16.
struct KvBlock {
  AlignedBytes data;
};

// Sizes that every state of a backend has in common.
struct StateLayout {
  Shape shape;
  DType kv_type;
  size_t kv_head_bytes() const { return size_t{kBlockTokens} * Shape::kHeadDim * size_of(kv_type); }
  size_t kv_block_bytes() const {
    return size_t{shape.attention_layers()} * 2 * shape.kv_heads * kv_head_bytes();
  }
  size_t conv_floats() const {
    return size_t{shape.conv_channels()} * (Shape::kConvKernel - 1);
  }  // of one layer
  size_t delta_floats() const {
    return size_t{shape.v_heads} * Shape::kKeyDim * Shape::kValueDim;
  }  // of one layer
};

class HostState final : public SequenceState {
 public:
  static Result<std::unique_ptr<HostState>> create(const StateLayout& layout, uint32_t max_tokens);

  uint32_t length() const override { return length_; }
  Result<std::unique_ptr<Checkpoint>> save() override;
  Result<void> resume(const Checkpoint& checkpoint) override;
  Result<void> accept(uint32_t rows) override;
  Result<void> begin_answer(std::span<const int32_t> prompt) override;

  // For Blocks. `layer` counts all layers of the model; it must be of the right kind.
  // conv: [kConvKernel - 1][conv_channels], oldest first. delta: [v_heads][kKeyDim][kValueDim].
  float* conv(uint32_t layer);
  float* delta(uint32_t layer);
  void keep_row(uint32_t layer, uint32_t row);  // copies both for a later accept(row + 1)
  // The first element of token block `block` of one head: kBlockTokens rows of kHeadDim.
  std::byte* keys(uint32_t layer, uint32_t kv_head, uint32_t block);
  std::byte* values(uint32_t layer, uint32_t kv_head, uint32_t block);

 private:
  // Members and what HostBackend needs besides are up to the implementation (host_backend.cpp, state.cpp).
  uint32_t length_ = 0;
};

}  // namespace lily::host
