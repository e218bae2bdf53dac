#include "backends/cuda/residency.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>

#include "backends/cuda/pack.h"
#include "base/check.h"
#include "base/threads.h"

namespace lily::cuda {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kStageBytes = size_t{32} << 20;
constexpr size_t kStages = 4;

size_t align(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// One thing to be placed in device memory. Views are set when its address is known.
struct PackedItem {
  std::string name;
  Recipe recipe;
  PackedMatrix form;
  std::function<void(const PackedMatrix&)> place;
};
struct PlainItem {
  std::vector<float> values;  // or raw bytes of the file
  const std::byte* raw = nullptr;
  size_t raw_bytes = 0;
  std::function<void(const uint8_t*)> place;
  size_t bytes() const { return raw != nullptr ? raw_bytes : values.size() * sizeof(float); }
};

// The parts of the model in the order of their use.
class Inventory {
 public:
  Inventory(const Shape& shape, const ModelWeights& weights, ModelViews& views) : views_(views) {
    views.layers.resize(shape.layers);
    embed(weights.embed.table);
    for (uint32_t i = 0; i < shape.layers; ++i) {
      const std::string name = fmt::format("layer {}", i);
      const LayerWeights& layer = weights.layers[i];
      if (const auto* w = std::get_if<DeltaNetWeights>(&layer.mixer)) {
        views.layers[i].mixer = DeltaNetLayer{};
        delta_net(name, *w, std::get<DeltaNetLayer>(views.layers[i].mixer), i);
      } else {
        views.layers[i].mixer = AttentionLayer{};
        attention(name, std::get<AttentionWeights>(layer.mixer),
                  std::get<AttentionLayer>(views.layers[i].mixer), i);
      }
      moe(name, layer.moe, views.layers[i].moe);
    }
    floats(weights.head.norm.to_floats(), views.final_norm);
    packed("lm_head", {.matrices = {{weights.head.lm_head}}}, views.lm_head);
  }

  Result<void> shape_items() {
    for (PackedItem& item : items) {
      LILY_TRY(item.form, packed_form(item.recipe, item.name));
    }
    return {};
  }
  uint64_t total() const {
    uint64_t bytes = 0;
    for (const PackedItem& item : items) {
      bytes += align(packed_bytes(item.form));
    }
    for (const PlainItem& item : plain) {
      bytes += align(item.bytes());
    }
    return bytes;
  }

  std::vector<PackedItem> items;
  std::vector<PlainItem> plain;

 private:
  void packed(std::string name, Recipe recipe, PackedMatrix& to) {
    items.push_back({std::move(name), std::move(recipe), {}, [&to](const PackedMatrix& m) { to = m; }});
  }
  void floats(std::vector<float> values, const float*& to) {
    plain.push_back({.values = std::move(values),
                     .place = [&to](const uint8_t* at) { to = reinterpret_cast<const float*>(at); }});
  }
  void raw(const std::byte* data, size_t bytes, const uint8_t*& to) {
    plain.push_back(
        {.values = {}, .raw = data, .raw_bytes = bytes, .place = [&to](const uint8_t* at) { to = at; }});
  }

  void embed(const AffineMatrix& table) {
    views_.embed.bits = table.bits;
    views_.embed.group = table.group;
    views_.embed.scale_kind = table.scale_type == DType::bf16 ? 0 : table.scale_type == DType::f16 ? 1 : 2;
    raw(table.codes, table.code_bytes(), views_.embed.codes);
    raw(table.scales, table.scale_bytes(), views_.embed.scales);
    raw(table.biases, table.scale_bytes(), views_.embed.biases);
  }

  void delta_net(const std::string& name, const DeltaNetWeights& w, DeltaNetLayer& to, uint32_t layer) {
    to.index = layer - layer / Shape::kAttentionInterval;
    packed(name + " in_proj", {.matrices = {{w.in_proj_qkv, w.in_proj_z, w.in_proj_a, w.in_proj_b}}},
           to.in_proj);
    packed(name + " out_proj", {.matrices = {{w.out_proj}}}, to.out_proj);
    floats(w.input_norm.to_floats(), to.input_norm);
    std::vector<float> conv(w.conv1d.count());
    for (uint32_t channel = 0; channel < w.conv1d.rows; ++channel) {
      for (uint32_t tap = 0; tap < Shape::kConvKernel; ++tap) {
        conv[size_t{tap} * w.conv1d.rows + channel] = w.conv1d.at(size_t{channel} * Shape::kConvKernel + tap);
      }
    }
    floats(std::move(conv), to.conv);
    std::vector<float> rate = w.a_log.to_floats();
    std::transform(rate.begin(), rate.end(), rate.begin(), [](float x) { return std::exp(x); });
    floats(std::move(rate), to.decay_rate);
    floats(w.dt_bias.to_floats(), to.dt_bias);
    floats(w.norm.to_floats(), to.norm);
  }

  void attention(const std::string& name, const AttentionWeights& w, AttentionLayer& to, uint32_t layer) {
    to.index = layer / Shape::kAttentionInterval;
    packed(name + " q_proj, k_proj, v_proj", {.matrices = {{w.q_proj, w.k_proj, w.v_proj}}}, to.in_proj);
    packed(name + " o_proj", {.matrices = {{w.o_proj}}}, to.out_proj);
    floats(w.input_norm.to_floats(), to.input_norm);
    floats(w.q_norm.to_floats(), to.q_norm);
    floats(w.k_norm.to_floats(), to.k_norm);
  }

  void moe(const std::string& name, const MoeWeights& w, MoeLayer& to) {
    packed(name + " router", {.matrices = {{w.router, w.shared_gate}}}, to.router);
    Recipe gate_up{.matrices = {}, .interleaved = true};
    Recipe down;
    for (uint32_t expert = 0; expert < w.gate.experts; ++expert) {
      gate_up.matrices.push_back({w.gate.expert(expert), w.up.expert(expert)});
      down.matrices.push_back({w.down.expert(expert)});
    }
    gate_up.matrices.push_back({w.shared_gate_proj, w.shared_up_proj});
    down.matrices.push_back({w.shared_down_proj});
    packed(name + " gate_proj and up_proj", std::move(gate_up), to.gate_up);
    packed(name + " down_proj", std::move(down), to.down);
    floats(w.post_norm.to_floats(), to.post_norm);
  }

  ModelViews& views_;
};

// Page-locked buffers in turn: while one is copied to the device, the next is filled.
class Uploader {
 public:
  Result<void> prepare(Stream queue) {
    queue_ = queue;
    for (Stage& stage : stages_) {
      LILY_TRY(stage.memory, PinnedMemory::allocate(kStageBytes, "staging memory for the weights"));
      LILY_TRY(stage.copied, Event::create());
      LILY_TRY_VOID(stage.copied.record(queue));
    }
    return {};
  }
  // A buffer that no copy reads any more.
  Result<uint8_t*> next() {
    LILY_TRY_VOID(stages_[turn_].copied.wait());
    return stages_[turn_].memory.bytes();
  }
  Result<void> send(uint8_t* to, size_t bytes) {
    Stage& stage = stages_[turn_];
    turn_ = (turn_ + 1) % kStages;
    LILY_TRY_VOID(copy_to_device(to, stage.memory.bytes(), bytes, queue_));
    return stage.copied.record(queue_);
  }

 private:
  struct Stage {
    PinnedMemory memory;
    Event copied;
  };
  std::array<Stage, kStages> stages_;
  size_t turn_ = 0;
  Stream queue_ = nullptr;
};

Result<void> upload_packed(const PackedItem& item, uint8_t* to, ThreadPool& pool, Uploader& uploader) {
  const uint64_t block = block_bytes(item.form);
  const uint64_t blocks = uint64_t{item.form.matrices} * item.form.row_blocks;
  const uint64_t at_once = std::max<uint64_t>(kStageBytes / block, 1);
  LILY_CHECK(block <= kStageBytes);
  for (uint64_t first = 0; first < blocks; first += at_once) {
    const uint64_t count = std::min(at_once, blocks - first);
    LILY_TRY(uint8_t * stage, uploader.next());
    pool.for_each(count, 8, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        const auto matrix = static_cast<uint32_t>((first + i) / item.form.row_blocks);
        const auto row_block = static_cast<uint32_t>((first + i) % item.form.row_blocks);
        pack_block(item.recipe, item.form, matrix, row_block, stage + i * block);
      }
    });
    LILY_TRY_VOID(uploader.send(to + first * block, count * block));
  }
  return {};
}

