// What products in tiles share. They are written over the instructions on tiles: T is the processor's
// (amx.cpp) or one that computes them in C++ (tests/amx_emulator). A tile is up to 16 rows of 64 bytes; T has
//   configure(rows)             tiles 0 to 5 have so many rows, 6 and 7 all 16; all are zero
//   load<tile>(from, stride), store<tile>(to, stride), zero<tile>()
//   dot<sums, a, b>()           sums of signed bytes of a times unsigned bytes of b: tdpbsud
//   dot_halves<sums, a, b>()    sums of pairs of bf16 of a times pairs of b, in float: tdpbf16ps
//   release()
#pragma once

#include "backends/cpu/isa/vectors.h"

namespace lily::cpu {
namespace {

inline constexpr uint32_t kTileRows = 16;
inline constexpr size_t kTile = 1024;  // bytes

}  // namespace
}  // namespace lily::cpu
