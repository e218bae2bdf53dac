// Which weights a file holds, for what is stored about them elsewhere.
#pragma once

#include "base/hash.h"
#include "weights/bind.h"

namespace lily {

// Of the shape, of every tensor's name, type and sizes, and of three samples of its bytes (4 KiB each at its
// beginning, middle and end): told in a moment for tens of gigabytes, and another for any other training,
// quantisation or conversion of the model.
Hash128 fingerprint(const WeightFile& file);

}  // namespace lily
