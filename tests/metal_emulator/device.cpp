#include "device.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>

#include "backends/metal/checks.h"
#include "group.h"

namespace lily::metal {
namespace {

using emulator::Bound;
using emulator::ConstantValue;
using emulator::Group;
using emulator::History;
using emulator::Random;
using emulator::Storage;
using emulator::Work;

uint64_t fnv(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

struct EmulatedBuffer final : Buffer {
  std::shared_ptr<Storage> storage;
  std::shared_ptr<uint64_t> allocated;  // bytes of the device, reduced when this goes
  std::byte* contents() const override { return storage->data(); }
  size_t size() const override { return storage->size(); }
  ~EmulatedBuffer() override {
    if (allocated) {
      *allocated -= storage->size();
    }
  }
};

struct EmulatedPipeline final : Pipeline {
  const lily_metal::Kernel* kernel = nullptr;
  bool checked = false;
  std::vector<ConstantValue> constants;
  uint32_t max_threads() const override { return kernel->max_threads; }
};

struct EmulatedLibrary final : Library {
  explicit EmulatedLibrary(const lily_metal::Module& of) : module(of) {}
  const lily_metal::Module& module;

  Result<std::unique_ptr<Pipeline>> pipeline(const PipelineSpec& spec) override {
    auto made = std::make_unique<EmulatedPipeline>();
    made->checked = module.checked;
    for (unsigned i = 0; i < module.kernel_count; ++i) {
      if (spec.kernel == module.kernels[i].name) {
        made->kernel = &module.kernels[i];
      }
    }
    if (made->kernel == nullptr) {
      return fail(ErrorKind::internal, "metal library '{}': no kernel '{}'", module.name, spec.kernel);
    }
    for (const FunctionConstant& constant : spec.constants) {
      LILY_TRY(const ConstantValue value, resolve(spec.kernel, constant));
      made->constants.push_back(value);
    }
    for (unsigned i = 0; i < module.constant_count; ++i) {
      const auto& declared = module.constants[i];
      const auto is_it = [&](const ConstantValue& value) { return value.variable == declared.variable; };
      const bool used = (made->kernel->constants >> i & 1) != 0;
      if (used && std::none_of(made->constants.begin(), made->constants.end(), is_it)) {
        return fail(ErrorKind::internal, "metal kernel '{}': function constant {} ('{}') is not set",
                    spec.kernel, declared.index, declared.name);
      }
    }
    return made;
  }

  Result<ConstantValue> resolve(const std::string& kernel, const FunctionConstant& constant) const {
    for (unsigned i = 0; i < module.constant_count; ++i) {
      const auto& declared = module.constants[i];
      if (declared.index != constant.index) {
        continue;
      }
      const char given = "biuf"[constant.value.index()];
      if (given != declared.type) {
        return fail(ErrorKind::internal,
                    "metal kernel '{}': function constant {} ('{}') is of type {}, {} was given", kernel,
                    constant.index, declared.name, declared.type, given);
      }
      ConstantValue value{declared.variable, 0};
      std::visit([&](auto v) { std::memcpy(&value.bits, &v, sizeof v); }, constant.value);
      return value;
    }
    return fail(ErrorKind::internal, "metal kernel '{}': no function constant {}", kernel, constant.index);
  }
};

// What is encoded: dispatches, and where barriers stand between them.
struct Encoded {
  std::string label;
  std::vector<std::unique_ptr<Work>> works;
  std::vector<size_t> barriers;  // number of dispatches before each
  bool done = false;
  double seconds = 0;
  std::optional<std::string> fault;
};

// Runs command buffers, in the order in which they were committed.
class Queue {
 public:
  explicit Queue(uint64_t seed) : group_(seed), random_(seed + 1) {}

  // Sometimes at once, sometimes when somebody waits: the host may count on neither.
  void commit(std::shared_ptr<Encoded> encoded) {
    pending_.push_back(std::move(encoded));
    if (random_.below(2) == 0) {
      finish(*pending_.back());
    }
  }

  void finish(const Encoded& wanted) {
    while (!wanted.done) {
      const std::shared_ptr<Encoded> next = std::move(pending_.front());
      pending_.pop_front();
      const auto start = std::chrono::steady_clock::now();
      run(*next);
      next->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      next->works.clear();
      next->done = true;
    }
  }

 private:
  void run(Encoded& encoded) {
    prepare(encoded);
    size_t first = 0;
    for (size_t i = 0; i <= encoded.barriers.size() && !encoded.fault; ++i) {
      const size_t last = i < encoded.barriers.size() ? encoded.barriers[i] : encoded.works.size();
      run_together(encoded, first, last);
      first = last;
    }
  }

  // Accesses are kept track of in the storages that any dispatch may write.
  void prepare(Encoded& encoded) {
    std::map<Storage*, bool> storages;  // whether something may write it
    for (const auto& work : encoded.works) {
      for (const Bound& bound : work->bounds) {
        storages[bound.storage] |= work->checked && bound.parameter->writable;
      }
    }
    for (const auto& [storage, written] : storages) {
      storage->see_host_writes();
    }
    for (const auto& work : encoded.works) {
      for (Bound& bound : work->bounds) {
        bound.cells = storages[bound.storage] ? bound.storage->cells(history_.generation) : nullptr;
      }
    }
  }

  // Dispatches [first, last): their threadgroups in any order.
  void run_together(Encoded& encoded, size_t first, size_t last) {
    start_runs(encoded);
    std::vector<std::pair<uint32_t, uint32_t>> groups;  // dispatch, threadgroup
    for (size_t i = first; i < last; ++i) {
      const Work& work = *encoded.works[i];
      for (uint64_t group = 0; group < work.groups.count(); ++group) {
        groups.emplace_back(i, group);
      }
    }
    for (size_t i = groups.size(); i > 1; --i) {
      std::swap(groups[i - 1], groups[random_.below(static_cast<uint32_t>(i))]);
    }
    for (const auto& [dispatch, number] : groups) {
      const Work& work = *encoded.works[dispatch];
      const lily_metal::Triple at{number % work.groups.x, number / work.groups.x % work.groups.y,
                                  number / (work.groups.x * work.groups.y)};
      if (auto fault = group_.run(work, at, history_)) {
        encoded.fault =
            "metal emulator: " + *fault + (encoded.label.empty() ? "" : ", in '" + encoded.label + "'");
        return;
      }
    }
  }

  // What ran before is ordered before what runs now. With a new generation all is forgotten.
  void start_runs(Encoded& encoded) {
    history_.begin = history_.first = history_.next();
    history_.runs.clear();
    if (history_.begin < emulator::Stamp::kRunLimit / 2) {
      return;
    }
    ++history_.generation;
    history_.begin = history_.first = 1;
    for (const auto& work : encoded.works) {
      for (Bound& bound : work->bounds) {
        bound.cells = bound.cells == nullptr ? nullptr : bound.storage->cells(history_.generation);
      }
    }
  }

  Group group_;
  Random random_;
  History history_;
  std::deque<std::shared_ptr<Encoded>> pending_;
};

class EmulatedCommands final : public Commands {
 public:
  EmulatedCommands(std::shared_ptr<Queue> queue, std::string label) : queue_(std::move(queue)) {
    encoded_->label = std::move(label);
  }

  void set_pipeline(const Pipeline& pipeline) override {
    const auto& given = static_cast<const EmulatedPipeline&>(pipeline);
    kernel_ = given.kernel;
    checked_ = given.checked;
    constants_ = given.constants;
  }

  void set_buffer(uint32_t index, const Buffer& buffer, size_t offset, size_t bytes) override {
    const auto& given = static_cast<const EmulatedBuffer&>(buffer);
    if (!sound(fault_of_binding(index, buffer.size(), offset, bytes))) {
      return;
    }
    bound_[index] = {given.storage, offset, bytes == kRest ? buffer.size() - offset : bytes};
  }

  void set_bytes(uint32_t index, const void* data, size_t bytes) override {
    if (!sound(fault_of_bytes(index, bytes))) {
      return;
    }
    auto storage = Storage::allocate(bytes, "set_bytes", false);
    std::memcpy(storage->data(), data, bytes);
    bound_[index] = {std::move(storage), 0, bytes};
  }

  void set_threadgroup_bytes(uint32_t index, size_t bytes) override {
    if (sound(fault_of_threadgroup(index, bytes))) {
      threadgroup_bytes_[index] = static_cast<uint32_t>(bytes);
    }
  }

  void dispatch(Size3 groups, Size3 threads) override {
    if (auto work = make_work(groups, threads)) {
      encoded_->works.push_back(std::move(work));
    }
  }

  void barrier() override { encoded_->barriers.push_back(encoded_->works.size()); }

  Result<void> commit() override {
    if (committed_) {
      return fail(ErrorKind::internal, "metal emulator: command buffer '{}' was committed before",
                  encoded_->label);
    }
    committed_ = true;
    if (fault_) {
      return fail(ErrorKind::internal, "metal emulator: {}, in '{}'", *fault_, encoded_->label);
    }
    queue_->commit(encoded_);
    return {};
  }

  bool completed() const override { return encoded_->done; }

  Result<void> wait() override {
    if (!committed_ || fault_) {
      return fail(ErrorKind::internal, "metal emulator: command buffer '{}' was not committed",
                  encoded_->label);
    }
    queue_->finish(*encoded_);
    if (encoded_->fault) {
      return fail(ErrorKind::internal, "{}", *encoded_->fault);
    }
    return {};
  }

  double seconds() const override { return encoded_->seconds; }

 private:
  struct Binding {
    std::shared_ptr<Storage> storage;
    size_t offset = 0, bytes = 0;
  };

  template <class... Args>
  void fault(fmt::format_string<Args...> format, Args&&... args) {
    if (!fault_) {
      fault_ = fmt::format(format, std::forward<Args>(args)...);
    }
  }

  bool sound(const std::string& wrong) {
    if (!wrong.empty()) {
      fault("{}", wrong);
    }
    return wrong.empty();
  }

  // The dispatch with what is set now; nullptr where something is missing.
  std::unique_ptr<Work> make_work(Size3 groups, Size3 threads) {
    if (committed_ || kernel_ == nullptr) {
      fault("dispatch {}", committed_ ? "after commit" : "without a pipeline");
      return nullptr;
    }
    if (const std::string wrong = fault_of_dispatch(groups, threads, kernel_->max_threads); !wrong.empty()) {
      fault("kernel '{}': {}", kernel_->name, wrong);
      return nullptr;
    }
    auto work = std::make_unique<Work>();
    work->kernel = kernel_;
    work->checked = checked_;
    work->number = static_cast<uint32_t>(encoded_->works.size());
    work->groups = groups;
    work->threads = threads;
    work->constants = constants_;
    for (unsigned i = 0; i < kernel_->count; ++i) {
      if (!bind(*work, kernel_->parameters[i])) {
        return nullptr;
      }
    }
    return work;
  }

  bool bind(Work& work, const lily_metal::Parameter& parameter) {
    if (parameter.space == lily_metal::Space::in_threadgroup) {
      work.threadgroup_bytes[parameter.index] = threadgroup_bytes_[parameter.index];
      if (threadgroup_bytes_[parameter.index] == 0) {
        fault("kernel '{}': threadgroup memory {} ('{}') has no size", kernel_->name, parameter.index,
              parameter.name);
      }
      return !fault_;
    }
    const Binding& binding = bound_[parameter.index];
    if (!binding.storage) {
      fault("kernel '{}': buffer {} ('{}') is not set", kernel_->name, parameter.index, parameter.name);
      return false;
    }
    if (parameter.reference && binding.bytes < parameter.element_bytes) {
      fault("kernel '{}': buffer {} ('{}') has {} bytes, {} are needed", kernel_->name, parameter.index,
            parameter.name, binding.bytes, parameter.element_bytes);
      return false;
    }
    std::byte* begin = binding.storage->data() + binding.offset;
    work.buffers[parameter.index] = begin;
    const auto address = reinterpret_cast<uintptr_t>(begin);
    work.bounds.push_back({address, address + binding.bytes, binding.storage.get(), &parameter, nullptr});
    work.kept.push_back(binding.storage);
    return true;
  }

  std::shared_ptr<Queue> queue_;
  std::shared_ptr<Encoded> encoded_ = std::make_shared<Encoded>();
  const lily_metal::Kernel* kernel_ = nullptr;
  bool checked_ = false;
  std::vector<ConstantValue> constants_;
  std::array<Binding, kMaxBindings> bound_{};
  std::array<uint32_t, kMaxBindings> threadgroup_bytes_{};
  std::optional<std::string> fault_;
  bool committed_ = false;
};

class EmulatedDevice final : public Device {
 public:
  explicit EmulatedDevice(EmulatorOptions options)
      : options_(std::move(options)), queue_(std::make_shared<Queue>(options_.seed)) {
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    traits_ = {"emulated", static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * page, options_.max_buffer_bytes,
               page};
  }

  const Traits& traits() const override { return traits_; }

  Result<std::unique_ptr<Buffer>> buffer(size_t bytes, std::string_view label) override {
    LILY_TRY_VOID(check_buffer(bytes, traits_, label));
    auto made = std::make_unique<EmulatedBuffer>();
    made->storage = Storage::allocate(bytes, std::string(label), options_.checked);
    if (!made->storage) {
      return fail(ErrorKind::out_of_memory, "metal buffer '{}': no memory for {} bytes", label, bytes);
    }
    *allocated_ += bytes;
    peak_ = std::max(peak_, *allocated_);
    made->allocated = allocated_;
    return made;
  }

  Result<std::unique_ptr<Buffer>> map(const void* address, size_t bytes, std::string_view label) override {
    LILY_TRY_VOID(check_mapping(address, bytes, traits_, label));
    auto made = std::make_unique<EmulatedBuffer>();
    made->storage = Storage::borrow(address, bytes, std::string(label));
    return made;
  }

  Result<std::unique_ptr<Library>> library(const LibrarySource& source) override {
    const uint64_t hash = fnv(source.text);
    for (const lily_metal::Module* module : options_.modules) {
      if (module->hash == hash && module->checked == options_.checked) {
        return std::make_unique<EmulatedLibrary>(*module);
      }
    }
    return fail(ErrorKind::internal,
                "metal emulator: the library '{}' is not one that was translated when this was built",
                source.name);
  }

  Result<std::unique_ptr<Commands>> commands(std::string_view label) override {
    return std::make_unique<EmulatedCommands>(queue_, std::string(label));
  }

  uint64_t allocated_bytes() const override { return *allocated_; }
  uint64_t peak_bytes() const override { return peak_; }

 private:
  EmulatorOptions options_;
  Traits traits_;
  std::shared_ptr<Queue> queue_;
  std::shared_ptr<uint64_t> allocated_ = std::make_shared<uint64_t>(0);
  uint64_t peak_ = 0;
};

}  // namespace

std::unique_ptr<Device> make_emulated_device(EmulatorOptions options) {
  return std::make_unique<EmulatedDevice>(std::move(options));
}

}  // namespace lily::metal
