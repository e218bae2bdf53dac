#include <algorithm>
#include <cmath>

#include "backends/cpu/blocks/batches.h"

namespace lily::cpu {
namespace {

constexpr uint32_t kDim = Shape::kKeyDim;
static_assert(Shape::kKeyDim == Shape::kValueDim);

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
                                        const PackedDeltaNet& weights, uint32_t batch_rows)
    : w(weights),
      rows(batch_rows),
      mixed(carver.take(size_t{rows} * shape.conv_channels())),
      z(carver.take(size_t{rows} * shape.value_width())),
      a(carver.take(size_t{rows} * shape.v_heads)),
      b(carver.take(size_t{rows} * shape.v_heads)),
      input(kernels, carver, rows, {&w.in_proj_qkv, &w.in_proj_z, &w.in_proj_a, &w.in_proj_b}),
      output(kernels, carver, rows, {&w.out_proj}),
      used(carver.used()) {}

void CpuBlocks::delta_net(uint32_t layer, std::span<const host::Segment> segments, float* stream) {
  const auto& weights = std::get<PackedDeltaNet>(packed_.layers[layer].mixer);
  for_batches(segments, pieces_, [&](std::span<const Piece> pieces, uint32_t first_row, uint32_t rows) {
    DeltaNetBatch batch(kernels_, Carver(workspace_.data()), shape_, weights, rows);
    batch.layer = layer;
    batch.dense = &std::get<DeltaNetDense>(dense_[layer].mixer);
    batch.pieces = pieces;
    delta_net_batch(batch, stream + size_t{first_row} * shape_.hidden);
  });
}

// One k head and the v heads that use it, over rows [first, first + rows) of a piece: convolution,
// normalisation, gates, recurrent update, gated norm, and the outputs, which replace v, prepared for
// out_proj.
void CpuBlocks::delta_heads(const DeltaNetBatch& batch, const Piece& piece, uint32_t k_head, uint32_t first,
                            uint32_t rows) const {
  const size_t channels = shape_.conv_channels();
  const auto& [q_channel, k_channel, v_channel, v_heads] = channels_of(shape_, k_head);
  const size_t row = piece.first_row + first;
  float* mixed = batch.mixed + row * channels;
  const auto convolve = [&](size_t channel, uint32_t count) {
    kernels_.conv_silu({.x = mixed + channel,
                        .stride = channels,
                        .rows = rows,
                        .channels = count,
                        .weight = batch.dense->conv.data() + channel,
                        .state = piece.state->conv(batch.layer) + channel,
                        .width = channels});
  };
  convolve(q_channel, kDim);
  convolve(k_channel, kDim);
  convolve(v_channel, v_heads * kDim);
  const float q_scale = 1.0F / std::sqrt(static_cast<float>(kDim));
  for (uint32_t r = 0; r < rows; ++r) {
    kernels_.l2_normalize(mixed + r * channels + q_channel, kDim, q_scale);
    kernels_.l2_normalize(mixed + r * channels + k_channel, kDim, 1.0F);
  }
  for (uint32_t h = k_head * v_heads; h < (k_head + 1) * v_heads; ++h) {
    float* head = mixed + v_channel + size_t{h - k_head * v_heads} * kDim;
    float* decay = batch.a + row * shape_.v_heads + h;
    float* beta = batch.b + row * shape_.v_heads + h;
    for (size_t r = 0; r < rows; ++r) {
      const size_t i = r * shape_.v_heads;
      decay[i] = std::exp(-batch.dense->decay_rate[h] * softplus(decay[i] + batch.dense->dt_bias[h]));
      beta[i] = sigmoid(beta[i]);
    }
    kernels_.delta_rule({.state = piece.state->delta(batch.layer) + size_t{h} * kDim * kDim,
                         .rows = rows,
                         .q = mixed + q_channel,
                         .k = mixed + k_channel,
                         .v = head,
                         .stride = channels,
                         .decay = decay,
                         .beta = beta,
                         .gate_stride = shape_.v_heads,
                         .out = head,
                         .out_stride = channels});
    for (size_t r = 0; r < rows; ++r) {
      kernels_.gated_norm({.x = head + r * channels,
                           .z = batch.z + (row + r) * shape_.value_width() + size_t{h} * kDim,
                           .weight = batch.dense->norm.data(),
                           .out = head + r * channels});
      batch.output.prepare({0, batch.rows}, static_cast<uint32_t>(row + r), head + r * channels, h * kDim,
                           (h + 1) * kDim);
    }
  }
}

// All rows of a piece at once; of a provisional one row by row, with a copy of the states after each.
void CpuBlocks::delta_pieces(const DeltaNetBatch& batch) {
  pool_.for_each(batch.pieces.size() * shape_.k_heads, 1, [&](size_t begin, size_t end) {
    for (size_t item = begin; item < end; ++item) {
      const Piece& piece = batch.pieces[item / shape_.k_heads];
      const auto k_head = static_cast<uint32_t>(item % shape_.k_heads);
      const uint32_t step = piece.provisional ? 1 : piece.rows;
      for (uint32_t row = 0; row < piece.rows; row += step) {
        delta_heads(batch, piece, k_head, row, step);
        if (piece.provisional) {
          keep_heads(*piece.state, batch.layer, k_head, piece.skipped + row);
        }
      }
    }
  });
}

// Copies what delta_heads() changed of the states to where accept() finds it.
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
  Product in[] = {product_of(batch.w.in_proj_qkv, batch.input, batch.rows, batch.mixed),
                  product_of(batch.w.in_proj_z, batch.input, batch.rows, batch.z),
                  product_of(batch.w.in_proj_a, batch.input, batch.rows, batch.a),
                  product_of(batch.w.in_proj_b, batch.input, batch.rows, batch.b)};
  run_products(pool_, kernels_, in);
  delta_pieces(batch);
  Product product = addition_of(batch.w.out_proj, batch.output, batch.rows, stream);
  run_products(pool_, kernels_, {&product, 1});
}

}  // namespace lily::cpu
