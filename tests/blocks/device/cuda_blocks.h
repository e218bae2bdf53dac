// The blocks of the CUDA backend behind the interface of the block tests.
#pragma once

#include <memory>

#include "backends/cuda/model.h"
#include "backends/cuda/state.h"
#include "tests/blocks/device/device_blocks.h"

namespace lily::test {

class CudaBlocks final : public DeviceBlocks {
 public:
  static Result<std::unique_ptr<host::Blocks>> create();
  ~CudaBlocks() override;

  MemoryNeed estimate(const ModelWeights& weights, const Plan& plan) const override;
  Result<void> load(const ModelWeights& weights, const Plan& plan,
                    FunctionRef<void(double)> progress) override;
  void embed(std::span<const int32_t> ids, float* stream) override;
  uint32_t moe(uint32_t layer, std::span<const host::Segment> segments, float* stream) override;
  void head(std::span<const uint32_t> rows, const float* stream, float* logits) override;

 private:
  CudaBlocks() = default;
  void mixer(uint32_t layer, std::span<const host::Segment> segments, float* stream) override;
  void run_batch(uint32_t layer, std::span<const cuda::Segment> segments, bool prefill);
  void upload_stream(const float* stream, uint32_t rows);
  void download_stream(float* stream, uint32_t rows);
  void upload_state(uint32_t layer, const host::Segment& segment, cuda::CudaState& to);
  void download_recurrent(uint32_t layer, const cuda::CudaState& from, uint32_t length, float* conv,
                          float* delta);
  void download_pages(uint32_t layer, const host::Segment& segment, const cuda::CudaState& from);

  cuda::Meter meter_;
  cuda::Stream queue_ = nullptr;
  cuda::DeviceTraits traits_;
  std::unique_ptr<cuda::DeviceModel> model_;
  std::shared_ptr<cuda::StateContext> context_;
  cuda::DeviceMemory tables_;
};

}  // namespace lily::test
