#include <algorithm>
#include <array>
#include <cmath>

#include "backends/cpu/blocks/batches.h"

namespace lily::cpu {
namespace {

constexpr uint32_t kDim = Shape::kKeyDim;
static_assert(Shape::kKeyDim == Shape::kValueDim);

// Rows of q, k and v that stay in the second-level cache while the v heads pass over them.
constexpr uint32_t kChunkRows = 64;
static_assert(kChunkRows % kDeltaChunk == 0);
constexpr uint32_t kMostHeads = 2;                           // v heads that use a k head
constexpr uint32_t kMostChannels = (2 + kMostHeads) * kDim;  // of all these
static_assert(kQwen36.v_heads <= kMostHeads * kQwen36.k_heads && kTiny.v_heads <= kMostHeads * kTiny.k_heads);

float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }
// log(1 + exp(x)) without overflow.
float softplus(float x) { return std::max(x, 0.0F) + std::log1p(std::exp(-std::fabs(x))); }

// The convolution's channels that a k head and the v heads using it read.
struct Channels {
  size_t q;
  size_t k;
  size_t v;
  uint32_t v_heads;
};
Channels channels_of(const Shape& shape, uint32_t k_head) {
  const uint32_t v_heads = shape.v_heads / shape.k_heads;
  const size_t q = size_t{k_head} * kDim;
  return {.q = q,
          .k = shape.key_width() + q,
          .v = 2 * size_t{shape.key_width()} + v_heads * q,
          .v_heads = v_heads};
}

}  // namespace

CpuBlocks::DeltaNetBatch::DeltaNetBatch(const Kernels& kernels, Carver carver, const Shape& shape,
                                        const PackedDeltaNet& weights, BatchRows batch_rows)
    : w(weights),
      rows(batch_rows.count),
      mixed(carver.take(size_t{rows} * shape.conv_channels())),
      z(carver.take(size_t{rows} * shape.value_width())),
      a(carver.take(size_t{rows} * shape.v_heads)),
      b(carver.take(size_t{rows} * shape.v_heads)),
      input(kernels, carver, batch_rows, {&w.in_proj_qkv, &w.in_proj_z, &w.in_proj_a, &w.in_proj_b}),
      output(kernels, carver, batch_rows, {&w.out_proj}),
      used(carver.used()) {}

void CpuBlocks::delta_net(uint32_t layer, std::span<const host::Segment> segments, float* stream) {
  const auto& weights = std::get<PackedDeltaNet>(packed_.layers[layer].mixer);
  for_batches(
      segments, kernels_.halves, pieces_,
      [&](std::span<const Piece> pieces, uint32_t first_row, uint32_t rows) {
        DeltaNetBatch batch(kernels_, Carver(workspace_.data()), shape_, weights, {rows, pieces[0].halves});
        batch.layer = layer;
        batch.dense = &std::get<DeltaNetDense>(dense_[layer].mixer);
        batch.pieces = pieces;
        delta_net_batch(batch, stream + size_t{first_row} * shape_.hidden);
      });
}

// One k head and the v heads that use it, over rows [first, first + rows) of a piece, at most kChunkRows:
// convolution, normalisation, gates, recurrent update, gated norm, and the outputs, prepared for out_proj.
void CpuBlocks::delta_chunk(const DeltaNetBatch& batch, const Piece& piece, uint32_t k_head, uint32_t first,
                            uint32_t rows) const {
  const size_t channels = shape_.conv_channels();
  const auto& [q_channel, k_channel, v_channel, v_heads] = channels_of(shape_, k_head);
  const size_t row = piece.first_row + first;
  alignas(64) float mixed[size_t{kChunkRows} * kMostChannels];
  const size_t stride = (2 + v_heads) * size_t{kDim};
  float* q = mixed;
  float* k = q + kDim;
  float* v = k + kDim;
  const auto convolve = [&](size_t channel, float* out) {
    kernels_.conv_silu({.x = batch.mixed + channel * batch.rows + row * kDim,
                        .stride = kDim,
                        .out = out,
                        .out_stride = stride,
                        .rows = rows,
                        .channels = kDim,
                        .weight = batch.dense->conv.data() + channel,
                        .state = piece.state->conv(batch.layer) + channel,
                        .width = channels});
  };
  convolve(q_channel, q);
  convolve(k_channel, k);
  for (uint32_t h = 0; h < v_heads; ++h) {
    convolve(v_channel + size_t{h} * kDim, v + size_t{h} * kDim);
  }
  const float q_scale = 1.0F / std::sqrt(static_cast<float>(kDim));
  // Gates are not written where those of other heads lie beside them, which other threads work on.
  std::array<float, size_t{kChunkRows} * kMostHeads> decay;
  std::array<float, size_t{kChunkRows} * kMostHeads> beta;
  for (uint32_t r = 0; r < rows; ++r) {
    kernels_.l2_normalize(q + r * stride, kDim, q_scale);
    kernels_.l2_normalize(k + r * stride, kDim, 1.0F);
    for (uint32_t h = 0; h < v_heads; ++h) {
      const uint32_t head = k_head * v_heads + h;
      const size_t from = (row + r) * shape_.v_heads + head;
      const float step = softplus(batch.a[from] + batch.dense->dt_bias[head]);
      decay[r * v_heads + h] = std::exp(-batch.dense->decay_rate[head] * step);
      beta[r * v_heads + h] = sigmoid(batch.b[from]);
    }
  }
  run_delta_rule({.state = piece.state->delta(batch.layer) + size_t{k_head} * v_heads * kDim * kDim,
                  .heads = v_heads,
                  .position = piece.position + first,
                  .rows = rows,
                  .q = q,
                  .k = k,
                  .v = v,
                  .stride = stride,
                  .decay = decay.data(),
                  .beta = beta.data(),
                  .gate_stride = v_heads,
                  .out = v,
                  .out_stride = stride},
                 piece.halves && !piece.provisional);
  for (uint32_t h = 0; h < v_heads; ++h, v += kDim) {
    const uint32_t head = k_head * v_heads + h;
    const float* z = batch.z + (size_t{head} * batch.rows + row) * kDim;
    for (uint32_t r = 0; r < rows; ++r) {
      float* out = v + r * stride;
      kernels_.gated_norm(
          {.x = out, .z = z + size_t{r} * kDim, .weight = batch.dense->norm.data(), .out = out});
      const auto of_batch = static_cast<uint32_t>(row + r);
      const Run run = batch.output.run_of(of_batch);
      batch.output.prepare(run, of_batch - run.first, out, head * kDim, (head + 1) * kDim);
    }
  }
}