Result<void> upload_plain(const PlainItem& item, uint8_t* to, ThreadPool& pool, Uploader& uploader) {
  const auto* from = item.raw != nullptr ? item.raw : reinterpret_cast<const std::byte*>(item.values.data());
  for (size_t done = 0; done < item.bytes(); done += kStageBytes) {
    const size_t count = std::min(kStageBytes, item.bytes() - done);
    LILY_TRY(uint8_t * stage, uploader.next());
    pool.for_each(count, size_t{1} << 20, [&](size_t begin, size_t end) {
      std::memcpy(stage + begin, from + done + begin, end - begin);
    });
    LILY_TRY_VOID(uploader.send(to + done, count));
  }
  return {};
}

}  // namespace

Result<uint64_t> Residency::bytes(const Shape& shape, const ModelWeights& weights) {
  ModelViews unused{};
  Inventory inventory(shape, weights, unused);
  LILY_TRY_VOID(inventory.shape_items());
  return inventory.total();
}

Result<void> Residency::load(const Shape& shape, const ModelWeights& weights, Meter& meter, Stream queue,
                             FunctionRef<void(double)> progress) {
  LILY_CHECK(shape.shared_ffn == shape.expert_ffn);
  Inventory inventory(shape, weights, views_);
  LILY_TRY_VOID(inventory.shape_items());
  const uint64_t total = inventory.total();
  LILY_TRY(memory_, DeviceMemory::allocate(total, meter, "memory for the weights"));
  ThreadPool pool(0);
  Uploader uploader;
  LILY_TRY_VOID(uploader.prepare(queue));
  uint8_t* at = memory_.bytes();
  for (PlainItem& item : inventory.plain) {
    LILY_TRY_VOID(upload_plain(item, at, pool, uploader));
    item.place(at);
    at += align(item.bytes());
  }
  for (PackedItem& item : inventory.items) {
    LILY_TRY_VOID(upload_packed(item, at, pool, uploader));
    item.form.tiles = at;
    item.place(item.form);
    at += align(packed_bytes(item.form));
    progress(static_cast<double>(at - memory_.bytes()) / static_cast<double>(total));
  }
  return finish(queue);
}

}  // namespace lily::cuda
