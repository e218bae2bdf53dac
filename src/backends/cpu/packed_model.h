// The packed form of every matrix that the blocks multiply with. The embedding is not among them: its rows
// are read where they are mapped.
#pragma once

#include <variant>
#include <vector>

#include "backends/cpu/packed.h"
#include "backends/cpu/precision.h"
#include "base/aligned.h"
#include "base/function_ref.h"
#include "base/threads.h"
#include "weights/container.h"

namespace lily::cpu {

struct PackedDeltaNet {
  PackedMatrix in_proj_qkv, in_proj_z, in_proj_a, in_proj_b, out_proj;
};
struct PackedAttention {
  PackedMatrix q_proj, k_proj, v_proj, o_proj;
};
struct PackedMoe {
  PackedMatrix router, gate, up, down;
  PackedMatrix shared_gate, shared_gate_proj, shared_up_proj, shared_down_proj;
};
struct PackedLayer {
  std::variant<PackedDeltaNet, PackedAttention> mixer;
  PackedMoe moe;
};
struct PackedModel {
  std::vector<PackedLayer> layers;
  PackedMatrix head;
  std::vector<AlignedBytes> storage;
  MappedFile file;  // or a file that holds all of them (packed_file.h)

  uint64_t total_bytes() const;
};

// Calls visit(kind, source, packed) for every matrix, always in the same order.
void for_each_matrix(const ModelWeights& from, PackedModel& to,
                     FunctionRef<void(MatrixKind, const AffineMatrix&, PackedMatrix&)> visit);

// The forms without data: what sizes follow from.
PackedModel packed_forms(const ModelWeights& weights);

// Packs matrix by matrix on all threads. Where the weights are mapped from a file, the pages of a matrix are
// given back when it is packed, so that there are never two whole copies in memory. Layers that are views of
// the same bytes share them packed, too.
Result<PackedModel> pack_model(const ModelWeights& weights, ThreadPool& pool,
                               FunctionRef<void(double)> progress);

}  // namespace lily::cpu
