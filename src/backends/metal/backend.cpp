#include "backends/metal/backend.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <set>

#include "backends/host/pass_check.h"
#include "backends/host/seam.h"
#include "backends/metal/kernel_args.h"
#include "backends/metal/pass.h"
#include "weights/bind.h"

namespace lily::metal {
namespace {

constexpr uint64_t kLeastRead = uint64_t{16} << 20;
constexpr uint64_t kMostRead = uint64_t{1} << 30;

double gigabytes(uint64_t bytes) { return static_cast<double>(bytes) / 1e9; }

// The best of several runs of a dispatch, in seconds.
template <class Encode>
Result<double> best_seconds(Device& device, Encode&& encode) {
  constexpr int kRuns = 8;
  double best = std::numeric_limits<double>::max();
  for (int run = 0; run < kRuns; ++run) {
    LILY_TRY(const std::unique_ptr<Commands> commands, device.commands("limits"));
    encode(*commands);
    LILY_TRY_VOID(commands->commit());
    LILY_TRY_VOID(commands->wait());
    best = std::min(best, commands->seconds());
  }
  return best;
}

std::vector<std::span<const std::byte>> mappings_of(const WeightFile& file) {
  return file.container().mappings();
}

}  // namespace

struct MetalBackend::Impl {
  std::unique_ptr<Device> device;  // after everything that uses it
  DeviceInfo info;
  Plan plan{};
  const ModelWeights* weights = nullptr;
  std::unique_ptr<DeviceModel> model;
  std::shared_ptr<StateContext> context;
  std::optional<PassRunner> runner;
  std::array<PassRecord, kMaxInFlight> records;
  host::Tickets tickets;

