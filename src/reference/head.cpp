#include "reference/blocks.h"
#include "reference/linear.h"

namespace lily::reference {

// Equation 2: final norm, then the untied head; logits are neither scaled nor capped.
void ReferenceBlocks::head(std::span<const uint32_t> rows, const float* stream, float* logits) {
  const size_t hidden = plan_.shape.hidden;
  for (size_t i = 0; i < rows.size(); ++i) {
    rms_norm(stream + rows[i] * hidden, final_norm_.data(), plan_.shape.hidden, normed_.data() + i * hidden);
  }
  linear(pool_, weights_->head.lm_head, normed_.data(), static_cast<uint32_t>(rows.size()), logits);
}

}  // namespace lily::reference
