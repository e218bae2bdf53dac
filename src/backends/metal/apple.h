// The device of a Mac. device_apple.mm implements it; other systems have backends/absent instead.
#pragma once

#include <memory>

#include "backend/registry.h"
#include "backends/metal/device.h"

namespace lily {

// Fails, saying why, where no device can be used.
Result<std::unique_ptr<Backend>> make_metal_backend(const BackendOptions& options);

namespace metal {

// The system's default device, if it is what device.h promises to kernels.
Result<std::unique_ptr<Device>> open_apple_device();

}  // namespace metal
}  // namespace lily
