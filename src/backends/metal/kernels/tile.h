// A tile of kTileRows rows by kTileOutputs outputs of a product over many rows, made by four SIMD groups in
// steps of kTileDepth inputs: weights are decoded into threadgroup memory, inputs copied beside them, and
// 8 x 8 matrices of both multiplied in float32.
#pragma once

#include <metal_simdgroup_matrix>

#include "backends/metal/kernels/common.h"

constant constexpr uint kWeightStride = kTileDepth + 4;  // of the weights' and inputs' rows
constant constexpr uint kOutStride = kTileOutputs + 4;

// The weights of outputs [at.x, + kTileOutputs) and inputs [at.y, + kTileDepth) of the matrix whose first row
// in the stack is `shape.x`, with `shape.y` outputs and `shape.z` inputs. Outputs past the end repeat the
// last one. 128 threads, sixteen weights each.
inline void decode_tile(threadgroup float* tile, thread const Matrix& w, uint3 shape, uint2 at, uint t) {
  const uint output = shape.x + min(at.x + t / 2, shape.y - 1);
  const uint col = at.y + t % 2 * kPiece;
  const uint place = output * (shape.z / w.group) + col / w.group;
  const float scale = affine_value(w.scales, place, w.scale_kind);
  const float bias = affine_value(w.biases, place, w.scale_kind);
  float q[kPiece];
  load_codes(w.codes, output, shape.z, col, w.bits, q);
  for (uint i = 0; i < kPiece; ++i) {
    tile[t / 2 * kWeightStride + t % 2 * kPiece + i] = scale * q[i] + bias;
  }
}

// Eight inputs of row t / 4 of the tile.
inline void copy_inputs(threadgroup float* tile, device const float* row, uint depth, uint t) {
  device const float4* from = (device const float4*)(row + depth + t % 4 * 8);
  for (uint i = 0; i < 2; ++i) {
    const float4 x = from[i];
    for (uint j = 0; j < 4; ++j) {
      tile[t / 4 * kWeightStride + t % 4 * 8 + 4 * i + j] = x[j];
    }
  }
}

// SIMD group `simd` has all rows of outputs [16 simd, + 16): 4 x 2 matrices, of which the first `blocks`
// pairs hold rows that are there. An expert often has no more than eight.
inline void multiply_tile(threadgroup const float* inputs, threadgroup const float* weights,
                          thread simdgroup_float8x8* sums, uint blocks, uint simd) {
  for (uint depth = 0; depth < kTileDepth; depth += 8) {
    simdgroup_float8x8 w[2];
    for (uint o = 0; o < 2; ++o) {
      simdgroup_load(w[o], weights + (simd * 16 + o * 8) * kWeightStride + depth, kWeightStride, ulong2(0),
                     true);
    }
    for (uint r = 0; r < 4; ++r) {
      if (r < blocks) {
        simdgroup_float8x8 x;
        simdgroup_load(x, inputs + r * 8 * kWeightStride + depth, kWeightStride);
        for (uint o = 0; o < 2; ++o) {
          simdgroup_multiply_accumulate(sums[r * 2 + o], x, w[o], sums[r * 2 + o]);
        }
      }
    }
  }
}

inline void store_tile(threadgroup float* out, thread const simdgroup_float8x8* sums, uint simd) {
  for (uint r = 0; r < 4; ++r) {
    for (uint o = 0; o < 2; ++o) {
      simdgroup_store(sums[r * 2 + o], out + r * 8 * kOutStride + simd * 16 + o * 8, kOutStride);
    }
  }
}
