// What was compiled in, and the choice by name. Implemented in backends/registry.cpp, the only place that
// knows all.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"

namespace lily {

struct BackendOptions {
  unsigned threads = 0;  // 0 = all usable cores
  std::string isa;       // "" = the best the machine has; else "avx2", "avx512": forces one
  // Where a backend that repacks weights may keep them for the next start; "" = nowhere. One that cannot be
  // read, is damaged or belongs to other weights is ignored with a warning.
  std::filesystem::path packed_cache = {};
};

struct BackendListing {
  std::string name;
  bool usable;
  std::string note;  // what it would run on, or why it can't be used
};

// Every backend lily knows of, whether it is usable here.
std::vector<BackendListing> list_backends();

// `name` is one of list_backends() or "auto" (the fastest usable). An unknown or unusable one is an error
// that says why.
Result<std::unique_ptr<Backend>> make_backend(std::string_view name, const BackendOptions& options);

}  // namespace lily
