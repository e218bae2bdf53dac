// config.json and generation_config.json of a checkpoint folder. Unknown keys are ignored; every known key
// that contradicts the model is an error, all reported at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/shape.h"

namespace lily {

struct QuantFormat {
  uint32_t bits = 4;    // 4 or 8
  uint32_t group = 64;  // 32, 64 or 128
  bool operator==(const QuantFormat&) const = default;
};

// Before the names of all tensors in the layout that MLX writes, and so in what lily writes.
inline constexpr std::string_view kModelPrefix = "language_model.";
// The router and the gate of the shared expert there, whatever the format of the others.
inline constexpr QuantFormat kRouterFormat{8, 64};

struct ModelConfig {
  Shape shape;     // which of the two, with the checkpoint's number of layers
  bool quantized;  // false: the published bf16 layout
  QuantFormat format;
  // Per-module overrides of `quantization`, by module path as written in the file.
  std::map<std::string, QuantFormat, std::less<>> overrides;

  // The format of module `path` ("language_model.model.layers.0.mlp.gate"), its override or the default.
  QuantFormat format_of(std::string_view path) const;
};

Result<ModelConfig> parse_model_config(std::string_view json);
Result<ModelConfig> read_model_config(const std::filesystem::path& folder);

// Defaults of the model's authors for sampling, and the ids that end an answer.
struct GenerationConfig {
  std::vector<int32_t> stop_ids;  // eos_token_id, a number or a list
  std::optional<float> temperature, top_p, min_p, presence_penalty, repetition_penalty;
  std::optional<uint32_t> top_k;
  bool do_sample = true;  // false: greedy by default
};

Result<GenerationConfig> parse_generation_config(std::string_view json);
// A folder without the file gets the published stop ids 248046 and 248044 only if the shape's vocabulary has
// them; otherwise it is an error that names the file.
Result<GenerationConfig> read_generation_config(const std::filesystem::path& folder, const Shape& shape);

}  // namespace lily
