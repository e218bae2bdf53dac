#include "backend/registry.h"

#include <array>

#include "backends/absent/absent.h"
#include "backends/cpu/backend.h"
#include "base/log.h"
#include "reference/backend.h"

namespace lily {
namespace {

struct Entry {
  std::string_view name;
  Result<std::unique_ptr<Backend>> (*make)(const BackendOptions&);
};

// In the order in which "auto" prefers them. It never takes what stands behind the CPU backend, which runs
// everywhere.
constexpr std::string_view kLastResort = "cpu";
constexpr std::array kEntries{
    Entry{"cuda", make_cuda_backend},
    Entry{"metal", make_metal_backend},
    Entry{"cpu", make_cpu_backend},
    Entry{"reference", make_reference_backend},
    Entry{"metal-emulated", make_metal_emulated_backend},
};

std::string known_names() {
  std::string names = "auto";
  for (const Entry& entry : kEntries) {
    names += ", ";
    names += entry.name;
  }
  return names;
}

}  // namespace

std::vector<BackendListing> list_backends() {
  std::vector<BackendListing> listings;
  for (const Entry& entry : kEntries) {
    const auto backend = entry.make({});
    listings.push_back({std::string(entry.name), backend.has_value(),
                        backend ? (*backend)->device().description : backend.error().message});
  }
  return listings;
}

Result<std::unique_ptr<Backend>> make_backend(std::string_view name, const BackendOptions& options) {
  const bool automatic = name == "auto";
  for (const Entry& entry : kEntries) {
    if (!automatic && entry.name != name) {
      continue;
    }
    auto backend = entry.make(options);
    if (backend || !automatic || entry.name == kLastResort) {
      return backend;
    }
    log_info("{}", backend.error().message);
  }
  return fail(ErrorKind::invalid_input, "device '{}': expected one of {}", name, known_names());
}

}  // namespace lily
