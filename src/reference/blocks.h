// The five blocks in plain float32 from the dequantised weights: the specification of every backend. Written
// to be read; it is threaded over independent rows and heads only, so that a row's result depends neither on
// the number of threads nor on the other rows of the pass. Equation numbers: docs/NUMERICS.md.
#pragma once

#include <memory>
#include <vector>

#include "backends/host/blocks.h"
#include "base/threads.h"

namespace lily::reference {

class ReferenceBlocks final : public host::Blocks {
 public:
  explicit ReferenceBlocks(unsigned threads) : pool_(threads) {}

  MemoryNeed estimate(const ModelWeights& weights, const Plan& plan) const override;
  Result<void> load(const ModelWeights& weights, const Plan& plan,
                    FunctionRef<void(double)> progress) override;
  Result<DeviceLimits> measure_limits() override;
  DType kv_type() const override { return DType::f32; }
  void embed(std::span<const int32_t> ids, float* stream) override;
  void delta_net(uint32_t layer, std::span<const host::Segment> segments, float* stream) override;
  void attention(uint32_t layer, std::span<const host::Segment> segments, float* stream) override;
  uint32_t moe(uint32_t layer, std::span<const host::Segment> segments, float* stream) override;
  void head(std::span<const uint32_t> rows, const float* stream, float* logits) override;

  unsigned threads() const { return pool_.size(); }

 private:
  // Norms, convolutions and gates of one layer as float32.
  struct DenseLayer {
    std::vector<float> input_norm, post_norm;
    std::vector<float> conv1d, a_log, dt_bias, norm;  // delta net
    std::vector<float> q_norm, k_norm;                // attention
  };
  // One row's use of one expert.
  struct Use {
    uint32_t row;
    float weight;  // of the expert's output in the row's sum
  };
  // The uses of every expert: those of expert e are uses[begin[e] .. begin[e + 1]), by row.
  struct Routing {
    std::vector<uint32_t> begin;
    std::vector<Use> uses;
  };

  void norm_rows(const std::vector<float>& weight, uint32_t rows, const float* stream);
  void add_to_stream(uint32_t rows, float* stream);
  void convolve(uint32_t layer, const host::Segment& segment);
  void delta_rule(uint32_t layer, const host::Segment& segment, uint32_t head);
  void gated_norm(uint32_t layer, uint32_t rows);
  void turn_queries_and_keys(uint32_t layer, const host::Segment& segment);
  void attend(uint32_t layer, const host::Segment& segment, uint32_t row, uint32_t head);
  Routing route(const MoeWeights& weights, uint32_t rows);
  void enter_experts(const MoeWeights& weights, const Routing& routing);
  void leave_experts(const MoeWeights& weights, const Routing& routing);
  void shared_expert(const MoeWeights& weights, uint32_t rows);

  ThreadPool pool_;
  const ModelWeights* weights_ = nullptr;
  Plan plan_{};
  std::vector<DenseLayer> dense_;
  std::vector<float> final_norm_;

  // Workspace, [max_rows][...]. What a buffer holds is said where it is filled.
  std::vector<float> normed_;        // hidden: the block's normalised input
  std::vector<float> result_;        // hidden: what the block adds to the stream
  std::vector<float> wide_;          // conv_channels or 2*q_width
  std::vector<float> mixed_;         // conv_channels or 2*kv_width
  std::vector<float> gate_;          // value_width
  std::vector<float> heads_;         // value_width or q_width: what the heads put out
  std::vector<float> alpha_, beta_;  // v_heads
  std::vector<float> router_;        // experts
  std::vector<float> hidden_;        // [max_rows * kTopK][expert_ffn], or 2 x [max_rows][shared_ffn]
};

}  // namespace lily::reference
