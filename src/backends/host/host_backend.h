// A Backend over any Blocks. It checks passes, runs them in order on a thread of its own, keeps states, and
// samples; the Blocks compute.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backends/host/blocks.h"

namespace lily::host {

// Of this machine, for DeviceInfo; 0 where the system does not say.
uint64_t memory_bytes();

class HostBackend final : public Backend {
 public:
  HostBackend(DeviceInfo device, std::unique_ptr<Blocks> blocks);
  ~HostBackend() override;  // ends the submitted passes first

  const DeviceInfo& device() const override;
  Result<DeviceLimits> measure_limits() override;
  Result<MemoryNeed> estimate(const WeightFile& file, const Plan& plan) const override;
  Result<void> load(const WeightFile& file, const Plan& plan, FunctionRef<void(double)> progress) override;
  Result<std::unique_ptr<SequenceState>> new_state(uint32_t max_tokens) override;
  uint64_t state_bytes() const override;
  std::string checkpoint_layout() const override;
  Result<std::unique_ptr<Checkpoint>> read_checkpoint(const StoredForm& form, ByteSource& source) override;
  // The spans of Sampling::allowed, the flag and the probe of `pass` are used until the pass is collected;
  // everything else is copied.
  Result<Ticket> submit(const Pass& pass) override;
  Result<Output> collect(Ticket ticket) override;

  // The same for weights that lie in no file; they must outlive the backend.
  MemoryNeed estimate(const ModelWeights& weights, const Plan& plan) const;
  Result<void> load(const ModelWeights& weights, const Plan& plan, FunctionRef<void(double)> progress);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lily::host
