// The Metal backend: one device of Apple silicon, or the emulator of tests/metal_emulator. The token that a
// pass samples stays on the device, where the next pass finds it.
#pragma once

#include <memory>
#include <string>

#include "backend/registry.h"
#include "backends/metal/device.h"
#include "model/tensors.h"

namespace lily::metal {

// `name` is the device's: "metal" or "metal-emulated".
Result<std::unique_ptr<Backend>> make_backend(std::unique_ptr<Device> device, std::string name,
                                              const BackendOptions& options);

class MetalBackend final : public Backend {
 public:
  MetalBackend(std::unique_ptr<Device> device, std::string name);
  ~MetalBackend() override;  // after all states and checkpoints

  const DeviceInfo& device() const override;
  Result<DeviceLimits> measure_limits() override;
  Result<MemoryNeed> estimate(const WeightFile& file, const Plan& plan) const override;
  Result<void> load(const WeightFile& file, const Plan& plan, FunctionRef<void(double)> progress) override;
  Result<std::unique_ptr<SequenceState>> new_state(uint32_t max_tokens) override;
  // The flag of `pass` is looked at while it is submitted; the probe is called before submit() returns.
  // Logits are copied before it returns, too.
  Result<Ticket> submit(const Pass& pass) override;
  Result<Output> collect(Ticket ticket) override;
  uint64_t device_bytes() const override;
  uint64_t state_bytes() const override;
  std::string checkpoint_layout() const override;
  Result<std::unique_ptr<Checkpoint>> read_checkpoint(const StoredForm& form, ByteSource& source) override;

  // The same for weights that lie in no file: they are copied.
  Result<MemoryNeed> estimate(const ModelWeights& weights, const Plan& plan) const;
  Result<void> load(const ModelWeights& weights, const Plan& plan, FunctionRef<void(double)> progress);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lily::metal
