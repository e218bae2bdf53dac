// The CUDA backend: the name "cuda". One NVIDIA GPU; everything is queued on one stream, and the token that a
// pass samples stays on the device, where the next pass finds it.
#pragma once

#include <memory>

#include "backend/registry.h"
#include "backends/cuda/state.h"
#include "model/tensors.h"

namespace lily {

// Fails, saying why, where no device can be used.
Result<std::unique_ptr<Backend>> make_cuda_backend(const BackendOptions& options);

namespace cuda {

class CudaBackend final : public Backend {
 public:
  static Result<std::unique_ptr<CudaBackend>> create();
  ~CudaBackend() override;  // after all states and checkpoints

  const DeviceInfo& device() const override;
  Result<DeviceLimits> measure_limits() override;
  Result<MemoryNeed> estimate(const WeightFile& file, const Plan& plan) const override;
  Result<void> load(const WeightFile& file, const Plan& plan, FunctionRef<void(double)> progress) override;
  Result<std::unique_ptr<SequenceState>> new_state(uint32_t max_tokens) override;
  // The flag of `pass` is looked at while it is submitted; the probe is called before submit() returns.
  // Logits are copied to the host before it returns, too.
  Result<Ticket> submit(const Pass& pass) override;
  Result<Output> collect(Ticket ticket) override;
  uint64_t device_bytes() const override;
  uint64_t state_bytes() const override;
  std::string checkpoint_layout() const override;
  Result<std::unique_ptr<Checkpoint>> read_checkpoint(const StoredForm& form, ByteSource& source) override;

  // The same for weights that lie in no file; they must outlive the backend.
  Result<MemoryNeed> estimate(const ModelWeights& weights, const Plan& plan) const;
  Result<void> load(const ModelWeights& weights, const Plan& plan, FunctionRef<void(double)> progress);

 private:
  CudaBackend();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cuda
}  // namespace lily
