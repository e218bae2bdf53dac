#include "backends/cpu/blocks/batches.h"
#include "weights/formats/affine.h"

namespace lily::cpu {

void CpuBlocks::embed(std::span<const int32_t> ids, float* stream) {
  const size_t hidden = shape_.hidden;
  pool_.for_each(ids.size(), 16, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      dequantize_row(weights_->embed.table, static_cast<uint32_t>(ids[i]), {stream + i * hidden, hidden});
    }
  });
}

}  // namespace lily::cpu
