// Blocks over many rows of a few sequences: tensor-core products, chunked delta rule, flash attention. Each
// adds to PrefillBatch::stream what its block adds and brings the states of the segments forward. A row's
// result does not depend on the other segments of the batch.
#pragma once

#include "backends/cuda/kernel_args.h"

namespace lily::cuda {

// Whether these kernels take the formats of these matrices; where not, the kernels for few rows are used.
bool prefill_takes(const PackedMatrix& matrix);

// Bytes of PrefillBatch::workspace for batches of at most `max_rows` rows.
uint64_t prefill_workspace_bytes(const Dims& dims, uint32_t max_rows);

// Each returns 0, or a cudaError_t of a launch.
int prefill_delta_net(const DeltaNetLayer& layer, const PrefillBatch& batch);
int prefill_attention(const AttentionLayer& layer, const PrefillBatch& batch);
int prefill_moe(const MoeLayer& layer, const PrefillBatch& batch);

}  // namespace lily::cuda
