// The kernels as text, each file with its headers in place: cmake/embed_metal.cmake makes the functions.
#pragma once

#include <vector>

#include "backends/metal/device.h"

namespace lily::metal {

const std::vector<LibrarySource>& kernel_sources();   // of the backend
const std::vector<LibrarySource>& planted_sources();  // of the emulator's tests, and only there

}  // namespace lily::metal
