// Values of the table of embeddings, which stays as it is in the file.
#pragma once

#include <cuda_fp16.h>

#include "backends/cuda/kernels/common.cuh"
#include "backends/cuda/kernels/decode.h"

namespace lily::cuda {

__device__ __forceinline__ float scale_at(const uint8_t* scales, uint32_t kind, size_t index) {
  if (kind == 2) {
    return reinterpret_cast<const float*>(scales)[index];
  }
  const uint16_t bits = reinterpret_cast<const uint16_t*>(scales)[index];
  return kind == 0 ? from_bf16(bits) : __half2float(__ushort_as_half(bits));
}

// The token of a row: that of the table, or the one that was sampled for the row.
__device__ __forceinline__ int32_t token_of(const EmbedArgs& a, uint32_t row) {
  int32_t id = load_l2(a.ids + row);
  if (id < 0) {
    id = load_l2(a.sampled[row]);
  }
  return id < 0 ? 0 : id;
}
__device__ __forceinline__ float embedding(const EmbedArgs& a, int32_t id, uint32_t i, uint32_t hidden) {
  const uint32_t* words = reinterpret_cast<const uint32_t*>(a.codes) + size_t(id) * (hidden * a.bits / 32);
  const uint32_t word = words[i * a.bits / 32];
  const uint32_t code = (word >> (i * a.bits % 32)) & ((1u << a.bits) - 1);
  const size_t group = size_t(id) * (hidden / a.group) + i / a.group;
  const float product = __fmul_rn(scale_at(a.scales, a.scale_kind, group), static_cast<float>(code));
  return __fadd_rn(product, scale_at(a.biases, a.scale_kind, group));
}

}  // namespace lily::cuda
