// The blocks of the Metal backend behind the interface of the block tests.
#pragma once

#include <functional>
#include <memory>

#include "backends/metal/pass.h"
#include "tests/blocks/device/device_blocks.h"

namespace lily::test {

class MetalBlocks final : public DeviceBlocks {
 public:
  // Makes the device: with the emulator's checks for the small shape, where they cost seconds.
  using MakeDevice = std::function<Result<std::unique_ptr<metal::Device>>(bool checked)>;
  explicit MetalBlocks(MakeDevice make) : make_(std::move(make)) {}
  ~MetalBlocks() override;

  MemoryNeed estimate(const ModelWeights& weights, const Plan& plan) const override;
  Result<void> load(const ModelWeights& weights, const Plan& plan,
                    FunctionRef<void(double)> progress) override;
  void embed(std::span<const int32_t> ids, float* stream) override;
  uint32_t moe(uint32_t layer, std::span<const host::Segment> segments, float* stream) override;
  void head(std::span<const uint32_t> rows, const float* stream, float* logits) override;

 private:
  void mixer(uint32_t layer, std::span<const host::Segment> segments, float* stream) override;
  void run_batch(uint32_t layer, metal::Batch batch);
  void finish(std::unique_ptr<metal::Commands> commands);
  void upload_stream(const float* stream, uint32_t rows);
  void download_stream(float* stream, uint32_t rows);
  void upload_state(uint32_t layer, const host::Segment& segment, metal::MetalState& to);
  void download_recurrent(uint32_t layer, const metal::MetalState& from, float* conv, float* delta) const;
  void download_pages(uint32_t layer, const host::Segment& segment, const metal::MetalState& from);
  size_t page_plane(uint32_t layer, uint32_t which, uint32_t head) const;  // bytes from the start of a page

  MakeDevice make_;
  std::unique_ptr<metal::Device> device_;
  std::unique_ptr<metal::DeviceModel> model_;
  std::shared_ptr<metal::StateContext> context_;
  std::unique_ptr<metal::Buffer> ids_, turns_, experts_, pages_;
};

}  // namespace lily::test
