// The multi-threaded CPU backend: the name "cpu".
#pragma once

#include <memory>

#include "backend/registry.h"

namespace lily {

// options.isa forces an instruction set by name (backends/cpu/kernels.h); one that is unknown or not
// available here is an error that lists those that are.
Result<std::unique_ptr<Backend>> make_cpu_backend(const BackendOptions& options);

}  // namespace lily
