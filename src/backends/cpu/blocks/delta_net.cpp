#include <algorithm>
#include <cmath>

#include "backends/cpu/blocks/batches.h"

namespace lily::cpu {
namespace {

constexpr uint32_t kDim = Shape::kKeyDim;
static_assert(Shape::kKeyDim == Shape::kValueDim);

// Rows of q, k and v that stay in the second-level cache while the v heads pass over them.
constexpr uint32_t kChunkRows = 64;
constexpr uint32_t kMostChannels = 4 * kDim;  // of a k head and the v heads that use it
static_assert(kQwen36.v_heads <= 2 * kQwen36.k_heads && kTiny.v_heads <= 2 * kTiny.k_heads);

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
  // Rows of a batch are a multiple of 4 KB long, so that what a head reads of them falls on few sets of a
  // cache: they are read once, into rows of q, k and v of their own.
  alignas(64) float mixed[size_t{kChunkRows} * kMostChannels];
  const size_t stride = (2 + v_heads) * size_t{kDim};
  float* q = mixed;
  float* k = q + kDim;
  float* v = k + kDim;
  const auto convolve = [&](size_t channel, uint32_t count, float* out) {
    kernels_.conv_silu({.x = batch.mixed + row * channels + channel,
                        .stride = channels,
                        .out = out,
                        .out_stride = stride,
                        .rows = rows,
                        .channels = count,
                        .weight = batch.dense->conv.data() + channel,
                        .state = piece.state->conv(batch.layer) + channel,
                        .width = channels});
  };
  convolve(q_channel, kDim, q);
  convolve(k_channel, kDim, k);
  convolve(v_channel, v_heads * kDim, v);
  const float q_scale = 1.0F / std::sqrt(static_cast<float>(kDim));
  for (uint32_t r = 0; r < rows; ++r) {
    kernels_.l2_normalize(q + r * stride, kDim, q_scale);
    kernels_.l2_normalize(k + r * stride, kDim, 1.0F);
  }
  for (uint32_t h = k_head * v_heads; h < (k_head + 1) * v_heads; ++h, v += kDim) {
    float* decay = batch.a + row * shape_.v_heads + h;
    float* beta = batch.b + row * shape_.v_heads + h;
    for (size_t r = 0; r < rows; ++r) {
      const size_t i = r * shape_.v_heads;
      decay[i] = std::exp(-batch.dense->decay_rate[h] * softplus(decay[i] + batch.dense->dt_bias[h]));
      beta[i] = sigmoid(beta[i]);
    }
    kernels_.delta_rule({.state = piece.state->delta(batch.layer) + size_t{h} * kDim * kDim,
                         .rows = rows,
                         .q = q,
                         .k = k,
                         .v = v,
                         .stride = stride,
                         .decay = decay,
                         .beta = beta,
                         .gate_stride = shape_.v_heads,
                         .out = v,
                         .out_stride = stride});
    for (size_t r = 0; r < rows; ++r) {
      float* out = v + r * stride;
      kernels_.gated_norm({.x = out,
                           .z = batch.z + (row + r) * shape_.value_width() + size_t{h} * kDim,
                           .weight = batch.dense->norm.data(),
                           .out = out});
      const auto of_batch = static_cast<uint32_t>(row + r);
      const Run run = batch.output.run_of(of_batch);
      batch.output.prepare(run, of_batch - run.first, out, h * kDim, (h + 1) * kDim);
    }
  }
}

// All rows of a piece; of a provisional one row by row, with a copy of the states after each.
void CpuBlocks::delta_pieces(const DeltaNetBatch& batch) {
  pool_.for_each(batch.pieces.size() * shape_.k_heads, 1, [&](size_t begin, size_t end) {
    for (size_t item = begin; item < end; ++item) {
      const Piece& piece = batch.pieces[item / shape_.k_heads];
      const auto k_head = static_cast<uint32_t>(item % shape_.k_heads);
      const uint32_t step = piece.provisional ? 1 : kChunkRows;
      for (uint32_t row = 0; row < piece.rows; row += step) {
        delta_chunk(batch, piece, k_head, row, std::min(step, piece.rows - row));
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
  add_product(products_, batch.w.in_proj_qkv, batch.input, batch.mixed);
  add_product(products_, batch.w.in_proj_z, batch.input, batch.z);
  add_product(products_, batch.w.in_proj_a, batch.input, batch.a);
  add_product(products_, batch.w.in_proj_b, batch.input, batch.b);
  run_products(pool_, kernels_, products_);
  delta_pieces(batch);
  products_.clear();
  add_product(products_, batch.w.out_proj, batch.output, stream, /*accumulate=*/true);
  run_products(pool_, kernels_, products_);
}

}  // namespace lily::cpu
