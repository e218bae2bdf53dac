// Until there are kernels for many rows: those for few rows take everything.
#include "backends/cuda/kernels/prefill.h"

namespace lily::cuda {

bool prefill_takes(const PackedMatrix&) { return false; }
uint64_t prefill_workspace_bytes(const Dims&, uint32_t) { return 0; }
int prefill_delta_net(const DeltaNetLayer&, const PrefillBatch&) { return 1; }
int prefill_attention(const AttentionLayer&, const PrefillBatch&) { return 1; }
int prefill_moe(const MoeLayer&, const PrefillBatch&) { return 1; }

}  // namespace lily::cuda