  ~Impl() {
    settle_all();
    if (context) {
      context->take_back();
    }
  }
  PassRecord& record(Ticket ticket) { return records[ticket % kMaxInFlight]; }
  std::optional<host::StateFacts> facts_of(const SequenceState* any) const;
  void settle(PassRecord& record);
  void settle_all();
  uint64_t bytes_read(const PassRecord& record) const;
  Result<MemoryNeed> estimate(const ModelWeights& of, const Plan& with, Mappings mappings) const;
  Result<void> load(const ModelWeights& from, const Plan& with, Mappings mappings,
                    FunctionRef<void(double)> progress);
};

MetalBackend::MetalBackend(std::unique_ptr<Device> device, std::string name)
    : impl_(std::make_unique<Impl>()) {
  const Traits& traits = device->traits();
  impl_->info = {.name = std::move(name),
                 .description = fmt::format("{}, {:.0f} GB", traits.name, gigabytes(traits.memory_bytes)),
                 .memory_bytes = traits.memory_bytes,
                 .peak_bytes_per_second = 0,
                 .features = {},
                 .reading = {.single_rows = DeviceModel::kSmallRows, .unit = kDeltaChunk}};
  impl_->device = std::move(device);
}
MetalBackend::~MetalBackend() = default;

Result<std::unique_ptr<Backend>> make_backend(std::unique_ptr<Device> device, std::string name,
                                              const BackendOptions& options) {
  if (!options.isa.empty()) {
    return fail(ErrorKind::invalid_input, "device '{}': has no instruction sets to choose from, found '{}'",
                name, options.isa);
  }
  return std::unique_ptr<Backend>(std::make_unique<MetalBackend>(std::move(device), std::move(name)));
}

const DeviceInfo& MetalBackend::device() const { return impl_->info; }
uint64_t MetalBackend::device_bytes() const { return impl_->device->peak_bytes(); }
uint64_t MetalBackend::state_bytes() const {
  if (!impl_->context) {
    return 0;
  }
  StateContext& of = *impl_->context;
  of.take_back();
  return of.buffer_bytes + of.stored_bytes + of.pages->taken() * of.pages->page_bytes();
}

std::string MetalBackend::checkpoint_layout() const {
  const Shape& shape = impl_->plan.shape;
  return fmt::format("metal 1, {} of {} layers, bf16, pages of {}", shape.name, shape.layers, kPageTokens);
}

Result<std::unique_ptr<Checkpoint>> MetalBackend::read_checkpoint(const StoredForm& form,
                                                                  ByteSource& source) {
  LILY_TRY_VOID(host::check_stored(impl_->runner.has_value(), impl_->plan, form));
  LILY_TRY(auto checkpoint, MetalCheckpoint::read(impl_->context, form, source));
  return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

Result<DeviceLimits> MetalBackend::measure_limits() {
  LILY_TRY_VOID(impl_->tickets.check_idle());
  Device& device = *impl_->device;
  LILY_TRY(const std::unique_ptr<Pipelines> pipelines, Pipelines::open(device));
  LILY_TRY(const Pipeline* read, pipelines->get({"limits", "read_memory"}));
  LILY_TRY(const Pipeline* multiply, pipelines->get({"limits", "multiply_matrices"}));
  constexpr uint32_t kGroups = 1024;
  LILY_TRY(const std::unique_ptr<Buffer> out,
           device.buffer(kGroups * 8 * 64 * sizeof(float), "results of limits"));
  // As much as takes a while: a gigabyte, or less where the device is slow.
  constexpr double kLongEnough = 0.01;
  DeviceLimits limits{.multiply = "simdgroup_float8x8"};
  double seconds = 0;
  for (uint64_t bytes = kLeastRead; bytes <= kMostRead && seconds < kLongEnough; bytes *= 8) {
    LILY_TRY(const std::unique_ptr<Buffer> block, device.buffer(bytes, "memory to read"));
    std::memset(block->contents(), 0x5a, bytes);
    const LimitArgs args{static_cast<uint32_t>(bytes / 16)};
    LILY_TRY(seconds, best_seconds(device, [&](Commands& commands) {
               launch(commands, read, {View(block), View(out)}, args, {kGroups}, 256);
             }));
    limits.read_bytes_per_second = static_cast<double>(bytes) / seconds;
  }
  seconds = 0;
  for (uint32_t rounds = 8; rounds <= 4096 && seconds < kLongEnough; rounds *= 8) {
    LILY_TRY(seconds, best_seconds(device, [&](Commands& commands) {
               launch(commands, multiply, {View(out)}, LimitArgs{rounds}, {kGroups}, 256);
             }));
    const double adds = double{kGroups} * 8 * rounds * 8 * 512;  // SIMD groups, rounds, matrices, 8 x 8 x 8
    limits.multiply_adds_per_second = adds / seconds;
  }
  return limits;
}

// ---- Loading --------------------------------------------------------------------------------------------
Result<MemoryNeed> MetalBackend::Impl::estimate(const ModelWeights& of, const Plan& with,
                                                Mappings mappings) const {
  MemoryNeed need = DeviceModel::estimate(of, with, mappings, device->traits());
  need.per_sequence = StateContext::bytes_per_sequence(with);
  need.workspace += PassRunner::workspace_bytes(with);
  return need;
}

Result<MemoryNeed> MetalBackend::estimate(const WeightFile& file, const Plan& plan) const {
  return impl_->estimate(file.weights(), plan, mappings_of(file));
}
Result<MemoryNeed> MetalBackend::estimate(const ModelWeights& weights, const Plan& plan) const {
  return impl_->estimate(weights, plan, {});
}

Result<void> MetalBackend::load(const WeightFile& file, const Plan& plan,
                                FunctionRef<void(double)> progress) {
  return impl_->load(file.weights(), plan, mappings_of(file), progress);
}
Result<void> MetalBackend::load(const ModelWeights& weights, const Plan& plan,
                                FunctionRef<void(double)> progress) {
  return impl_->load(weights, plan, {}, progress);
}

Result<void> MetalBackend::Impl::load(const ModelWeights& from, const Plan& with, Mappings mappings,
                                      FunctionRef<void(double)> progress) {
  LILY_TRY_VOID(host::check_load(runner.has_value(), from, with));
  LILY_TRY(const MemoryNeed need, estimate(from, with, mappings));
  if (need.total(with.sequences) > info.memory_bytes) {
    return fail(
        ErrorKind::out_of_memory,
        "device '{}': {:.2f} GB weights + {:.2f} GB workspace + {} x {:.3f} GB for sequences of {} tokens "
        "= {:.2f} GB, and the device recommends at most {:.2f} GB: lower the context or the number of "
        "sequences",
        info.name, gigabytes(need.weights + need.mapped), gigabytes(need.workspace), with.sequences,
        gigabytes(need.per_sequence), with.context, gigabytes(need.total(with.sequences)),
        gigabytes(info.memory_bytes));
  }
  plan = with;
  weights = &from;
  LILY_TRY(model, DeviceModel::load(*device, from, with, mappings, progress));
  context = std::make_shared<StateContext>(*device, with, [this] { settle_all(); });
  runner.emplace(*device, *model, *context);
  Result<void> prepared = runner->prepare();
  for (PassRecord& record : records) {
    prepared = prepared ? runner->prepare(record) : prepared;
  }
  if (!prepared) {
    runner.reset();
  }
  return prepared;
}

Result<std::unique_ptr<SequenceState>> MetalBackend::new_state(uint32_t max_tokens) {
  LILY_TRY_VOID(host::check_new_state(impl_->runner.has_value(), impl_->plan, max_tokens));
  LILY_TRY(std::unique_ptr<MetalState> state, MetalState::create(impl_->context, max_tokens));
  return std::unique_ptr<SequenceState>(std::move(state));
}

// ---- Passes ---------------------------------------------------------------------------------------------
std::optional<host::StateFacts> MetalBackend::Impl::facts_of(const SequenceState* any) const {
  const auto* state = dynamic_cast<const MetalState*>(any);
  if (state == nullptr || &state->context() != context.get()) {
    return std::nullopt;
  }
  return state->facts();
}

Result<Ticket> MetalBackend::submit(const Pass& pass) {
  Impl& impl = *impl_;
  LILY_TRY_VOID(impl.tickets.check_submit(impl.runner.has_value()));
  LILY_TRY_VOID(
      host::check_pass(pass, impl.plan, [&](const SequenceState* state) { return impl.facts_of(state); }));
  impl.runner->run(pass, impl.record(impl.tickets.next()));
  return impl.tickets.submit();
}

// Waits for a pass and marks the states that it left unusable.
void MetalBackend::Impl::settle(PassRecord& record) {
  if (record.settled) {
    return;
  }
  PassRunner::finish(record);
  record.settled = true;
  const auto* results = record.tables.results->as<int32_t>();
  host::leave_states(record.slices, [&](const SliceRecord& slice) {
    bool usable = record.outcome.has_value();
    for (uint32_t i = 0; usable && i < slice.wanted; ++i) {
      usable = results[2 * (slice.first_wanted + i) + 1] != 0;
    }
    return usable;
  });
}

void MetalBackend::Impl::settle_all() {
  for (Ticket ticket = tickets.oldest(); ticket < tickets.next(); ++ticket) {
    settle(record(ticket));
  }
}

uint64_t MetalBackend::Impl::bytes_read(const PassRecord& record) const {
  const auto* chosen = record.tables.experts->as<uint32_t>();
  const auto experts = [&](uint32_t layer) {
    const uint32_t* of_layer = chosen + size_t{layer} * plan.max_rows * kTopExperts;
    return static_cast<uint32_t>(
        std::set<uint32_t>(of_layer, of_layer + size_t{record.rows} * kTopExperts).size());
  };
  return host::weight_bytes_read(*weights, plan, record.rows, record.wanted > 0, experts) +
         host::state_bytes_read(record.slices, plan);
}

Result<Output> MetalBackend::collect(Ticket ticket) {
  Impl& impl = *impl_;
  LILY_TRY_VOID(impl.tickets.check_collect(ticket));
  PassRecord& record = impl.record(ticket);
  impl.settle(record);
  impl.tickets.collect();
  LILY_TRY_VOID(record.outcome);
  Output output;
  output.slices = host::outputs_of(record.slices, record.logits, [&](uint32_t row) {
    return record.tables.results->as<int32_t>()[2 * row];
  });
  output.bytes_read = impl.bytes_read(record);
  output.seconds = record.seconds;
  return output;
}

}  // namespace lily::metal
