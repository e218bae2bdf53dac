// A launch runs the kernel on an emulated grid, to its end.
#pragma once

#include <cuda_runtime.h>

namespace lily::cuda {

template <class Args>
int launch_dependent(void (*kernel)(Args), const cudaLaunchConfig_t& config, const Args& args) {
  emulator::Grid grid({.blocks = config.gridDim.x,
                       .threads = config.blockDim.x,
                       .shared_bytes = static_cast<uint32_t>(config.dynamicSmemBytes),
                       .blocks_y = config.gridDim.y,
                       .blocks_z = config.gridDim.z});
  grid.run([&] { kernel(args); });
  return 0;
}
template <class Args>
int prepare_kernel(void (*)(Args), uint32_t) {
  return 0;
}

}  // namespace lily::cuda
