#include "reference/blocks.h"
#include "weights/formats/affine.h"

namespace lily::reference {

// Equation 2: the residual stream starts as the row of the token, not scaled.
void ReferenceBlocks::embed(std::span<const int32_t> ids, float* stream) {
  const uint32_t hidden = plan_.shape.hidden;
  for (size_t r = 0; r < ids.size(); ++r) {
    dequantize_row(weights_->embed.table, static_cast<uint32_t>(ids[r]), {stream + r * hidden, hidden});
  }
}

}  // namespace lily::reference
