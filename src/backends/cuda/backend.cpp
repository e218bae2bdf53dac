#include "backends/cuda/backend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "backends/cuda/kernels/limits.h"
#include "backends/cuda/kernels/prefill_launch.h"
#include "backends/cuda/pass.h"
#include "backends/host/pass_check.h"
#include "backends/host/seam.h"
#include "base/log.h"
#include "weights/bind.h"

namespace lily::cuda {
namespace {

constexpr uint64_t kLeftFree = uint64_t{256} << 20;  // for the driver: modules, graphs, local memory
constexpr uint64_t kReadBytes = uint64_t{2} << 30;
constexpr int kLimitRuns = 8;
// Rows of a prompt in a pass: between 512, where the weights of the experts cost more than the rows do, and
// 2,048, which is near the best speed and keeps running answers waiting for 43 ms on an H200
// (docs/BENCHMARKS.md).
constexpr uint32_t kChunk = 1'024;
// Rows of a prompt in a pass that are read as single ones: they take about as long as a chunk of many rows.
constexpr uint32_t kSingleRows = 128;

double gigabytes(uint64_t bytes) { return static_cast<double>(bytes) / 1e9; }

}  // namespace

struct CudaBackend::Impl {
  DeviceInfo device;
  DeviceTraits traits;
  Meter meter;  // before everything that gives memory back
  Stream queue = nullptr;
  Plan plan{};
  const ModelWeights* weights = nullptr;
  std::optional<DeviceModel> model;
  std::shared_ptr<StateContext> context;
  std::optional<PassRunner> runner;
  std::array<PassRecord, kMaxInFlight> records;
  host::Tickets tickets;

  PassRecord& record(Ticket ticket) { return records[ticket % kMaxInFlight]; }

  ~Impl() {
    if (queue != nullptr) {
      static_cast<void>(cudaStreamSynchronize(queue));
    }
    runner.reset();
    model.reset();
    for (PassRecord& record : records) {
      record = {};
    }
    context.reset();
    if (queue != nullptr) {
      static_cast<void>(cudaStreamDestroy(queue));
    }
  }

  std::optional<host::StateFacts> facts_of(const SequenceState* any) const;
  Result<void> settle(PassRecord& record);
  void settle_all();
  uint64_t bytes_read(const PassRecord& record) const;
};

CudaBackend::CudaBackend() : impl_(std::make_unique<Impl>()) {}
CudaBackend::~CudaBackend() = default;

Result<std::unique_ptr<CudaBackend>> CudaBackend::create() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    static_cast<void>(cudaGetLastError());
    return fail(ErrorKind::unsupported, "device 'cuda': no usable NVIDIA GPU: {}",
                error == cudaSuccess ? "none was found" : cudaGetErrorString(error));
  }
  std::unique_ptr<CudaBackend> backend(new CudaBackend);
  Impl& impl = *backend->impl_;
  cudaDeviceProp properties{};
  LILY_TRY_VOID(check(cudaGetDeviceProperties(&properties, 0), "the properties of the GPU"));
  impl.traits = {.multiprocessors = static_cast<uint32_t>(properties.multiProcessorCount),
                 .compute_capability = static_cast<uint32_t>(properties.major * 10 + properties.minor),
                 .shared_bytes = static_cast<uint32_t>(properties.sharedMemPerBlockOptin)};
  if (prepare_project(48 * 1024) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return fail(ErrorKind::unsupported, "device 'cuda': {} (sm_{}): this build has no kernels for it",
                properties.name, impl.traits.compute_capability);
  }
  LILY_TRY_VOID(check(cudaStreamCreateWithFlags(&impl.queue, cudaStreamNonBlocking), "a stream"));
  impl.device = {
      .name = "cuda",
      .description = fmt::format("{}, {:.0f} GB, sm_{}", properties.name,
                                 gigabytes(properties.totalGlobalMem), impl.traits.compute_capability),
      .memory_bytes = properties.totalGlobalMem,
      .peak_bytes_per_second = 0,
      .features = {fmt::format("sm_{}", impl.traits.compute_capability)},
      .chunk = kChunk,
      .reading = {.single_rows = kSingleRows, .unit = prefill::kChunk}};
  return backend;
}

const DeviceInfo& CudaBackend::device() const { return impl_->device; }
uint64_t CudaBackend::device_bytes() const { return impl_->meter.peak; }

uint64_t CudaBackend::state_bytes() const {
  if (!impl_->context) {
    return 0;
  }
  const StateContext& of = *impl_->context;
  return of.recurrent->bytes_taken() + of.pages->bytes_taken() + of.sides->bytes_taken();
}

