// Products of prepared rows with packed matrices, several in one parallel region.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "backends/cpu/kernels.h"
#include "base/threads.h"

namespace lily::cpu {

// Hands out pieces of one block of floats, each 64-byte aligned. With a null base it only counts.
class Carver {
 public:
  explicit Carver(float* base) : base_(base) {}
  float* take(size_t floats) {
    float* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (floats + 15) / 16 * 16;
    return piece;
  }
  size_t used() const { return used_; }

 private:
  float* base_;
  size_t used_ = 0;
};

// Rows that are multiplied with a matrix together: [first, first + rows) of all that are prepared.
struct Run {
  uint32_t first;
  uint32_t rows;
};

// Rows of a run of halves that go through the same matrices: 1 MB with 2,048 inputs.
inline constexpr uint32_t kRunRows = 256;

// The rows of a batch. Halves: they are those of long segments, and their products are of bf16 where the
// matrices allow it.
struct BatchRows {
  uint32_t count;
  bool halves;
};

// The prepared copies of a set of rows: one for each format of the matrices that read them.
class PreparedRows {
 public:
  PreparedRows(const Kernels& kernels, Carver& carver, BatchRows rows,
               std::initializer_list<const PackedMatrix*> readers);
  // The run of a row, where all rows go through the same matrices: one of all, or, of halves, of so many that
  // they stay in the second-level cache.
  Run run_of(uint32_t row) const;
  uint32_t rows() const { return rows_.count; }
  // `row` counts from the first of the run. With `begin` and `end`, multiples of the readers' groups: only
  // these columns, of which the first is x[0].
  void prepare(Run run, uint32_t row, const float* x) const;
  void prepare(Run run, uint32_t row, const float* x, uint32_t begin, uint32_t end) const;
  // Copies a row of rows that are prepared in all formats of these.
  void copy(Run run, uint32_t row, const PreparedRows& from, Run from_run, uint32_t from_row) const;
  // The copy that `reader` reads.
  struct Rows {
    std::byte* data;
    size_t stride;    // bytes of a row
    uint32_t digits;  // of its format
    Rows from(size_t row) const { return {data + row * stride, stride, digits}; }
  };
  Rows rows_for(const PackedMatrix& reader) const;

 private:
  struct Copy {
    InputFormat format;
    Rows rows;
  };
  struct Place {
    std::byte* panel;
    uint32_t rows;  // of the panel
    uint32_t row;   // in it
  };
  Place place(const Copy& copy, Run run, uint32_t row) const;
  const Copy& copy_of(const InputFormat& format) const;
  InputFormat format_for(const PackedMatrix& reader) const;
  static constexpr uint32_t kMaxFormats = 7;  // one digit or two, groups of 32, 64 or 128; halves
  const Kernels* kernels_;
  BatchRows rows_;
  std::array<Copy, kMaxFormats> copies_;
  uint32_t count_ = 0;
};

// Calls body(row) for each of `rows` rows of a run, on all threads, those of a panel on one.
void for_each_row(ThreadPool& pool, const Kernels& kernels, uint32_t rows,
                  FunctionRef<void(uint32_t row)> body);

// What becomes of the outputs y of a product once they are there: y = silu(y) * (up * x), which is then
// prepared for its readers.
struct SwiGlu {
  PackedMatrix up{};  // of the form of the product's matrix, with the same x
  float* y = nullptr;
  const PreparedRows* to = nullptr;
  Run run{};
  uint32_t group = 0;  // of outputs: a multiple of the readers' groups
};

struct Product {
  PackedMatrix matrix;  // of one expert
  PreparedRows::Rows x;
  uint32_t rows = 0;
  float* y = nullptr;
  size_t y_stride = 0;
  uint32_t plane = 0;  // if not 0: so many neighbouring outputs of all rows lie together, the others behind
  size_t plane_stride = 0;  // floats
  bool accumulate = false;  // add to y
  bool bypass = false;      // MatmulArgs::bypass
  const SwiGlu* then = nullptr;
  // Set by run_products.
  uint32_t piece_outputs = 0;
  size_t first_piece = 0;
};

// Where outputs go.
struct Outputs {
  bool accumulate = false;  // y += matrix * x
  uint32_t plane = 0;       // y is [matrix.rows / plane][rows of x][plane]
};

// y = matrix * x of the rows of a run of x: row i of the batch at y + i * matrix.rows.
inline Product product_of(const PackedMatrix& matrix, const PreparedRows& x, Run run, float* y) {
  return {.matrix = matrix,
          .x = x.rows_for(matrix).from(run.first),
          .rows = run.rows,
          .y = y + size_t{run.first} * matrix.rows,
          .y_stride = matrix.rows};
}
// Adds y = matrix * x of all rows to `to`.
void add_product(std::vector<Product>& to, const PackedMatrix& matrix, const PreparedRows& x, float* y,
                 const Outputs& outputs = {});

// Computes all of them. Their outputs must not overlap.
void run_products(ThreadPool& pool, const Kernels& kernels, std::span<Product> products);

}  // namespace lily::cpu
