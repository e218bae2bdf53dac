#include "model/bytes.h"

namespace lily {

uint64_t mixer_bytes(const LayerWeights& layer) {
  if (const auto* delta = std::get_if<DeltaNetWeights>(&layer.mixer)) {
    return delta->input_norm.total_bytes() + delta->in_proj_qkv.total_bytes() +
           delta->in_proj_z.total_bytes() + delta->in_proj_a.total_bytes() + delta->in_proj_b.total_bytes() +
           delta->conv1d.total_bytes() + delta->a_log.total_bytes() + delta->dt_bias.total_bytes() +
           delta->norm.total_bytes() + delta->out_proj.total_bytes();
  }
  const auto& attention = std::get<AttentionWeights>(layer.mixer);
  return attention.input_norm.total_bytes() + attention.q_proj.total_bytes() +
         attention.k_proj.total_bytes() + attention.v_proj.total_bytes() + attention.q_norm.total_bytes() +
         attention.k_norm.total_bytes() + attention.o_proj.total_bytes();
}

uint64_t moe_bytes(const MoeWeights& moe, uint64_t experts) {
  const uint64_t one =
      (moe.gate.total_bytes() + moe.up.total_bytes() + moe.down.total_bytes()) / moe.gate.experts;
  return experts * one + moe.post_norm.total_bytes() + moe.router.total_bytes() +
         moe.shared_gate.total_bytes() + moe.shared_gate_proj.total_bytes() +
         moe.shared_up_proj.total_bytes() + moe.shared_down_proj.total_bytes();
}

}  // namespace lily
