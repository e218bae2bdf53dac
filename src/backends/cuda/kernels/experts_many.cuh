// The experts of more than kFewRows rows: what experts.cu hands on to experts_many.cu.
#pragma once

#include "backends/cuda/kernels/experts.cuh"

namespace lily::cuda {

uint32_t gate_up_many_shared_bytes(const PackedMatrix& w, uint32_t stages);
uint32_t down_many_shared_bytes(const PackedMatrix& w, uint32_t stages);
int prepare_experts_many(uint32_t bytes);
int launch_gate_up_many(const ExpertArgs& args, Stream queue);
int launch_down_many(const ExpertArgs& args, Stream queue);  // and what adds its results to the stream

}  // namespace lily::cuda
