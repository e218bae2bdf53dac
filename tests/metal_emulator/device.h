// The device of backends/metal/device.h on the host: executes kernels that were translated at build time.
// Development only; nothing of it is in an installed lily.
#pragma once

#include <memory>
#include <vector>

#include "backends/metal/device.h"
#include "shim/runtime.h"

namespace lily::metal {

using EmulatedModules = std::vector<const lily_metal::Module*>;

struct EmulatorOptions {
  // The order of threads, of threadgroups and of dispatches between barriers, and when a committed command
  // buffer runs, all follow from it.
  uint64_t seed = 1;
  // Holds kernels to their bounds, to written memory and to an order of accesses; a fault is the error of
  // Commands::wait(). Without, kernels run about ten times as fast, and only divergence and the size of
  // threadgroup memory are checked.
  bool checked = true;
  uint64_t max_buffer_bytes = uint64_t{8} << 30;
  // The kernels it knows: a library whose text is not among them cannot be made.
  EmulatedModules modules = {};
};

std::unique_ptr<Device> make_emulated_device(EmulatorOptions options);

}  // namespace lily::metal
