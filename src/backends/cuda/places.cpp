#include "backends/cuda/places.h"

#include <utility>

#include "backends/cuda/model.h"
#include "base/check.h"

namespace lily::cuda {

namespace {

// What lies in relay_ from `at` on.
struct Taker {
  uint8_t* at;
  uint64_t rows;
  uint8_t* take(uint64_t size) { return std::exchange(at, at + size); }
  float* floats(uint64_t count) { return reinterpret_cast<float*>(take(rows * count * 4)); }
  Feed feed(uint64_t inputs) {
    auto* const x = reinterpret_cast<uint16_t*>(take(rows * inputs * 2));
    return {x, floats(inputs / kFeedBlock)};
  }
  StreamArgs stream(const float* norm, uint32_t hidden) {
    float* const values = floats(hidden);
    return {values, values, norm, feed(hidden), hidden};
  }
};

// Kernels in the order in which they wait for each other.
class Chain {
 public:
  Chain(uint8_t* counts, const uint32_t* before, uint32_t blocks)
      : counts_(counts), before_(before), blocks_(blocks) {}
  Relay next(uint32_t blocks) {
    auto* const own = reinterpret_cast<uint32_t*>(std::exchange(counts_, counts_ + kCountBytes));
    return {
        .on = 1, .before = std::exchange(before_, own), .blocks = std::exchange(blocks_, blocks), .own = own};
  }

 private:
  uint8_t* counts_;
  const uint32_t* before_;
  uint32_t blocks_;
};

}  // namespace

Places DeviceModel::places(uint32_t layer, const Batch& batch) const {
  if (batch.relayed) {
    return relay(layer, batch.rows);
  }
  return {.before = stream_from(batch.first_row, norm_before(layer)),
          .mixed = mixed_.as<float>(),
          .heads = {heads_x_.as<uint16_t>(), heads_squares_.as<float>()},
          .mixer = stream_from(batch.first_row, views().layers[layer].moe.post_norm),
          .router = router_.as<float>(),
          .h = h_.as<uint16_t>(),
          .experts = stream_from(batch.first_row, norm_before(layer + 1)),
          .relays = {}};
}

// Every layer has its part of relay_; of the one behind the last, the head reads the feed.
Places DeviceModel::relay(uint32_t layer, uint32_t rows) const {
  const uint64_t bytes = relay_bytes(dims_, rows);
  const bool head = layer == dims_.layers;
  Taker memory{relay_.bytes() + layer * bytes, rows};
  Places at{};
  at.before = memory.stream(norm_before(layer), dims_.hidden);
  at.mixer = memory.stream(head ? nullptr : views().layers[layer].moe.post_norm, dims_.hidden);
  at.mixer.from = at.before.stream;
  at.heads = memory.feed(heads_width(dims_));
  at.mixed = memory.floats(mixed_width(dims_));
  at.router = memory.floats(router_width(dims_));
  at.h = reinterpret_cast<uint16_t*>(memory.take(rows * uint64_t{kUses} * dims_.ffn * 2));
  uint8_t* const counts = memory.take(kCounts * kCountBytes);
  LILY_CHECK(memory.at <= relay_.bytes() + (layer + 1) * bytes);

  Chain chain(counts, nullptr, 0);
  if (layer > 0) {
    const uint64_t index = plan_.shape.is_attention(layer - 1) ? 6 : 5;
    const uint8_t* const of_down = counts - bytes + index * kCountBytes;
    chain = Chain(counts, reinterpret_cast<const uint32_t*>(of_down),
                  down_shape(views().layers[layer - 1].moe.down, rows, traits_).blocks);
  }
  if (head) {
    at.relays.in_proj = chain.next(0);
    return at;
  }
  at.experts = relay(layer + 1, rows).before;
  at.experts.from = at.mixer.stream;
  const LayerViews& of = views().layers[layer];
  const auto blocks = [&](const PackedMatrix& w) { return project_shape(w, rows, traits_).blocks; };
  at.relays.in_proj = chain.next(std::visit([&](const auto& w) { return blocks(w.in_proj); }, of.mixer));
  if (plan_.shape.is_attention(layer)) {
    at.relays.mixer = chain.next(attend_blocks(dims_, rows));
    at.relays.combine = chain.next(combine_blocks(dims_, rows));
  } else {
    at.relays.mixer = chain.next(rows * value_width(dims_) / kDeltaColumns);
  }
  at.relays.out_proj = chain.next(std::visit([&](const auto& w) { return blocks(w.out_proj); }, of.mixer));
  at.relays.router = chain.next(blocks(of.moe.router));
  at.relays.gate_up = chain.next(gate_up_shape(of.moe.gate_up, rows, traits_).blocks);
  at.relays.down = chain.next(0);
  return at;
}

// Kernels for narrow tiles alone are relayed: the others are rare. Where a device takes rows in several
// launches, those of one kernel could not be counted.
uint32_t DeviceModel::most_relayed() const {
  const auto takes = [&](const PackedMatrix& w, uint32_t rows) {
    return w.wide == 0 && project_shape(w, rows, traits_).shared <= traits_.shared_bytes;
  };
  uint32_t rows = std::min(plan_.sequences, kRelayedStepRows);
  const auto all_take = [&] {
    bool all = takes(views().lm_head, rows);
    for (const LayerViews& layer : views().layers) {
      all =
          all && std::visit([&](const auto& w) { return takes(w.in_proj, rows) && takes(w.out_proj, rows); },
                            layer.mixer);
      all = all && takes(layer.moe.router, rows);
      all = all && layer.moe.gate_up.wide + layer.moe.down.wide == 0;
      all = all && gate_up_shape(layer.moe.gate_up, rows, traits_).shared <= traits_.shared_bytes;
      all = all && down_shape(layer.moe.down, rows, traits_).shared <= traits_.shared_bytes;
    }
    return all;
  };
  while (rows > 0 && !all_take()) {
    --rows;
  }
  return rows;
}

}  // namespace lily::cuda
