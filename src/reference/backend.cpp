#include "reference/backend.h"

#include "backends/host/host_backend.h"
#include "reference/blocks.h"

namespace lily {

Result<std::unique_ptr<Backend>> make_reference_backend(const BackendOptions& options) {
  auto blocks = std::make_unique<reference::ReferenceBlocks>(options.threads);
  DeviceInfo device{.name = "reference",
                    .description = fmt::format("float32 reference, {} threads", blocks->threads()),
                    .memory_bytes = host::memory_bytes(),
                    .peak_bytes_per_second = 0,
                    .features = {}};
  return std::unique_ptr<Backend>(std::make_unique<host::HostBackend>(std::move(device), std::move(blocks)));
}

}  // namespace lily
