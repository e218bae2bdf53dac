// What is in a checkpoint folder, valid or not: gathers faults of all its parts instead of stopping at the
// first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/plan.h"
#include "weights/container.h"

namespace lily {

enum class Layout : uint8_t {
  mlx,        // what lily runs
  published,  // the input of convert
  unknown,    // the files could not be read
};
std::string_view to_string(Layout layout);

// Tensors stored alike. A quantised module (codes, scales and biases) counts as one.
struct FormatGroup {
  std::string format;  // "4-bit, groups of 64, BF16 scales", "BF16", "vision, ignored"
  uint64_t tensors = 0;
  uint64_t bytes = 0;
};

struct Inspection {
  std::string folder;
  size_t files = 0;
  Layout layout = Layout::unknown;
  std::optional<Shape> shape;  // empty when config.json is faulty
  std::vector<FormatGroup> formats;
  uint64_t total_bytes = 0;   // of all tensors
  uint64_t weight_bytes = 0;  // of those that lily maps
  bool mtp = false;
  std::optional<Plan> plan;         // with the shape, for the MLX layout
  std::vector<std::string> faults;  // of config.json, generation_config.json, files and tensors
};

// Adds an error to a list of faults: each of its details behind what they are faults of.
void add_faults(const Error& error, std::vector<std::string>& faults);

// Fails only where `folder` is not a folder or an option is outside its limits.
Result<Inspection> inspect_checkpoint(const std::filesystem::path& folder, const PlanOptions& options);

}  // namespace lily