// The best of several runs of `work`, in seconds.
template <class Work>
static Result<double> best_seconds(Stream queue, Work&& work) {
  LILY_TRY(Event start, Event::create());
  LILY_TRY(Event end, Event::create());
  double best = std::numeric_limits<double>::max();
  for (int run = 0; run < kLimitRuns; ++run) {
    LILY_TRY_VOID(start.record(queue));
    LILY_TRY_VOID(check(work(), "measuring the limits"));
    LILY_TRY_VOID(end.record(queue));
    LILY_TRY_VOID(end.wait());
    LILY_TRY(const double seconds, end.seconds_since(start));
    best = std::min(best, seconds);
  }
  return best;
}

Result<DeviceLimits> CudaBackend::measure_limits() {
  LILY_TRY_VOID(impl_->tickets.check_idle());
  const Stream queue = impl_->queue;
  const uint32_t blocks = impl_->traits.multiprocessors;
  Meter meter;  // this memory is not part of what the model needs
  LILY_TRY(const DeviceMemory block,
           DeviceMemory::allocate(kReadBytes, meter, "memory to measure the read bandwidth"));
  LILY_TRY(const DeviceMemory out, DeviceMemory::allocate(256, meter, "memory to measure the limits"));
  LILY_TRY_VOID(check(cudaMemsetAsync(block.bytes(), 0x5a, kReadBytes, queue), "measuring the limits"));
  LILY_TRY(const double reading, best_seconds(queue, [&] {
             return launch_read(block.bytes(), kReadBytes, out.as<uint32_t>(), blocks * 4, queue);
           }));
  constexpr uint32_t kRounds = 4096;
  LILY_TRY(const double multiplying,
           best_seconds(queue, [&] { return launch_multiply(kRounds, out.as<float>(), blocks * 2, queue); }));
  const double adds = static_cast<double>(uint64_t{kRounds} * kLimitMultiplies * kLimitWarps * 2 * blocks) *
                      static_cast<double>(kMultiplyAdds);
  return DeviceLimits{.read_bytes_per_second = static_cast<double>(kReadBytes) / reading,
                      .multiply_adds_per_second = adds / multiplying,
                      .multiply = "mma.sync.m16n8k16 bf16"};
}

Result<MemoryNeed> CudaBackend::estimate(const WeightFile& file, const Plan& plan) const {
  return estimate(file.weights(), plan);
}

Result<MemoryNeed> CudaBackend::estimate(const ModelWeights& weights, const Plan& plan) const {
  MemoryNeed need;
  LILY_TRY(need.weights, Residency::bytes(plan.shape, weights));
  need.per_sequence = StateContext::bytes_per_sequence(plan);
  need.workspace = DeviceModel::workspace_bytes(plan) + PassRunner::workspace_bytes(plan) + kLeftFree;
  return need;
}

Result<void> CudaBackend::load(const WeightFile& file, const Plan& plan, FunctionRef<void(double)> progress) {
  return load(file.weights(), plan, progress);
}

Result<void> CudaBackend::load(const ModelWeights& weights, const Plan& plan,
                               FunctionRef<void(double)> progress) {
  Impl& impl = *impl_;
  LILY_TRY_VOID(host::check_load(impl.runner.has_value(), weights, plan));
  LILY_TRY(const MemoryNeed need, estimate(weights, plan));
  size_t free = 0;
  size_t total = 0;
  LILY_TRY_VOID(check(cudaMemGetInfo(&free, &total), "the free memory of the GPU"));
  if (need.total(plan.sequences) > free) {
    return fail(
        ErrorKind::out_of_memory,
        "device 'cuda': {:.2f} GB weights + {:.2f} GB workspace + {} x {:.3f} GB for sequences of {} tokens "
        "= {:.2f} GB, and {:.2f} of {:.2f} GB are free: lower the context or the number of sequences",
        gigabytes(need.weights), gigabytes(need.workspace), plan.sequences, gigabytes(need.per_sequence),
        plan.context, gigabytes(need.total(plan.sequences)), gigabytes(free), gigabytes(total));
  }
  impl.plan = plan;
  impl.weights = &weights;
  impl.model.emplace(plan, impl.traits, impl.meter, impl.queue);
  LILY_TRY_VOID(impl.model->load(weights, progress));
  impl.context = std::make_shared<StateContext>(plan, impl.meter, impl.queue);
  impl.context->settle = [of = &impl] { of->settle_all(); };
  for (PassRecord& record : impl.records) {
    LILY_TRY(record.start, Event::create());
    LILY_TRY(record.end, Event::create());
  }
  impl.runner.emplace(*impl.model, plan, impl.meter);
  if (auto prepared = impl.runner->prepare(); !prepared) {
    impl.runner.reset();
    return prepared;
  }
  return {};
}

