// Bytes of weights that a block has to read in a pass: each of its tensors once, however many rows use it.
#pragma once

#include <cstdint>

#include "model/tensors.h"

namespace lily {

uint64_t mixer_bytes(const LayerWeights& layer);
// `experts`: how many distinct experts the rows chose.
uint64_t moe_bytes(const MoeWeights& moe, uint64_t experts);

}  // namespace lily
