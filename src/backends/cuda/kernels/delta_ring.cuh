// The delta step of more than kDeltaRingSegments segments (delta_ring.cu).
#pragma once

#include "backends/cuda/kernels/decode.h"

namespace lily::cuda {

int prepare_delta_ring(uint32_t bytes);
int launch_delta_ring(const DeltaStepArgs& args, Stream queue);

}  // namespace lily::cuda
