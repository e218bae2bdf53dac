// Dense projections of more than kFewRows rows: what project.cu hands on to project_many.cu and, of very many
// outputs, to project_tall.cu, and the inputs for which there are kernels.
#pragma once

#include "backends/cuda/kernels/tiles.cuh"

namespace lily::cuda {

// Wide tiles are rare: project.cu has one kernel for any number of rows.
inline bool projects_many(const PackedMatrix& w, uint32_t rows) { return rows > kFewRows && w.wide == 0; }

// The head, of all matrices.
inline constexpr uint32_t kTallBlocks = 1024;
inline bool projects_tall(const PackedMatrix& w, uint32_t rows) {
  return projects_many(w, rows) && w.row_blocks >= kTallBlocks && (w.k_tiles == 4 || w.k_tiles == 32);
}

// Matrices of so few blocks of outputs have no work for all multiprocessors unless rows are apart.
inline constexpr uint32_t kFewBlocks = 32;

// Inputs of a product in tiles, and whether they are what the heads of a mixer put out.
struct InputForm {
  uint32_t k_tiles;
  bool heads;
};
inline constexpr InputForm kInputForms[] = {{4, false}, {32, false}, {64, false}, {16, true}, {64, true}};

// Calls of.template operator()<kInputTiles, kHeads>() for one of these, or returns an error.
template <class Of>
int with_inputs(uint32_t k_tiles, bool heads, Of&& of) {
  switch (k_tiles) {
    case 4:
      return heads ? cudaErrorInvalidValue : of.template operator()<4, false>();
    case 16:
      return heads ? of.template operator()<16, true>() : cudaErrorInvalidValue;
    case 32:
      return heads ? cudaErrorInvalidValue : of.template operator()<32, false>();
    case 64:
      return heads ? of.template operator()<64, true>() : of.template operator()<64, false>();
    default:
      return cudaErrorInvalidValue;
  }
}

uint32_t project_tall_shared_bytes(const PackedMatrix& w, uint32_t stages, uint32_t rows);
int prepare_project_tall(uint32_t bytes);
int launch_project_tall(const ProjectArgs& args, Stream queue);

uint32_t project_many_shared_bytes(const PackedMatrix& w, uint32_t stages, uint32_t rows, uint32_t blocks);
int prepare_project_many(uint32_t bytes);
int launch_project_many(const ProjectArgs& args, Stream queue);

}  // namespace lily::cuda
