#include "backends/cpu/products.h"

#include <algorithm>

#include "base/check.h"

namespace lily::cpu {
namespace {

// Outputs that a thread takes at a time: enough to hide the hand-over, few enough to balance.
constexpr uint32_t kTakeOutputs = 64;

uint32_t pieces_of(const Product& product) { return (product.matrix.rows + kTakeOutputs - 1) / kTakeOutputs; }

}  // namespace

PreparedRows::PreparedRows(const Kernels& kernels, Carver& carver, uint32_t rows,
                           std::initializer_list<const AffineMatrix*> readers)
    : kernels_(&kernels), copies_{} {
  for (const AffineMatrix* reader : readers) {
    const InputFormat format{reader->cols, reader->bits, reader->group};
    const auto* end = copies_.begin() + count_;
    if (std::none_of(copies_.cbegin(), end, [&](const Copy& copy) { return copy.format == format; })) {
      LILY_CHECK(count_ < kMaxFormats);
      const size_t stride = kernels.prepared_floats(format);
      copies_[count_++] = {format, carver.take(rows * stride), stride};
    }
  }
}

void PreparedRows::prepare(uint32_t row, const float* x) const {
  for (uint32_t i = 0; i < count_; ++i) {
    const Copy& copy = copies_[i];
    kernels_->prepare({.format = copy.format, .x = x, .out = copy.data + row * copy.stride});
  }
}

PreparedRows::Rows PreparedRows::rows_for(const AffineMatrix& reader) const {
  const InputFormat format{reader.cols, reader.bits, reader.group};
  uint32_t i = 0;
  while (i < count_ && !(copies_[i].format == format)) {
    ++i;
  }
  LILY_CHECK(i < count_);
  return {copies_[i].data, copies_[i].stride};
}

void run_products(ThreadPool& pool, const Kernels& kernels, std::span<const Product> products) {
  size_t total = 0;
  for (const Product& product : products) {
    total += pieces_of(product);
  }
  pool.for_each(total, 1, [&](size_t begin, size_t end) {
    size_t first = 0;  // piece of the whole that the current product starts with
    const Product* product = products.data();
    for (size_t piece = begin; piece < end; ++piece) {
      while (piece - first >= pieces_of(*product)) {
        first += pieces_of(*product++);
      }
      const auto output = static_cast<uint32_t>(piece - first) * kTakeOutputs;
      kernels.matmul({.matrix = &product->matrix,
                      .x = product->x.data,
                      .x_stride = product->x.stride,
                      .x_rows = product->x_rows,
                      .rows = product->rows,
                      .begin = output,
                      .end = std::min(output + kTakeOutputs, product->matrix.rows),
                      .y = product->y,
                      .y_stride = product->y_stride,
                      .accumulate = product->accumulate});
    }
  });
}

}  // namespace lily::cpu
