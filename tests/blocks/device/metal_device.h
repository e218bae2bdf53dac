// The device that the tests of Metal run on: that of a Mac, elsewhere the emulator.
#pragma once

#if defined(__APPLE__)
#include "backends/metal/apple.h"
#else
#include "tests/metal_emulator/modules.h"
#endif

namespace lily::test {

struct MetalDeviceOptions {
  uint64_t seed = 1;     // of the emulator's order of execution
  bool checked = false;  // whether the emulator checks every access
};

#if defined(__APPLE__)
inline constexpr const char* kMetalName = "metal";
inline Result<std::unique_ptr<metal::Device>> metal_device(const MetalDeviceOptions&) {
  return metal::open_apple_device();
}
#else
inline constexpr const char* kMetalName = "metal-emulated";
inline Result<std::unique_ptr<metal::Device>> metal_device(const MetalDeviceOptions& options) {
  return metal::make_emulated_device(
      {.seed = options.seed, .checked = options.checked, .modules = metal::kernel_modules()});
}
#endif

}  // namespace lily::test
