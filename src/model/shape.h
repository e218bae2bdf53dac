// The two shapes lily runs. Everything but the number of layers is a constant of the program; kernels are
// compiled for each shape. Figures: config.json of Qwen3.6-35B-A3B.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace lily {

enum class ShapeId : uint8_t { qwen36, tiny };

struct Shape {
  ShapeId id;
  std::string_view name;  // "qwen36" or "tiny": the value of --shape
  uint32_t hidden;        // width of the residual stream
  uint32_t layers;  // the one run-time dimension: kMinLayers..kMaxLayers, a multiple of kAttentionInterval
  uint32_t vocab;   // rows of the embedding and of the head
  // Grouped-query attention (every fourth layer)
  uint32_t q_heads;
  uint32_t kv_heads;
  // Gated DeltaNet (the other layers)
  uint32_t k_heads;
  uint32_t v_heads;
  // Mixture of experts (every layer)
  uint32_t experts;
  uint32_t expert_ffn;  // intermediate size of one expert
  uint32_t shared_ffn;  // intermediate size of the shared expert

  // Constants of both shapes.
  static constexpr uint32_t kAttentionInterval = 4;  // layers 3, 7, 11, ... are attention
  static constexpr uint32_t kMinLayers = 4;
  static constexpr uint32_t kMaxLayers = 40;
  static constexpr uint32_t kHeadDim = 256;
  static constexpr uint32_t kRotaryDim = 64;  // the first 64 of 256 dimensions turn
  static constexpr double kRopeTheta = 1e7;
  static constexpr uint32_t kKeyDim = 128;    // Gated DeltaNet key (and query) head
  static constexpr uint32_t kValueDim = 128;  // Gated DeltaNet value head
  static constexpr uint32_t kConvKernel = 4;
  static constexpr uint32_t kTopK = 8;  // experts per token
  static constexpr float kNormEps = 1e-6F;

  // Derived widths.
  constexpr uint32_t q_width() const { return q_heads * kHeadDim; }
  constexpr uint32_t kv_width() const { return kv_heads * kHeadDim; }
  constexpr uint32_t key_width() const { return k_heads * kKeyDim; }
  constexpr uint32_t value_width() const { return v_heads * kValueDim; }
  constexpr uint32_t conv_channels() const { return 2 * key_width() + value_width(); }
  constexpr bool is_attention(uint32_t layer) const {
    return layer % kAttentionInterval == kAttentionInterval - 1;
  }
  constexpr uint32_t attention_layers() const { return layers / kAttentionInterval; }
  constexpr uint32_t delta_net_layers() const { return layers - attention_layers(); }
  // The shape with another number of layers.
  constexpr Shape with_layers(uint32_t count) const {
    Shape shape = *this;
    shape.layers = count;
    return shape;
  }
};

inline constexpr Shape kQwen36{.id = ShapeId::qwen36,
                               .name = "qwen36",
                               .hidden = 2048,
                               .layers = 40,
                               .vocab = 248'320,
                               .q_heads = 16,
                               .kv_heads = 2,
                               .k_heads = 16,
                               .v_heads = 32,
                               .experts = 256,
                               .expert_ffn = 512,
                               .shared_ffn = 512};

// The same model made small: for tests and for a first try.
inline constexpr Shape kTiny{.id = ShapeId::tiny,
                             .name = "tiny",
                             .hidden = 256,
                             .layers = 8,
                             .vocab = 8'192,
                             .q_heads = 8,
                             .kv_heads = 1,
                             .k_heads = 4,
                             .v_heads = 8,
                             .experts = 32,
                             .expert_ffn = 64,
                             .shared_ffn = 64};

// The shape called `name` ("qwen36", "tiny"), with its full number of layers.
Result<Shape> shape_by_name(std::string_view name);

// Fails unless kMinLayers <= layers <= kMaxLayers and layers is a multiple of kAttentionInterval.
Result<void> check_layers(uint32_t layers);

}  // namespace lily
