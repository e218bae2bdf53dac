#include <algorithm>
#include <array>
#include <cmath>

#include "backends/cpu/blocks/batches.h"
#include "model/rope.h"

namespace lily::cpu {
namespace {

constexpr uint32_t kDim = Shape::kHeadDim;
static_assert(kAttendTokens == host::kBlockTokens);

constexpr uint32_t kPartitionTokens = kPartitionBlocks * host::kBlockTokens;

uint32_t partitions_of(uint32_t tokens) { return (tokens + kPartitionTokens - 1) / kPartitionTokens; }

}  // namespace

CpuBlocks::AttentionBatch::AttentionBatch(const Kernels& kernels, Carver carver, const Shape& shape,
                                          const PackedAttention& weights, BatchRows batch_rows,
                                          uint32_t partials)
    : w(weights),
      rows(batch_rows.count),
      q_gate(carver.take(2 * size_t{rows} * shape.q_width())),
      q(carver.take(size_t{rows} * shape.q_width())),
      k(carver.take(size_t{rows} * shape.kv_width())),
      v(carver.take(size_t{rows} * shape.kv_width())),
      partial_out(carver.take(size_t{partials} * kGroupHeads * kDim)),
      partial_largest(carver.take(size_t{partials} * kGroupHeads)),
      partial_total(carver.take(size_t{partials} * kGroupHeads)),
      input(kernels, carver, batch_rows, {&w.q_proj, &w.k_proj, &w.v_proj}),
      output(kernels, carver, batch_rows, {&w.o_proj}),
      used(carver.used()) {}

uint32_t attention_partials(const Shape& shape, uint32_t context, uint32_t rows) {
  return shape.kv_heads * std::max(partitions_of(context), rows);
}

void CpuBlocks::attention(uint32_t layer, std::span<const host::Segment> segments, float* stream) {
  const auto& weights = std::get<PackedAttention>(packed_.layers[layer].mixer);
  for_batches(segments, kernels_.halves, pieces_,
              [&](std::span<const Piece> pieces, uint32_t first_row, uint32_t rows) {
                AttentionBatch batch(kernels_, Carver(workspace_.data()), shape_, weights,
                                     {rows, pieces[0].halves}, max_partials_);
                batch.layer = layer;
                batch.dense = &std::get<AttentionDense>(dense_[layer].mixer);
                batch.pieces = pieces;
                attention_batch(batch, stream + size_t{first_row} * shape_.hidden);
              });
}

// Norms and turns the queries and keys of row `row` of a piece, and stores its keys and values.
void CpuBlocks::write_keys_values(const AttentionBatch& batch, const Piece& piece, uint32_t row) const {
  const size_t r = piece.first_row + row;
  const uint32_t position = piece.position + row;
  const Rotation rotation = rotation_at(position);
  const float scale = 1.0F / std::sqrt(static_cast<float>(kDim));
  for (uint32_t h = 0; h < shape_.q_heads; ++h) {
    float* q = batch.q + r * shape_.q_width() + size_t{h} * kDim;
    const float* projected = batch.q_gate + (r * shape_.q_heads + h) * 2 * kDim;
    kernels_.rms_norm({projected, batch.dense->q_norm.data(), q, kDim});
    rotate(rotation, q);
    for (uint32_t d = 0; d < kDim; ++d) {
      q[d] *= scale;  // a power of two: exact
    }
  }
  const uint32_t block = position / host::kBlockTokens;
  const size_t offset = size_t{position % host::kBlockTokens} * kDim * size_of(DType::bf16);
  for (uint32_t h = 0; h < shape_.kv_heads; ++h) {
    float* k = batch.k + r * shape_.kv_width() + size_t{h} * kDim;
    const float* v = batch.v + r * shape_.kv_width() + size_t{h} * kDim;
    kernels_.rms_norm({k, batch.dense->k_norm.data(), k, kDim});
    rotate(rotation, k);
    kernels_.to_bf16(k, piece.state->keys(batch.layer, h, block) + offset, kDim);
    kernels_.to_bf16(v, piece.state->values(batch.layer, h, block) + offset, kDim);
  }
}

// Of the first `tokens` tokens of an item's partition.
CpuBlocks::KeysValues CpuBlocks::keys_values(const AttentionBatch& batch, const AttendItem& item,
                                             uint32_t tokens) const {
  KeysValues at{};
  for (uint32_t i = 0; i * host::kBlockTokens < tokens; ++i) {
    const uint32_t block = item.partition * kPartitionBlocks + i;
    at.keys[i] = item.piece->state->keys(batch.layer, item.kv_head, block);
    at.values[i] = item.piece->state->values(batch.layer, item.kv_head, block);
  }
  return at;
}

void CpuBlocks::attend_item(const AttentionBatch& batch, const AttendItem& item, size_t index) const {
  const auto [keys, values] = keys_values(batch, item, item.tokens);
  const size_t first_head = size_t{item.row} * shape_.q_heads + size_t{item.kv_head} * kGroupHeads;
  kernels_.attend({.q = batch.q + first_head * kDim,
                   .keys = keys.data(),
                   .values = values.data(),
                   .tokens = item.tokens,
                   .out = batch.partial_out + index * kGroupHeads * kDim,
                   .largest = batch.partial_largest + index * kGroupHeads,
                   .total = batch.partial_total + index * kGroupHeads});
}

// The partitions of one row and key-value head, in order, into its outputs, which replace its queries and are
// prepared for o_proj.
void CpuBlocks::combine(const AttentionBatch& batch, const AttendItem& item, size_t first) const {
  for (uint32_t h = 0; h < kGroupHeads; ++h) {
    const float* largest = batch.partial_largest + first * kGroupHeads + h;
    const float* total = batch.partial_total + first * kGroupHeads + h;
    float top = largest[0];
    for (uint32_t p = 1; p < item.partitions; ++p) {
      top = std::max(top, largest[size_t{p} * kGroupHeads]);
    }
    const size_t head = size_t{item.row} * shape_.q_heads + size_t{item.kv_head} * kGroupHeads + h;
    float* out = batch.q + head * kDim;
    std::fill_n(out, kDim, 0.0F);
    float sum = 0;
    for (uint32_t p = 0; p < item.partitions; ++p) {
      const float factor = std::exp(largest[size_t{p} * kGroupHeads] - top);
      sum += factor * total[size_t{p} * kGroupHeads];
      kernels_.multiply_add(out, batch.partial_out + ((first + p) * kGroupHeads + h) * kDim, factor, kDim);
    }
    const float inverse = 1.0F / sum;
    for (uint32_t d = 0; d < kDim; ++d) {
      out[d] *= inverse;
    }
    kernels_.sigmoid_multiply(out, batch.q_gate + head * 2 * kDim + kDim, kDim);
  }
  const uint32_t begin = item.kv_head * kGroupHeads * kDim;
  const Run run = batch.output.run_of(item.row);
  batch.output.prepare(run, item.row - run.first, batch.q + size_t{item.row} * shape_.q_width() + begin,
                       begin, begin + kGroupHeads * kDim);
}

// Cuts the items into groups of consecutive rows of a piece, one for each key-value head and partition. Items
// are in the order of rows, then of heads, then of partitions, of which a later row of a piece has no fewer.
void CpuBlocks::group_items() {
  groups_.clear();
  for (size_t begin = 0, end = 0; begin < items_.size(); begin = end) {
    std::array<uint32_t, kAttendRows> first{};  // item of each row
    uint32_t rows = 0;
    while (end < items_.size() && rows < kAttendRows && items_[end].piece == items_[begin].piece) {
      first[rows++] = static_cast<uint32_t>(end);
      end += size_t{shape_.kv_heads} * items_[end].partitions;
    }
    const uint32_t most = items_[first[rows - 1]].partitions;
    for (uint32_t i = 0; i < shape_.kv_heads * most; ++i) {
      AttendGroup group{};
      for (uint32_t row = 0; row < rows; ++row) {
        const uint32_t partitions = items_[first[row]].partitions;
        if (i % most < partitions) {
          group.items[group.rows++] = first[row] + i / most * partitions + i % most;
        }
      }
      groups_.push_back(group);
    }
  }
}

void CpuBlocks::attend_group(const AttentionBatch& batch, const AttendGroup& group) const {
  const AttendItem& first = items_[group.items[0]];
  const auto [keys, values] = keys_values(batch, first, items_[group.items[group.rows - 1]].tokens);
  const size_t first_head = size_t{first.row} * shape_.q_heads + size_t{first.kv_head} * kGroupHeads;
  kernels_.attend_rows({.q = batch.q + first_head * kDim,
                        .q_stride = shape_.q_width(),
                        .rows = group.rows,
                        .keys = keys.data(),
                        .values = values.data(),
                        .tokens = first.tokens,
                        .most = kPartitionTokens,
                        .partial = group.items.data(),
                        .out = batch.partial_out,
                        .largest = batch.partial_largest,
                        .total = batch.partial_total});
}

void CpuBlocks::run_items(const AttentionBatch& batch) {
  if (batch.pieces[0].halves && kernels_.attend_rows != nullptr) {
    group_items();
    pool_.for_each(groups_.size(), 1, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        attend_group(batch, groups_[i]);
      }
    });
  } else {
    pool_.for_each(items_.size(), 1, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        attend_item(batch, items_[i], i);
      }
    });
  }
  pool_.for_each(items_.size(), 8, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (items_[i].partition == 0) {
        combine(batch, items_[i], i);
      }
    }
  });
  items_.clear();
}

