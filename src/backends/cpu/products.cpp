#include "backends/cpu/products.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"

namespace lily::cpu {
namespace {

// Work that a thread takes at a time: enough to hide the hand-over, little enough to balance.
constexpr size_t kPieceBytes = size_t{96} << 10;         // of weights read
constexpr uint64_t kPieceProducts = uint64_t{32} << 20;  // multiply-adds of codes and digits
// Some rows share registers with two or three blocks of outputs.
constexpr uint32_t kFewRows = 4;
// Of many rows, which a piece reads as a whole: more outputs, so that it reads them less often.
constexpr uint32_t kManyRows = 64;
constexpr uint32_t kManyCols = 2048;
// Of halves, which are multiplied several times as fast.
constexpr uint64_t kPieceHalves = uint64_t{64} << 20;  // multiply-adds
constexpr uint32_t kHalfBlocks = 4;

uint32_t piece_blocks(const Product& product) {
  if (product.x.digits == kHalves) {
    const uint64_t of_block = uint64_t{product.rows} * product.matrix.cols * kBlockOutputs;
    const uint32_t least =
        product.then == nullptr ? kHalfBlocks : std::lcm(kHalfBlocks, product.then->group / kBlockOutputs);
    return static_cast<uint32_t>(std::max(kPieceHalves / of_block / least, uint64_t{1})) * least;
  }
  const uint64_t products =
      uint64_t{product.rows} * product.matrix.cols * product.matrix.digits * kBlockOutputs;
  const uint64_t fit = std::min(kPieceBytes / block_bytes(product.matrix), kPieceProducts / products);
  uint64_t least = product.rows < kFewRows    ? 2
                   : product.rows < kManyRows ? 6
                                              : 4 * ((product.matrix.cols + kManyCols - 1) / kManyCols);
  if (product.then != nullptr) {
    least = std::lcm(least, product.then->group / kBlockOutputs);
  }
  return static_cast<uint32_t>(std::max(fit / least, uint64_t{1}) * least);
}

// Outputs [args.begin, args.end) of a product, plane by plane.
void run_outputs(const Kernels& kernels, const Product& product, MatmulArgs args) {
  if (product.plane == 0) {
    kernels.matmul(args);
    return;
  }
  for (const uint32_t end = args.end; args.begin < end; args.begin = args.end) {
    const uint32_t plane = args.begin / product.plane;
    args.end = std::min(end, (plane + 1) * product.plane);
    args.y =
        product.y + plane * (product.plane_stride - product.plane);  // for the kernels count from output 0
    kernels.matmul(args);
  }
}

// The rest of a product whose outputs [begin, end) are there.
void run_swiglu(const Kernels& kernels, const Product& product, MatmulArgs args) {
  const SwiGlu& then = *product.then;
  PackedMatrix up = then.up;
  up.digits = product.x.digits;
  args.matrix = &up;
  args.y = then.y;
  kernels.matmul(args);
  for (uint32_t row = 0; row < product.rows; ++row) {
    float* gate = product.y + row * product.y_stride + args.begin;
    kernels.silu_multiply(gate, then.y + row * product.y_stride + args.begin, args.end - args.begin);
    then.to->prepare(then.run, row, gate, args.begin, args.end);
  }
}

}  // namespace

PreparedRows::PreparedRows(const Kernels& kernels, Carver& carver, BatchRows rows,
                           std::initializer_list<const PackedMatrix*> readers)
    : kernels_(&kernels), rows_(rows), copies_{} {
  for (const PackedMatrix* reader : readers) {
    const InputFormat format = format_for(*reader);
    const auto* end = copies_.begin() + count_;
    if (std::none_of(copies_.cbegin(), end, [&](const Copy& copy) { return copy.format == format; })) {
      LILY_CHECK(count_ < kMaxFormats);
      const size_t stride = prepared_bytes(format);
      const size_t behind = format.digits == kHalves ? 64 : 0;  // which may be read (kernels.h)
      float* data = carver.take((rows.count * stride + behind) / sizeof(float));
      copies_[count_++] = {format, {reinterpret_cast<std::byte*>(data), stride, format.digits}};
    }
  }
}

InputFormat PreparedRows::format_for(const PackedMatrix& reader) const {
  return rows_.halves && reader.halves ? InputFormat{reader.cols, kHalfWord, kHalves} : reader.input();
}

Run PreparedRows::run_of(uint32_t row) const {
  if (!rows_.halves) {
    return {0, rows_.count};
  }
  const uint32_t first = row / kRunRows * kRunRows;
  return {first, std::min(kRunRows, rows_.count - first)};
}

PreparedRows::Place PreparedRows::place(const Copy& copy, Run run, uint32_t row) const {
  const Panels panels = panels_of(run.rows, kernels_->panel_rows(copy.format, run.rows));
  const uint32_t panel = panel_of_row(panels, row);
  const uint32_t begin = panel_begin(panels, panel);
  return {.panel = copy.rows.from(size_t{run.first} + begin).data,
          .rows = rows_of_panel(panels, panel),
          .row = row - begin};
}

void PreparedRows::prepare(Run run, uint32_t row, const float* x) const {
  prepare(run, row, x, 0, copies_[0].format.cols);
}

void PreparedRows::prepare(Run run, uint32_t row, const float* x, uint32_t begin, uint32_t end) const {
  for (uint32_t i = 0; i < count_; ++i) {
    const Place to = place(copies_[i], run, row);
    kernels_->prepare({.format = copies_[i].format,
                       .x = x,
                       .begin = begin,
                       .end = end,
                       .panel = to.panel,
                       .panel_rows = to.rows,
                       .row = to.row,
                       .word = kernels_->word});
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
  return copy_of(format_for(reader)).rows;
}

void PreparedRows::copy(Run run, uint32_t row, const PreparedRows& from, Run from_run,
                        uint32_t from_row) const {
  for (uint32_t i = 0; i < count_; ++i) {
    const Place to = place(copies_[i], run, row);
    const Place source = from.place(from.copy_of(copies_[i].format), from_run, from_row);
    const auto words = [&]<size_t kWord>(std::integral_constant<size_t, kWord>, size_t begin, size_t end) {
      std::byte* write = to.panel + begin * to.rows + to.row * kWord;
      const std::byte* read = source.panel + begin * source.rows + source.row * kWord;
      for (size_t at = begin; at < end; at += kWord) {
        std::memcpy(write, read, kWord);
        write += to.rows * kWord;
        read += source.rows * kWord;
      }
    };
    const InputFormat& format = copies_[i].format;
    const size_t scales = prepared_scales(format);
    const size_t end =
        format.digits == kHalves ? scales : scales + size_t{format.cols} / format.group * 2 * sizeof(float);
    kernels_->word == 64 ? words(std::integral_constant<size_t, 64>(), 0, scales)
                         : words(std::integral_constant<size_t, 4>(), 0, scales);
    words(std::integral_constant<size_t, 4>(), scales, end);
  }
}

void add_product(std::vector<Product>& to, const PackedMatrix& matrix, const PreparedRows& x, float* y,
                 const Outputs& outputs) {
  for (uint32_t row = 0; row < x.rows(); row += to.back().rows) {
    to.push_back(product_of(matrix, x, x.run_of(row), y));
    Product& product = to.back();
    product.accumulate = outputs.accumulate;
    if (outputs.plane != 0 && x.rows() != 1) {  // of one row it is the same
      product.plane = outputs.plane;
      product.plane_stride = size_t{x.rows()} * outputs.plane;
      product.y = y + size_t{row} * outputs.plane;
      product.y_stride = outputs.plane;
    }
  }
}

void for_each_row(ThreadPool& pool, const Kernels& kernels, uint32_t rows,
                  FunctionRef<void(uint32_t row)> body) {
  constexpr uint32_t kLeastRows = 4;  // of a piece
  // Rows whose words of four bytes share cache lines stay together.
  const Panels panels = panels_of(rows, kernels.word == 4 ? kernels.panel_rows({}, rows) : kLeastRows);
  const uint32_t grain = panels.count == 0 ? 1 : (kLeastRows + panels.least - 1) / panels.least;
  pool.for_each(panels.count, grain, [&](size_t begin, size_t end) {
    const uint32_t last = end == panels.count ? rows : panel_begin(panels, static_cast<uint32_t>(end));
    for (uint32_t row = panel_begin(panels, static_cast<uint32_t>(begin)); row < last; ++row) {
      body(row);
    }
  });
}

void run_products(ThreadPool& pool, const Kernels& kernels, std::span<Product> products) {
  size_t total = 0;
  for (Product& product : products) {
    product.matrix.digits = product.x.digits;
    product.first_piece = total;
    product.piece_outputs = piece_blocks(product) * kBlockOutputs;
    total += (product.matrix.rows + product.piece_outputs - 1) / product.piece_outputs;
  }
  pool.for_each(total, 1, [&](size_t begin, size_t end) {
    auto product = std::upper_bound(products.begin(), products.end(), begin,
                                    [](size_t piece, const Product& p) { return piece < p.first_piece; }) -
                   1;
    for (size_t piece = begin; piece < end; ++piece) {
      if (product + 1 != products.end() && piece == (product + 1)->first_piece) {
        ++product;
      }
      const auto output = static_cast<uint32_t>(piece - product->first_piece) * product->piece_outputs;
      const MatmulArgs args{.matrix = &product->matrix,
                            .x = product->x.data,
                            .x_stride = product->x.stride,
                            .rows = product->rows,
                            .begin = output,
                            .end = std::min(output + product->piece_outputs, product->matrix.rows),
                            .y = product->y,
                            .y_stride = product->y_stride,
                            .accumulate = product->accumulate,
                            .bypass = product->bypass};
      run_outputs(kernels, *product, args);
      if (product->then != nullptr) {
        run_swiglu(kernels, *product, args);
      }
    }
  });
}

}  // namespace lily::cpu
