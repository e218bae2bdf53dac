#include <algorithm>

#include "backends/cpu/blocks/batches.h"

namespace lily::cpu {

void CpuBlocks::head(std::span<const uint32_t> rows, const float* stream, float* logits) {
  const PackedMatrix& matrix = packed_.head;
  for (size_t first = 0; first < rows.size(); first += max_rows_) {
    const auto count = static_cast<uint32_t>(std::min<size_t>(max_rows_, rows.size() - first));
    Carver carver(workspace_.data());
    const PreparedRows input(kernels_, carver, count, {&matrix});
    pool_.for_each(count, 4, [&](size_t begin, size_t end) {
      alignas(64) float normed[kMaxHidden];
      for (size_t i = begin; i < end; ++i) {
        kernels_.rms_norm({.x = stream + size_t{rows[first + i]} * shape_.hidden,
                           .weight = head_norm_.data(),
                           .out = normed,
                           .count = shape_.hidden});
        input.prepare(static_cast<uint32_t>(i), normed);
      }
    });
    const Product product{.matrix = matrix,
                          .x = input.rows_for(matrix),
                          .rows = count,
                          .y = logits + first * shape_.vocab,
                          .y_stride = shape_.vocab};
    run_products(pool_, kernels_, {&product, 1});
  }
}

}  // namespace lily::cpu
