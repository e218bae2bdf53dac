// The translated kernels that a program has: tests/metal_emulator/CMakeLists.txt makes the functions.
#pragma once

#include "tests/metal_emulator/device.h"

namespace lily::metal {

EmulatedModules kernel_modules();   // of the backend
EmulatedModules planted_modules();  // of the emulator's own tests

}  // namespace lily::metal
