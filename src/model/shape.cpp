#include "model/shape.h"

namespace lily {

Result<Shape> shape_by_name(std::string_view name) {
  for (const Shape& shape : {kQwen36, kTiny}) {
    if (shape.name == name) {
      return shape;
    }
  }
  return fail(ErrorKind::invalid_input, "unknown shape '{}': expected 'qwen36' or 'tiny'", name);
}

Result<void> check_layers(uint32_t layers) {
  if (layers < Shape::kMinLayers || layers > Shape::kMaxLayers || layers % Shape::kAttentionInterval != 0) {
    return fail(ErrorKind::invalid_input,
                "number of layers: expected a multiple of {} from {} to {}, found {}",
                Shape::kAttentionInterval, Shape::kMinLayers, Shape::kMaxLayers, layers);
  }
  return {};
}

}  // namespace lily
