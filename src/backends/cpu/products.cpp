#include "backends/cpu/products.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace lily::cpu {
namespace {

// Work that a thread takes at a time, in bytes of weights read for up to 8 rows: enough to hide the hand-over
// and to read a long stretch of memory, little enough to balance.
constexpr size_t kPieceBytes = size_t{96} << 10;

uint32_t outputs_of_piece(const Product& product) {
  const size_t cost = block_bytes(product.matrix) * ((product.rows + 7) / 8);
  return kBlockOutputs * static_cast<uint32_t>(std::max<size_t>(kPieceBytes / cost, 1));
}

uint32_t pieces_of(const Product& product) {
  const uint32_t outputs = outputs_of_piece(product);
  return (product.matrix.rows + outputs - 1) / outputs;
}

}  // namespace

PreparedRows::PreparedRows(const Kernels& kernels, Carver& carver, uint32_t rows,
                           std::initializer_list<const PackedMatrix*> readers)
    : kernels_(&kernels), copies_{} {
  for (const PackedMatrix* reader : readers) {
    const InputFormat format = reader->input();
    const auto* end = copies_.begin() + count_;
    if (std::none_of(copies_.cbegin(), end, [&](const Copy& copy) { return copy.format == format; })) {
      LILY_CHECK(count_ < kMaxFormats);
      const size_t stride = prepared_bytes(format);
      float* data = carver.take(rows * stride / sizeof(float));
      copies_[count_++] = {format, {reinterpret_cast<std::byte*>(data), stride}};
    }
  }
}

void PreparedRows::prepare(uint32_t row, const float* x) const {
  for (uint32_t i = 0; i < count_; ++i) {
    kernels_->prepare({.format = copies_[i].format, .x = x, .out = copies_[i].rows.from(row).data});
  }
}

const PreparedRows::Copy& PreparedRows::copy_of(const InputFormat& format) const {
  uint32_t i = 0;
  while (i < count_ && !(copies_[i].format == format)) {
    ++i;
  }
  LILY_CHECK(i < count_);
  return copies_[i];
}

PreparedRows::Rows PreparedRows::rows_for(const PackedMatrix& reader) const {
  return copy_of(reader.input()).rows;
}

void PreparedRows::copy(uint32_t row, const PreparedRows& from, uint32_t from_row) const {
  for (uint32_t i = 0; i < count_; ++i) {
    const Rows& source = from.copy_of(copies_[i].format).rows;
    std::memcpy(copies_[i].rows.from(row).data, source.from(from_row).data, source.stride);
  }
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
      const uint32_t outputs = outputs_of_piece(*product);
      const auto output = static_cast<uint32_t>(piece - first) * outputs;
      kernels.matmul({.matrix = &product->matrix,
                      .x = product->x.data,
                      .x_stride = product->x.stride,
                      .rows = product->rows,
                      .begin = output,
                      .end = std::min(output + outputs, product->matrix.rows),
                      .y = product->y,
                      .y_stride = product->y_stride,
                      .accumulate = product->accumulate});
    }
  });
}

}  // namespace lily::cpu
