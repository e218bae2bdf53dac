// What the kernels of every instruction set share. Each ISA file includes them with its own vector type V of
// V::N floats and is the only one compiled for its instruction set. Everything lies in an unnamed namespace,
// and nothing inline of other headers is called: a function shared between files could be the copy compiled
// for a newer processor than the one it runs on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernels.h"

#define LILY_UNROLL _Pragma("GCC unroll 64")
#define LILY_INLINE __attribute__((always_inline)) static inline

namespace lily::cpu {
namespace {

constexpr uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }
constexpr uint32_t larger(uint32_t a, uint32_t b) { return a < b ? b : a; }

}  // namespace
}  // namespace lily::cpu
