#include "apps/lily/model_source.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "apps/lily/commands.h"
#include "apps/lily/progress.h"
#include "apps/lily/say.h"
#include "base/log.h"
#include "base/size_text.h"

#if defined(__APPLE__)
#include <mach-o/dyld.h>
#endif

namespace lily::app {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Where huggingface_hub keeps its downloads, by its own rules.
fs::path hugging_face_cache() {
  if (const std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) {
    return cache;
  }
  if (const std::string home = environment("HF_HOME"); !home.empty()) {
    return fs::path(home) / "hub";
  }
  const std::string xdg = environment("XDG_CACHE_HOME");
  const fs::path base = xdg.empty() ? fs::path(environment("HOME")) / ".cache" : fs::path(xdg);
  return base / "huggingface" / "hub";
}

// The snapshot that refs/main names; else the one changed last.
Result<fs::path> snapshot_of(const fs::path& repository) {
  std::string revision;
  if (std::ifstream ref(repository / "refs" / "main"); ref >> revision) {
    const fs::path folder = repository / "snapshots" / revision;
    if (fs::is_directory(folder)) {
      return folder;
    }
  }
  fs::path newest;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(repository / "snapshots", ignored)) {
    if (entry.is_directory() && (newest.empty() || entry.last_write_time() > fs::last_write_time(newest))) {
      newest = entry.path();
    }
  }
  if (newest.empty()) {
    return fail(ErrorKind::not_found, "'{}' holds no snapshot", repository.string());
  }
  return newest;
}

// "owner/name" and nothing that could be a path of another form.
bool is_repository_name(const std::string& model) {
  const auto slash = model.find('/');
  const bool one_slash = slash != std::string::npos && slash == model.rfind('/');
  return one_slash && slash > 0 && slash + 1 < model.size() && model[0] != '.' && model[0] != '~';
}

// The file that runs, without symbolic links; nothing where the system does not say.
fs::path this_program() {
  std::error_code ignored;
#if defined(__APPLE__)
  std::string path(4096, '\0');
  auto size = static_cast<uint32_t>(path.size());
  return _NSGetExecutablePath(path.data(), &size) == 0 ? fs::canonical(path.c_str(), ignored) : fs::path();
#else
  return fs::read_symlink("/proc/self/exe", ignored);
#endif
}

Result<fs::path> built_in_model() {
  const fs::path program = this_program();
  for (const fs::path& folder : {program.parent_path().parent_path() / "share" / "lily" / "lily-tiny",
                                 fs::path(LILY_SOURCE_MODELS) / "lily-tiny"}) {
    if (fs::exists(folder / "config.json")) {
      return folder;
    }
  }
  return fail(ErrorKind::not_found,
              "no MODEL was named and the small model that comes with lily is not installed: name a "
              "checkpoint folder "
              "or a repository such as mlx-community/Qwen3.6-35B-A3B-4bit, or make one with "
              "`lily synth DIR --shape tiny`");
}

uint64_t physical_memory() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
}

Result<void> check_memory(const MemoryNeed& need, const Plan& plan, uint64_t have) {
  log_info("memory: {} of the file, {} repacked, {} workspace, {} x {} for up to {} tokens each",
           size_text(need.mapped), size_text(need.weights), size_text(need.workspace), plan.sequences,
           size_text(need.per_sequence), plan.context);
  if (need.total(plan.sequences) > have) {
    return fail(
        ErrorKind::out_of_memory,
        "the model needs {} ({} weights, {} workspace, {} sequences of {}) and the device has {}: lower "
        "--ctx (now {}) or --parallel (now {})",
        size_text(need.total(plan.sequences)), size_text(need.mapped + need.weights),
        size_text(need.workspace), plan.sequences, size_text(need.per_sequence), size_text(have),
        plan.context, plan.sequences);
  }
  return {};
}

}  // namespace

Result<fs::path> find_model(const std::string& model) {
  if (model.empty()) {
    return built_in_model();
  }
  std::error_code ignored;  // a name too long for a file is no folder either
  if (fs::is_directory(model, ignored)) {
    return fs::path(model);
  }
  if (fs::exists(model, ignored)) {
    return fail(ErrorKind::invalid_input, "'{}' is a file: expected the checkpoint's folder", model);
  }
  if (!is_repository_name(model)) {
    return fail(ErrorKind::not_found, "no folder '{}'", model);
  }
  std::string folder_name = "models--" + model;
  folder_name.replace(folder_name.find('/'), 1, "--");
  const fs::path repository = hugging_face_cache() / folder_name;
  if (!fs::is_directory(repository, ignored)) {
    return fail(ErrorKind::not_found,
                "no folder '{}', and '{}' is not in the Hugging Face cache. Get it with: hf download {}",
                model, repository.string(), model);
  }
  return snapshot_of(repository);
}

