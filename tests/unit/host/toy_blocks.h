// Blocks of a model that costs nothing and uses everything a real one does: a recurrent state, key-value
// rows, kept rows of drafts. Its logits depend on every token of the sequence and on nothing else.
#pragma once

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>
#include <thread>

#include "backends/host/blocks.h"

namespace lily::host {

class ToyBlocks final : public Blocks {
 public:
  // Ids with a meaning of their own.
  static constexpr int32_t kThrows = 8000;  // moe() of layer 1 throws
  static constexpr int32_t kPoison = 8001;  // the logits of its row are NaN, and of all later rows

  // While `closed`, embed() waits.
  std::atomic<bool> closed = false;
  std::atomic<uint32_t> embeds = 0;
  // Called in moe() with the layer.
  std::function<void(uint32_t)> in_moe;

  MemoryNeed estimate(const ModelWeights&, const Plan&) const override { return {1, 2, 0, 4}; }
  Result<void> load(const ModelWeights&, const Plan& plan, FunctionRef<void(double)> progress) override {
    shape_ = plan.shape;
    progress(1.0);
    return {};
  }
  Result<DeviceLimits> measure_limits() override { return DeviceLimits{1e9, 2e9, "toy"}; }
  DType kv_type() const override { return DType::f32; }

  void embed(std::span<const int32_t> ids, float* stream) override {
    ++embeds;
    while (closed) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    throws_ = false;
    for (size_t r = 0; r < ids.size(); ++r) {
      float* row = stream + r * shape_.hidden;
      std::memset(row, 0, sizeof(float) * shape_.hidden);
      row[0] = static_cast<float>(ids[r]) / 8192.0F;
      row[3] = ids[r] == kPoison ? std::numeric_limits<float>::quiet_NaN() : 0.0F;
      throws_ = throws_ || ids[r] == kThrows;
    }
  }

  // Both states of the layer mix in the row; what comes out is in row[1].
  void delta_net(uint32_t layer, std::span<const Segment> segments, float* stream) override {
    for (const Segment& segment : segments) {
      for (uint32_t r = 0; r < segment.rows; ++r) {
        float* row = stream + size_t{segment.first_row + r} * shape_.hidden;
        float& conv = segment.state->conv(layer)[5];
        float& delta = segment.state->delta(layer)[7];
        delta = std::fmod(0.7F * delta + row[0] + 0.31F * conv + 0.01F * static_cast<float>(layer), 1.0F) +
                row[3];
        conv = row[0];
        row[1] += delta;
        if (segment.provisional) {
          segment.state->keep_row(layer, r);
        }
      }
    }
  }

  // Writes row[0] as a key and row[1] as a value; row[2] gets a sum over all rows so far.
  void attention(uint32_t layer, std::span<const Segment> segments, float* stream) override {
    for (const Segment& segment : segments) {
      for (uint32_t r = 0; r < segment.rows; ++r) {
        float* row = stream + size_t{segment.first_row + r} * shape_.hidden;
        const uint32_t position = segment.position + r;
        *cell(segment.state->keys(layer, 0, position / kBlockTokens), position) = row[0];
        *cell(segment.state->values(layer, 0, position / kBlockTokens), position) = row[1];
        for (uint32_t t = 0; t <= position; ++t) {
          row[2] += *cell(segment.state->keys(layer, 0, t / kBlockTokens), t) *
                    *cell(segment.state->values(layer, 0, t / kBlockTokens), t);
        }
      }
    }
  }

  uint32_t moe(uint32_t layer, std::span<const host::Segment>, float*) override {
    if (in_moe) {
      in_moe(layer);
    }
    if (throws_ && layer == 1) {
      throw std::runtime_error("the toy breaks");
    }
    return Shape::kTopK;
  }

  void head(std::span<const uint32_t> rows, const float* stream, float* logits) override {
    for (size_t i = 0; i < rows.size(); ++i) {
      const float* row = stream + size_t{rows[i]} * shape_.hidden;
      for (uint32_t v = 0; v < shape_.vocab; ++v) {
        logits[i * shape_.vocab + v] =
            8.0F * std::sin(static_cast<float>(v) * 0.37F + 900.0F * row[1] + 700.0F * row[2] + row[3]);
      }
    }
  }

 private:
  static float* cell(std::byte* block, uint32_t position) {
    return reinterpret_cast<float*>(block) + size_t{position % kBlockTokens} * Shape::kHeadDim;
  }

  Shape shape_{};
  bool throws_ = false;
};

}  // namespace lily::host