Result<std::unique_ptr<SequenceState>> CudaBackend::new_state(uint32_t max_tokens) {
  LILY_TRY_VOID(host::check_new_state(impl_->runner.has_value(), impl_->plan, max_tokens));
  LILY_TRY(std::unique_ptr<CudaState> state, CudaState::create(impl_->context, max_tokens));
  return std::unique_ptr<SequenceState>(std::move(state));
}

std::string CudaBackend::checkpoint_layout() const {
  const Shape& shape = impl_->plan.shape;
  return fmt::format("cuda 1, {} of {} layers, bf16, pages of {}", shape.name, shape.layers, kPageTokens);
}

Result<std::unique_ptr<Checkpoint>> CudaBackend::read_checkpoint(const StoredForm& form, ByteSource& source) {
  LILY_TRY_VOID(host::check_stored(impl_->runner.has_value(), impl_->plan, form));
  LILY_TRY(auto checkpoint, CudaCheckpoint::read(impl_->context, form, source));
  return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

std::optional<host::StateFacts> CudaBackend::Impl::facts_of(const SequenceState* any) const {
  const auto* state = dynamic_cast<const CudaState*>(any);
  if (state == nullptr || &state->context() != context.get()) {
    return std::nullopt;
  }
  return state->facts();
}

Result<Ticket> CudaBackend::submit(const Pass& pass) {
  Impl& impl = *impl_;
  LILY_TRY_VOID(impl.tickets.check_submit(impl.runner.has_value()));
  LILY_TRY_VOID(
      host::check_pass(pass, impl.plan, [&](const SequenceState* state) { return impl.facts_of(state); }));
  const Ticket ticket = impl.tickets.submit();
  impl.runner->run(pass, impl.record(ticket), static_cast<uint32_t>(ticket % kMaxInFlight));
  return ticket;
}

// Waits for a pass and marks the states that it left unusable.
Result<void> CudaBackend::Impl::settle(PassRecord& record) {
  if (record.settled) {
    return record.outcome;
  }
  if (record.outcome) {
    record.outcome = record.end.wait();
  } else {
    static_cast<void>(finish(queue));  // of what was queued before the fault
  }
  record.settled = true;
  host::leave_states(record.slices, [&](const SliceRecord& slice) {
    bool usable = record.outcome.has_value();
    for (uint32_t i = 0; usable && i < slice.wanted; ++i) {
      usable = record.tables->host_finite(record.copy)[slice.first_wanted + i] != 0 ||
               (!slice.samples && slice.logits_rows == 0);
    }
    return usable;
  });
  return record.outcome;
}

void CudaBackend::Impl::settle_all() {
  for (Ticket ticket = tickets.oldest(); ticket < tickets.next(); ++ticket) {
    static_cast<void>(settle(record(ticket)));
  }
}

uint64_t CudaBackend::Impl::bytes_read(const PassRecord& record) const {
  const uint32_t* used = record.experts_used;
  const auto experts = [used](uint32_t layer) {
    uint32_t count = 0;
    for (uint32_t word = 0; word < DeviceModel::kExpertWords; ++word) {
      count += static_cast<uint32_t>(std::popcount(used[layer * DeviceModel::kExpertWords + word]));
    }
    return count;
  };
  return host::weight_bytes_read(*weights, plan, record.rows, record.heads, experts) +
         host::state_bytes_read(record.slices, plan);
}

Result<Output> CudaBackend::collect(Ticket ticket) {
  Impl& impl = *impl_;
  LILY_TRY_VOID(impl.tickets.check_collect(ticket));
  PassRecord& record = impl.record(ticket);
  const Result<void> outcome = impl.settle(record);
  impl.tickets.collect();
  LILY_TRY_VOID(outcome);
  Output output;
  output.slices = host::outputs_of(record.slices, record.logits, [&](uint32_t row) {
    return record.tables->host_tokens(record.copy)[row];
  });
  output.bytes_read = impl.bytes_read(record);
  LILY_TRY(output.seconds, record.end.seconds_since(record.start));
  return output;
}

}  // namespace lily::cuda

namespace lily {

Result<std::unique_ptr<Backend>> make_cuda_backend(const BackendOptions&) {
  LILY_TRY(std::unique_ptr<cuda::CudaBackend> backend, cuda::CudaBackend::create());
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace lily
