// The device "metal-emulated" of development builds: the Metal backend on the emulator, without checks of its
// accesses.
#include "backends/metal/backend.h"

#include "backends/absent/absent.h"
#include "tests/metal_emulator/modules.h"

namespace lily {

Result<std::unique_ptr<Backend>> make_metal_emulated_backend(const BackendOptions& options) {
  return metal::make_backend(
      metal::make_emulated_device({.checked = false, .modules = metal::kernel_modules()}), "metal-emulated",
      options);
}

}  // namespace lily
