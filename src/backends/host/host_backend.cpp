#include "backends/host/host_backend.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "backends/host/pass.h"
#include "backends/host/pass_check.h"
#include "backends/host/seam.h"
#include "weights/bind.h"

namespace lily::host {

uint64_t memory_bytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGE_SIZE);
  return pages > 0 && page > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page) : 0;
}

struct HostBackend::Impl {
  DeviceInfo device;
  std::unique_ptr<Blocks> blocks;
  Plan plan{};
  const std::shared_ptr<MemoryCount> state_memory = std::make_shared<MemoryCount>(0);
  StateLayout layout{};
  std::optional<PassRunner> runner;

  // Ticket t uses records[t % kMaxInFlight] from submit to collect.
  std::array<PassRecord, kMaxInFlight> records;
  Tickets tickets;

  std::mutex mutex;  // guards the two below and PassRecord::done
  std::condition_variable changed;
  Ticket submitted = 0;  // passes that the driver may run
  bool stop = false;
  std::thread driver;

  PassRecord& record(Ticket ticket) { return records[ticket % kMaxInFlight]; }

  void drive() {
    for (Ticket ticket = 0;; ++ticket) {
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stop || ticket < submitted; });
        if (ticket == submitted) {
          return;
        }
      }
      PassRecord& pass = record(ticket);
      runner->run(pass);
      for (const SliceRecord& slice : pass.slices) {
        slice.gate->leave();
      }
      const std::lock_guard lock(mutex);
      pass.done = true;
      changed.notify_all();
    }
  }
};

HostBackend::HostBackend(DeviceInfo device, std::unique_ptr<Blocks> blocks)
    : impl_(std::make_unique<Impl>()) {
  impl_->device = std::move(device);
  impl_->blocks = std::move(blocks);
}

HostBackend::~HostBackend() {
  if (impl_->driver.joinable()) {
    {
      const std::lock_guard lock(impl_->mutex);
      impl_->stop = true;
    }
    impl_->changed.notify_all();
    impl_->driver.join();
  }
}

const DeviceInfo& HostBackend::device() const { return impl_->device; }

Result<DeviceLimits> HostBackend::measure_limits() {
  LILY_TRY_VOID(impl_->tickets.check_idle());
  return impl_->blocks->measure_limits();
}

Result<MemoryNeed> HostBackend::estimate(const WeightFile& file, const Plan& plan) const {
  return estimate(file.weights(), plan);
}

MemoryNeed HostBackend::estimate(const ModelWeights& weights, const Plan& plan) const {
  MemoryNeed need = impl_->blocks->estimate(weights, plan);
  const StateLayout layout{plan.shape, impl_->blocks->kv_type()};
  const uint64_t blocks = (uint64_t{plan.context} + kBlockTokens - 1) / kBlockTokens;
  need.per_sequence = layout.recurrent_floats() * sizeof(float) + blocks * layout.kv_block_bytes();
  need.workspace += PassRunner::workspace_bytes(plan);
  return need;
}

Result<void> HostBackend::load(const WeightFile& file, const Plan& plan, FunctionRef<void(double)> progress) {
  return load(file.weights(), plan, progress);
}

Result<void> HostBackend::load(const ModelWeights& weights, const Plan& plan,
                               FunctionRef<void(double)> progress) {
  LILY_TRY_VOID(check_load(impl_->runner.has_value(), weights, plan));
  LILY_TRY_VOID(impl_->blocks->load(weights, plan, progress));
  impl_->plan = plan;
  impl_->layout = {plan.shape, impl_->blocks->kv_type(), impl_->state_memory};
  impl_->runner.emplace(*impl_->blocks, weights, plan);
  if (auto allocated = impl_->runner->allocate(); !allocated) {
    impl_->runner.reset();
    return allocated;
  }
  for (PassRecord& record : impl_->records) {
    record.ids.reserve(plan.max_rows);
    record.slices.reserve(plan.sequences);
  }
  impl_->driver = std::thread([impl = impl_.get()] { impl->drive(); });
  return {};
}

Result<std::unique_ptr<SequenceState>> HostBackend::new_state(uint32_t max_tokens) {
  LILY_TRY_VOID(check_new_state(impl_->runner.has_value(), impl_->plan, max_tokens));
  LILY_TRY(std::unique_ptr<HostState> state, HostState::create(impl_->layout, max_tokens));
  return std::unique_ptr<SequenceState>(std::move(state));
}

uint64_t HostBackend::state_bytes() const { return *impl_->state_memory; }

// Devices differ in how they order a block's keys and values, shapes in the sizes of all arrays.
std::string HostBackend::checkpoint_layout() const {
  return fmt::format("host 1, {}, {} of {} layers, {}, blocks of {}", impl_->device.name,
                     impl_->layout.shape.name, impl_->layout.shape.layers, to_string(impl_->layout.kv_type),
                     kBlockTokens);
}

Result<std::unique_ptr<Checkpoint>> HostBackend::read_checkpoint(const StoredForm& form, ByteSource& source) {
  LILY_TRY_VOID(check_stored(impl_->runner.has_value(), impl_->plan, form));
  LILY_TRY(auto checkpoint, HostCheckpoint::read(impl_->layout, form, source));
  return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

Result<Ticket> HostBackend::submit(const Pass& pass) {
  LILY_TRY_VOID(impl_->tickets.check_submit(impl_->runner.has_value()));
  LILY_TRY_VOID(check_pass(pass, impl_->plan, [&](const SequenceState* any) -> std::optional<StateFacts> {
    const auto* state = dynamic_cast<const HostState*>(any);
    if (state == nullptr || !(state->layout() == impl_->layout)) {
      return std::nullopt;
    }
    return state->progress().facts(state->gate()->failure_known);
  }));
  const Ticket ticket = impl_->tickets.submit();
  record_pass(pass, impl_->record(ticket));
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->submitted = impl_->tickets.next();
  }
  impl_->changed.notify_all();
  return ticket;
}

Result<Output> HostBackend::collect(Ticket ticket) {
  LILY_TRY_VOID(impl_->tickets.check_collect(ticket));
  PassRecord& record = impl_->record(ticket);
  {
    std::unique_lock lock(impl_->mutex);
    impl_->changed.wait(lock, [&] { return record.done; });
  }
  impl_->tickets.collect();
  for (size_t i = 0; i < record.slices.size(); ++i) {
    PassGate& gate = *record.slices[i].gate;
    const bool failed = !record.result || !record.result->slices[i].finite;
    if (failed && gate.resumed == record.slices[i].resumed) {
      gate.failure_known = true;
    }
  }
  return std::move(record.result);
}

}  // namespace lily::host
