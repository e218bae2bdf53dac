// Products of prepared rows with packed matrices, several in one parallel region.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>

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

// The prepared copies of a set of rows: one for each format of the matrices that read them.
class PreparedRows {
 public:
  PreparedRows(const Kernels& kernels, Carver& carver, uint32_t rows,
               std::initializer_list<const PackedMatrix*> readers);
  void prepare(uint32_t row, const float* x) const;
  // Copies row `from_row` of rows that are prepared in all formats of these.
  void copy(uint32_t row, const PreparedRows& from, uint32_t from_row) const;
  // The copy that `reader` reads.
  struct Rows {
    std::byte* data;
    size_t stride;  // bytes
    Rows from(size_t row) const { return {data + row * stride, stride}; }
  };
  Rows rows_for(const PackedMatrix& reader) const;

 private:
  struct Copy {
    InputFormat format;
    Rows rows;
  };
  const Copy& copy_of(const InputFormat& format) const;
  static constexpr uint32_t kMaxFormats = 6;  // one or two digits, groups of 32, 64 or 128
  const Kernels* kernels_;
  std::array<Copy, kMaxFormats> copies_;
  uint32_t count_ = 0;
};

struct Product {
  PackedMatrix matrix;  // of one expert
  PreparedRows::Rows x;
  uint32_t rows = 0;
  float* y = nullptr;
  size_t y_stride = 0;
  bool accumulate = false;  // add to y
};

// Computes all of them. Their outputs must not overlap.
void run_products(ThreadPool& pool, const Kernels& kernels, std::span<const Product> products);

}  // namespace lily::cpu
