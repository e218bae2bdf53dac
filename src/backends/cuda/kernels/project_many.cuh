// Dense projections of more than kFewRows rows: what project.cu hands on to project_many.cu.
#pragma once

#include "backends/cuda/kernels/tiles.cuh"

namespace lily::cuda {

// Wide tiles are rare: project.cu has one kernel for any number of rows.
inline bool projects_many(const PackedMatrix& w, uint32_t rows) { return rows > kFewRows && w.wide == 0; }

// Matrices of so few blocks of outputs have no work for all multiprocessors unless rows are apart.
inline constexpr uint32_t kFewBlocks = 32;

uint32_t project_many_shared_bytes(const PackedMatrix& w, uint32_t stages, uint32_t rows, uint32_t blocks);
int prepare_project_many(uint32_t bytes);
int launch_project_many(const ProjectArgs& args, Stream queue);

}  // namespace lily::cuda
