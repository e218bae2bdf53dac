// Backends that this build does not have: they are listed, and say so when asked for.
#pragma once

#include <memory>

#include "backend/registry.h"

namespace lily::absent {

Result<std::unique_ptr<Backend>> make_cuda_backend(const BackendOptions& options);
Result<std::unique_ptr<Backend>> make_metal_backend(const BackendOptions& options);

}  // namespace lily::absent
