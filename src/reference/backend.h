// The reference as a backend: the name "reference".
#pragma once

#include <memory>

#include "backend/registry.h"

namespace lily {

// Only `options.threads` matters.
Result<std::unique_ptr<Backend>> make_reference_backend(const BackendOptions& options);

}  // namespace lily
