#include <algorithm>
#include <cmath>

#include "backends/cpu/blocks/batches.h"

namespace lily::cpu {
namespace {

constexpr uint32_t kTopK = Shape::kTopK;
// Outputs of gate and up that a thread computes at least: two streams of memory, long enough to read fast.
constexpr uint32_t kLeastSlice = 64;
// Of outputs of the experts that most of the caches would hold nothing else.
constexpr size_t kLargeBytes = size_t{16} << 20;

// u32 arrays lie in the same workspace.
uint32_t* take_u32(Carver& carver, size_t count) {
  static_assert(sizeof(uint32_t) == sizeof(float));
  return reinterpret_cast<uint32_t*>(carver.take(count));
}

}  // namespace

CpuBlocks::MoeBatch::MoeBatch(const Kernels& kernels, Carver carver, const Shape& shape,
                              const PackedMoe& weights, BatchRows batch_rows)
    : w(weights),
      rows(batch_rows.count),
      logits(carver.take(size_t{rows} * shape.experts)),
      shared_factor(carver.take(rows)),
      shared_gate(carver.take(size_t{rows} * shape.shared_ffn)),
      shared_up(carver.take(size_t{rows} * shape.shared_ffn)),
      shared_out(carver.take(size_t{rows} * shape.hidden)),
      factor(carver.take(size_t{rows} * kTopK)),
      expert(take_u32(carver, size_t{rows} * kTopK)),
      pair(take_u32(carver, size_t{rows} * kTopK)),
      row_of_pair(take_u32(carver, size_t{rows} * kTopK)),
      first_pair(take_u32(carver, shape.experts + 1)),
      gate(carver.take(size_t{rows} * kTopK * shape.expert_ffn)),
      up(carver.take(size_t{rows} * kTopK * shape.expert_ffn)),
      out(carver.take(size_t{rows} * kTopK * shape.hidden)),
      input(kernels, carver, batch_rows,
            {&w.router, &w.shared_gate, &w.shared_gate_proj, &w.shared_up_proj, &w.gate, &w.up}),
      pair_input(kernels, carver, {rows * kTopK, batch_rows.halves}, {&w.gate, &w.up}),
      expert_input(kernels, carver, {rows * kTopK, batch_rows.halves}, {&w.down}),
      shared_input(kernels, carver, batch_rows, {&w.shared_down_proj}),
      used(carver.used()) {}

uint32_t CpuBlocks::moe(uint32_t layer, std::span<const host::Segment> segments, float* stream) {
  std::fill(chosen_.begin(), chosen_.end(), uint8_t{0});
  for_batches(segments, kernels_.halves, pieces_,
              [&](std::span<const Piece> pieces, uint32_t first_row, uint32_t rows) {
                MoeBatch batch(kernels_, Carver(workspace_.data()), shape_, packed_.layers[layer].moe,
                               {rows, pieces[0].halves});
                batch.post_norm = dense_[layer].post_norm;
                moe_batch(batch, stream + size_t{first_row} * shape_.hidden);
              });
  return static_cast<uint32_t>(std::count(chosen_.begin(), chosen_.end(), uint8_t{1}));
}

// Equation 20: the kTopK largest, ties to the lower index; their softmax over all experts divided by its sum
// is their softmax among themselves.
void CpuBlocks::route(const MoeBatch& batch, uint32_t row) const {
  const float* logits = batch.logits + size_t{row} * shape_.experts;
  uint32_t* expert = batch.expert + size_t{row} * kTopK;
  float* factor = batch.factor + size_t{row} * kTopK;
  uint32_t count = 0;
  for (uint32_t e = 0; e < shape_.experts; ++e) {
    uint32_t place = count;
    while (place > 0 && logits[e] > logits[expert[place - 1]]) {
      --place;
    }
    if (place < kTopK) {
      count = std::min(count + 1, kTopK);
      std::copy_backward(expert + place, expert + count - 1, expert + count);
      expert[place] = e;
    }
  }
  float sum = 0;
  for (uint32_t i = 0; i < kTopK; ++i) {
    factor[i] = std::exp(logits[expert[i]] - logits[expert[0]]);
    sum += factor[i];
  }
  for (uint32_t i = 0; i < kTopK; ++i) {
    factor[i] /= sum;
  }
}

// Orders all choices by expert, then row.
void CpuBlocks::group_by_expert(const MoeBatch& batch) {
  uint32_t* first = batch.first_pair;
  const uint32_t pairs = batch.rows * kTopK;
  std::fill_n(first, shape_.experts + 1, 0U);
  for (uint32_t i = 0; i < pairs; ++i) {
    ++first[batch.expert[i] + 1];
    chosen_[batch.expert[i]] = 1;
  }
  for (uint32_t e = 0; e < shape_.experts; ++e) {
    first[e + 1] += first[e];
  }
  for (uint32_t i = 0; i < pairs; ++i) {  // advances first[e] to the start of e + 1
    const uint32_t place = first[batch.expert[i]]++;
    batch.pair[i] = place;
    batch.row_of_pair[place] = i / kTopK;
  }
  std::copy_backward(first, first + shape_.experts, first + shape_.experts + 1);
  first[0] = 0;
}

// The rows of the expert that choice `pair` is of.
Run CpuBlocks::run_of_pair(const MoeBatch& batch, uint32_t pair) const {
  const uint32_t* begin = batch.first_pair;
  const uint32_t* next = std::upper_bound(begin, begin + shape_.experts + 1, pair);
  return {next[-1], next[0] - next[-1]};
}

// The first half of an expert over its rows: gate and up, SwiGLU.
void CpuBlocks::add_gate_up(Product product, SwiGlu then) {
  then.group = std::min(product.matrix.rows, std::max(then.group, kLeastSlice));
  swiglus_.push_back(then);
  product.y_stride = product.matrix.rows;
  product.then = &swiglus_.back();
  products_.push_back(product);
}

// Gate and up, SwiGLU and down of every chosen expert; the last of the shared one.
void CpuBlocks::experts(const MoeBatch& batch) {
  const uint32_t pairs = batch.rows * kTopK;
  const bool copied = batch.rows > 1;  // all experts read the one row where it is
  pool_.for_each(copied ? pairs : 0, 8, [&](size_t begin, size_t end) {
    Run run = run_of_pair(batch, static_cast<uint32_t>(begin));
    for (auto i = static_cast<uint32_t>(begin); i < end; ++i) {
      if (i == run.first + run.rows) {
        run = run_of_pair(batch, i);
      }
      const uint32_t row = batch.row_of_pair[i];
      const Run from = batch.input.run_of(row);
      batch.pair_input.copy(run, i - run.first, batch.input, from, row - from.first);
    }
  });
  const auto x = (copied ? batch.pair_input : batch.input).rows_for(batch.w.gate);
  products_.clear();
  swiglus_.clear();
  for (uint32_t e = 0; e < shape_.experts; ++e) {
    const uint32_t first = batch.first_pair[e];
    const Run run{first, batch.first_pair[e + 1] - first};
    if (run.rows != 0) {
      const size_t at = size_t{first} * shape_.expert_ffn;
      add_gate_up({.matrix = batch.w.gate.expert(e),
                   .x = copied ? x.from(first) : x,
                   .rows = run.rows,
                   .y = batch.gate + at},
                  {.up = batch.w.up.expert(e),
                   .y = batch.up + at,
                   .to = &batch.expert_input,
                   .run = run,
                   .group = batch.w.down.group});
    }
  }
  run_products(pool_, kernels_, products_);
  products_.clear();
  for (uint32_t e = 0; e < shape_.experts; ++e) {
    const uint32_t first = batch.first_pair[e];
    if (first != batch.first_pair[e + 1]) {
      products_.push_back({.matrix = batch.w.down.expert(e),
                           .x = batch.expert_input.rows_for(batch.w.down).from(first),
                           .rows = batch.first_pair[e + 1] - first,
                           .y = batch.out + size_t{first} * shape_.hidden,
                           .y_stride = shape_.hidden,
                           .bypass = pairs * size_t{shape_.hidden} * sizeof(float) >= kLargeBytes});
    }
  }
  add_product(products_, batch.w.shared_down_proj, batch.shared_input, batch.shared_out);
  run_products(pool_, kernels_, products_);
}

// The router, and of the shared expert what does not wait for it.
void CpuBlocks::route_all(const MoeBatch& batch) {
  products_.clear();
  swiglus_.clear();
  add_product(products_, batch.w.router, batch.input, batch.logits);
  add_product(products_, batch.w.shared_gate, batch.input, batch.shared_factor);
  const PreparedRows& x = batch.input;
  for (uint32_t row = 0; row < x.rows();) {
    const Run run = x.run_of(row);
    row += run.rows;
    add_gate_up(product_of(batch.w.shared_gate_proj, x, run, batch.shared_gate),
                {.up = batch.w.shared_up_proj,
                 .y = batch.shared_up + size_t{run.first} * shape_.shared_ffn,
                 .to = &batch.shared_input,
                 .run = run,
                 .group = batch.w.shared_down_proj.group});
  }
  run_products(pool_, kernels_, products_);
  pool_.for_each(batch.rows, 16, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      route(batch, static_cast<uint32_t>(row));
    }
  });
  group_by_expert(batch);
}

void CpuBlocks::moe_batch(const MoeBatch& batch, float* stream) {
  const uint32_t hidden = shape_.hidden;
  prepare_normed(stream, batch.rows, batch.post_norm, batch.input);
  route_all(batch);
  experts(batch);
  pool_.for_each(batch.rows, 4, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      float* y = stream + row * hidden;
      for (size_t i = row * kTopK; i < (row + 1) * kTopK; ++i) {
        kernels_.multiply_add(y, batch.out + size_t{batch.pair[i]} * hidden, batch.factor[i], hidden);
      }
      const float shared = 1.0F / (1.0F + std::exp(-batch.shared_factor[row]));
      kernels_.multiply_add(y, batch.shared_out + row * hidden, shared, hidden);
    }
  });
}

}  // namespace lily::cpu
