// The sizes that kernels need of a shape.
#pragma once

#include "backends/cuda/kernel_args.h"
#include "model/shape.h"

namespace lily::cuda {

inline Dims dims_of(const Shape& shape) {
  return {.hidden = shape.hidden,
          .layers = shape.layers,
          .vocab = shape.vocab,
          .q_heads = shape.q_heads,
          .kv_heads = shape.kv_heads,
          .k_heads = shape.k_heads,
          .v_heads = shape.v_heads,
          .experts = shape.experts,
          .ffn = shape.expert_ffn};
}

}  // namespace lily::cuda
