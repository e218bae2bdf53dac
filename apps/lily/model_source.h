// From what the user wrote as MODEL to a folder, and from a folder to everything a command runs with.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "backend/registry.h"
#include "base/result.h"
#include "text/tokenizer.h"
#include "weights/bind.h"
#include "weights/config.h"

namespace lily::app {

inline constexpr const char* kModelHelp = "checkpoint folder or owner/name; absent = the small model";

// A folder; or the name of a repository in the Hugging Face cache ("owner/name": its snapshot in HF_HOME or
// ~/.cache/huggingface/hub); or, when empty, the small model that comes with lily. The error for an absent
// repository has the command that gets it.
Result<std::filesystem::path> find_model(const std::string& model);

// Options that every command which computes shares.
struct DeviceOptions {
  std::string device = "auto";
  BackendOptions backend;
  bool repack_cache = false;  // backend.packed_cache lies in the model's folder
  PlanOptions plan;           // but for the chunk
  std::optional<uint32_t> chunk;
};
// With the chunk that was named, else that of the device.
PlanOptions plan_options(const DeviceOptions& options, const DeviceInfo& device);
void add_compute_options(CLI::App& app, DeviceOptions& options);
// For commands that load a checkpoint: --repack-cache too.
void add_device_options(CLI::App& app, DeviceOptions& options);
// For those whose conversations have a length of their own: --ctx.
void add_context_option(CLI::App& app, DeviceOptions& options);

// A model ready to compute. Members are destroyed in the right order (backend before file).
struct LoadedModel {
  std::filesystem::path folder;
  std::unique_ptr<WeightFile> file;
  std::unique_ptr<Tokenizer> tokenizer;  // null when `with_tokenizer` was false
  GenerationConfig generation;           // likewise read only then
  Plan plan;
  std::unique_ptr<Backend> backend;
  MemoryNeed need;
};
// The folder's; refused when it has ids that a model of `vocab` tokens does not know.
Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& folder, uint32_t vocab);
// Opens, checks and loads, with progress on stderr.
Result<LoadedModel> load_model(const std::string& model, const DeviceOptions& options, bool with_tokenizer);

// For EngineOptions::cache_bytes where the user names none: what `model`'s running sequences may need, and
// half of what the device has beyond, up to 4 GiB.
uint64_t default_cache_bytes(const LoadedModel& model);

// Checks that the memory suffices, then loads, with progress on stderr. `name` is for the progress. Gives
// what was estimated.
Result<MemoryNeed> load_backend(Backend& backend, const WeightFile& file, const Plan& plan,
                                std::string_view name);

}  // namespace lily::app