// Attention of every row, as many rows at a time as there is room for partial sums.
void CpuBlocks::attend_rows(const AttentionBatch& batch) {
  items_.clear();
  for (const Piece& piece : batch.pieces) {
    for (uint32_t r = 0; r < piece.rows; ++r) {
      const uint32_t tokens = piece.position + r + 1;
      const uint32_t partitions = partitions_of(tokens);
      if (items_.size() + size_t{partitions} * shape_.kv_heads > max_partials_) {
        run_items(batch);
      }
      for (uint32_t i = 0; i < partitions * shape_.kv_heads; ++i) {
        const uint32_t partition = i % partitions;
        items_.push_back({.piece = &piece,
                          .row = piece.first_row + r,
                          .kv_head = i / partitions,
                          .partition = partition,
                          .partitions = partitions,
                          .tokens = std::min(kPartitionTokens, tokens - partition * kPartitionTokens)});
      }
    }
  }
  run_items(batch);
}

void CpuBlocks::attention_batch(const AttentionBatch& batch, float* stream) {
  prepare_normed(stream, batch.rows, batch.dense->input_norm, batch.input);
  products_.clear();
  add_product(products_, batch.w.q_proj, batch.input, batch.q_gate);
  add_product(products_, batch.w.k_proj, batch.input, batch.k);
  add_product(products_, batch.w.v_proj, batch.input, batch.v);
  run_products(pool_, kernels_, products_);
  for (const Piece& piece : batch.pieces) {
    pool_.for_each(piece.rows, 4, [&](size_t begin, size_t end) {
      for (size_t row = begin; row < end; ++row) {
        write_keys_values(batch, piece, static_cast<uint32_t>(row));
      }
    });
  }
  attend_rows(batch);
  products_.clear();
  add_product(products_, batch.w.o_proj, batch.output, stream, {.accumulate = true});
  run_products(pool_, kernels_, products_);
}

}  // namespace lily::cpu
