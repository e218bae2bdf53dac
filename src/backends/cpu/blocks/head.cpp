#include <algorithm>

#include "backends/cpu/blocks/batches.h"

namespace lily::cpu {

void CpuBlocks::head(std::span<const uint32_t> rows, const float* stream, float* logits) {
  const PackedMatrix& matrix = packed_.head;
  for (size_t first = 0; first < rows.size(); first += max_rows_) {
    const auto count = static_cast<uint32_t>(std::min<size_t>(max_rows_, rows.size() - first));
    Carver carver(workspace_.data());
    const PreparedRows input(kernels_, carver, {count, false}, {&matrix});
    for_each_row(pool_, kernels_, count, [&](uint32_t i) {
      alignas(64) float normed[kMaxHidden];
      kernels_.rms_norm({.x = stream + size_t{rows[first + i]} * shape_.hidden,
                         .weight = head_norm_.data(),
                         .out = normed,
                         .count = shape_.hidden});
      input.prepare({0, count}, i, normed);
    });
    Product product = product_of(matrix, input, {0, count}, logits + first * shape_.vocab);
    run_products(pool_, kernels_, {&product, 1});
  }
}

}  // namespace lily::cpu