PlanOptions plan_options(const DeviceOptions& options, const DeviceInfo& device) {
  PlanOptions plan = options.plan;
  // Up to where a chunk may end on this device.
  const uint32_t unit = device.reading.unit;
  plan.chunk = (options.chunk.value_or(device.chunk) + unit - 1) / unit * unit;
  return plan;
}

void add_compute_options(CLI::App& app, DeviceOptions& options) {
  app.add_option("--device", options.device, "auto, or one that `lily devices` lists");
  app.add_option("--threads", options.backend.threads,
                 "threads to compute with, at most one per usable core; 0 = all cores")
      ->check(CLI::Range(0U, kMostThreads));
  app.add_option("--isa", options.backend.isa,
                 "instruction set of the CPU kernels; empty = the best this machine has");
  app.add_option("--chunk", options.chunk,
                 "prompt tokens computed in one step, rounded up to a multiple of at most 64 that the device "
                 "asks for: "
                 "running answers wait for it; absent = as suits the device")
      ->check(CLI::Range(1U, Limits::kMaxChunk));
}

void add_device_options(CLI::App& app, DeviceOptions& options) {
  add_compute_options(app, options);
  app.add_flag("--repack-cache", options.repack_cache,
               "CPU: keep the packed weights in the model's folder (as much disk again) and map them at the "
               "next start");
}

void add_context_option(CLI::App& app, DeviceOptions& options) {
  app.add_option("--ctx", options.plan.context, "tokens that a conversation may hold")
      ->check(CLI::Range(Limits::kMinContext, Limits::kMaxContext));
}

Result<MemoryNeed> load_backend(Backend& backend, const WeightFile& file, const Plan& plan,
                                std::string_view name) {
  LILY_TRY(const MemoryNeed need, backend.estimate(file, plan));
  const uint64_t device = backend.device().memory_bytes;
  LILY_TRY_VOID(check_memory(need, plan, device != 0 ? device : physical_memory()));
  ProgressBar progress(fmt::format("loading {}", name));
  LILY_TRY_VOID(backend.load(file, plan, [&](double done) { progress.update(done); }));
  progress.finish();
  return need;
}

uint64_t default_cache_bytes(const LoadedModel& model) {
  const uint64_t running = model.plan.sequences * model.need.per_sequence;
  const uint64_t have = model.backend->device().memory_bytes;
  const uint64_t used = model.need.total(model.plan.sequences);
  return running + std::min<uint64_t>(have > used ? (have - used) / 2 : 0, uint64_t{4} << 30U);
}

Result<std::unique_ptr<Tokenizer>> load_tokenizer(const fs::path& folder, uint32_t vocab) {
  LILY_TRY(auto tokenizer, Tokenizer::load(folder));
  if (tokenizer->size() > vocab) {
    return fail(ErrorKind::invalid_input, "'{}': has ids up to {}, but the model's vocabulary ends at {}",
                (folder / "tokenizer.json").string(), tokenizer->size() - 1, vocab - 1);
  }
  return tokenizer;
}

Result<LoadedModel> load_model(const std::string& model, const DeviceOptions& options, bool with_tokenizer) {
  const auto start = std::chrono::steady_clock::now();
  LILY_TRY(fs::path folder, find_model(model));
  LILY_TRY(auto file, WeightFile::open(folder));
  GenerationConfig generation;  // only generating needs it, and that needs the tokenizer too
  std::unique_ptr<Tokenizer> tokenizer;
  if (with_tokenizer) {
    LILY_TRY(generation, read_generation_config(folder, file->shape()));
    LILY_TRY(tokenizer, load_tokenizer(folder, file->shape().vocab));
  }
  BackendOptions backend_options = options.backend;
  if (options.repack_cache) {
    backend_options.packed_cache = folder / "packed-cpu.lily";
  }
  LILY_TRY(auto backend, make_backend(options.device, backend_options));
  LILY_TRY(Plan plan, make_plan(file->shape(), plan_options(options, backend->device())));
  LILY_TRY(const MemoryNeed need, load_backend(*backend, *file, plan, folder.filename().string()));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  log_info("{}: {} layers of '{}', {}, on {} in {:.2f} s", folder.string(), file->shape().layers,
           file->shape().name, size_text(file->bound_bytes()), backend->device().description, seconds);
  return LoadedModel{std::move(folder),
                     std::move(file),
                     std::move(tokenizer),
                     std::move(generation),
                     plan,
                     std::move(backend),
                     need};
}

}  // namespace lily::app
