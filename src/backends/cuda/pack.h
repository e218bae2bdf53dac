// From the affine matrices of a file to the tiles of kernel_args.h, on host threads.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "backends/cuda/kernel_args.h"
#include "model/tensors.h"

namespace lily::cuda {

// What goes into one packed stack: for each matrix its parts, single matrices (experts == 1) with the same
// number of inputs. Their rows follow one another or, interleaved, blocks of eight rows of the two parts
// alternate.
struct Recipe {
  std::vector<std::vector<AffineMatrix>> matrices;
  bool interleaved = false;
};

// The packed form of a recipe, without its memory: the narrowest that holds all parts without rounding.
// Fails, naming `name`, where a part does not fit tiles of 64 inputs.
Result<PackedMatrix> packed_form(const Recipe& recipe, std::string_view name);

constexpr uint64_t packed_bytes(const PackedMatrix& form) { return form.matrices * form.matrix_bytes; }
constexpr uint64_t block_bytes(const PackedMatrix& form) { return uint64_t{form.k_tiles} * form.tile_bytes; }

// Writes the tiles of one block of 16 outputs of one matrix: block_bytes(form) at `out`.
void pack_block(const Recipe& recipe, const PackedMatrix& form, uint32_t matrix, uint32_t block,
                uint8_t* out);

}  // namespace lily::cuda