// `chunks`: by chunks, if the kernels can.
void CpuBlocks::run_delta_rule(const DeltaChunksArgs& heads, bool chunks) const {
  if (chunks && kernels_.delta_chunks != nullptr) {
    kernels_.delta_chunks(heads);
    return;
  }
  for (uint32_t h = 0; h < heads.heads; ++h) {
    kernels_.delta_rule({.state = heads.state + size_t{h} * kDim * kDim,
                         .rows = heads.rows,
                         .q = heads.q,
                         .k = heads.k,
                         .v = heads.v + size_t{h} * kDim,
                         .stride = heads.stride,
                         .decay = heads.decay + h,
                         .beta = heads.beta + h,
                         .gate_stride = heads.gate_stride,
                         .out = heads.out + size_t{h} * kDim,
                         .out_stride = heads.out_stride});
  }
}

// All rows of a piece, in steps that begin where chunks do; of a provisional one row by row, with a copy of
// the states after each.
void CpuBlocks::delta_pieces(const DeltaNetBatch& batch) {
  pool_.for_each(batch.pieces.size() * shape_.k_heads, 1, [&](size_t begin, size_t end) {
    for (size_t item = begin; item < end; ++item) {
      const Piece& piece = batch.pieces[item / shape_.k_heads];
      const auto k_head = static_cast<uint32_t>(item % shape_.k_heads);
      uint32_t rows = 0;
      for (uint32_t row = 0; row < piece.rows; row += rows) {
        rows = piece.provisional ? 1 : kChunkRows - (piece.position + row) % kChunkRows;
        rows = std::min(rows, piece.rows - row);
        delta_chunk(batch, piece, k_head, row, rows);
        if (piece.provisional) {
          keep_heads(*piece.state, batch.layer, k_head, piece.skipped + row);
        }
      }
    }
  });
}

// Copies what delta_chunk() changed of the states to where accept() finds it.
void CpuBlocks::keep_heads(host::HostState& state, uint32_t layer, uint32_t k_head, uint32_t row) const {
  float* conv = state.kept_conv(layer, row);
  float* delta = state.kept_delta(layer, row);
  if (conv == nullptr || delta == nullptr) {
    return;  // the last row: the state itself
  }
  const Channels channels = channels_of(shape_, k_head);
  const auto copy = [&](size_t channel, size_t count) {
    for (size_t tap = 0; tap < Shape::kConvKernel - 1; ++tap) {
      const size_t at = tap * shape_.conv_channels() + channel;
      std::copy_n(state.conv(layer) + at, count, conv + at);
    }
  };
  copy(channels.q, kDim);
  copy(channels.k, kDim);
  copy(channels.v, size_t{channels.v_heads} * kDim);
  const size_t first = size_t{k_head} * channels.v_heads * kDim * kDim;
  std::copy_n(state.delta(layer) + first, size_t{channels.v_heads} * kDim * kDim, delta + first);
}

void CpuBlocks::delta_net_batch(const DeltaNetBatch& batch, float* stream) {
  prepare_normed(stream, batch.rows, batch.dense->input_norm, batch.input);
  products_.clear();
  add_product(products_, batch.w.in_proj_qkv, batch.input, batch.mixed, {.plane = kDim});
  add_product(products_, batch.w.in_proj_z, batch.input, batch.z, {.plane = kDim});
  add_product(products_, batch.w.in_proj_a, batch.input, batch.a);
  add_product(products_, batch.w.in_proj_b, batch.input, batch.b);
  run_products(pool_, kernels_, products_);
  delta_pieces(batch);
  products_.clear();
  add_product(products_, batch.w.out_proj, batch.output, stream, {.accumulate = true});
  run_products(pool_, kernels_, products_);
}

}  // namespace lily::cpu
