// Backends that this build may not have: they are listed, and say so when asked for. Where a build has the
// device, its own folder defines the function in place of the one here.
#pragma once

#include <memory>

#include "backend/registry.h"

namespace lily {

Result<std::unique_ptr<Backend>> make_cuda_backend(const BackendOptions& options);
Result<std::unique_ptr<Backend>> make_metal_backend(const BackendOptions& options);
// Defined by tests/metal_emulator for programs of a development build, here for what is installed.
Result<std::unique_ptr<Backend>> make_metal_emulated_backend(const BackendOptions& options);

}  // namespace lily
