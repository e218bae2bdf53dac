// Tiles of packed weights (kernel_args.h) decoded to the A fragments of mma.m16n8k16 in registers.
#pragma once

#include <cuda_bf16.h>

#include "backends/cuda/kernel_args.h"

namespace lily::cuda::prefill {

// The two forms of tiles a product kernel is compiled for: `narrow4` is the published checkpoint's (4-bit
// codes, one bf16 scale and bias per tile and output), `any` takes every form that PackedMatrix has.
enum class Form { narrow4, any };

__device__ __forceinline__ uint32_t multiply_add_pair(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// (a & mask) | bits in one instruction: left to itself the compiler makes two of it.
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t mask, uint32_t bits) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;\n" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
  return d;
}

// Where a warp reads the tiles of one block of 16 outputs.
struct RowBlock {
  const uint8_t* tiles;
  uint32_t tile_bytes;
  uint32_t planes;
  uint32_t wide;
};
__device__ __forceinline__ RowBlock row_block(const PackedMatrix& matrix, uint32_t index, uint32_t block) {
  const uint64_t offset = uint64_t{block} * matrix.k_tiles * matrix.tile_bytes;
  return {matrix.tiles + index * matrix.matrix_bytes + offset, matrix.tile_bytes, matrix.planes, matrix.wide};
}

template <Form>
struct WeightTile;

template <>
struct WeightTile<Form::narrow4> {
  uint4 codes;
  uint32_t groups[2];  // bf16 scale and bias of rows g and g + 8

  __device__ __forceinline__ void load(const RowBlock& block, uint32_t tile) {
    const uint8_t* at = block.tiles + tile * (kPlaneBytes + kNarrowScaleBytes);
    const uint32_t lane = threadIdx.x % 32;
    codes = __ldg(reinterpret_cast<const uint4*>(at) + lane);
    const auto* pairs = reinterpret_cast<const uint32_t*>(at + kPlaneBytes);
    groups[0] = __ldg(pairs + lane / 4);
    groups[1] = __ldg(pairs + lane / 4 + 8);
  }

  // The fragment of inputs [16 step, 16 step + 16): the bf16 of scale * code + bias, rounded once.
  __device__ __forceinline__ void decode(int step, uint32_t (&a)[4]) const {
    const uint32_t word = step == 0 ? codes.x : step == 1 ? codes.y : step == 2 ? codes.z : codes.w;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t scale = __byte_perm(groups[i % 2], 0, 0x1010);
      const uint32_t bias = __byte_perm(groups[i % 2], 0, 0x3232);
      const uint32_t offset = and_or(word >> (4 * i), 0x000F000FU, 0x43004300U);
      const uint32_t code = multiply_add_pair(offset, 0x3F803F80U, 0xC300C300U);  // * 1 - 128: exact
      a[i] = multiply_add_pair(code, scale, bias);
    }
  }
};

template <>
struct WeightTile<Form::any> {
  uint32_t low[4];
  uint32_t high[4];
  float2 groups[2][2];  // scale and bias of [half of 32 inputs][row g or g + 8]

  __device__ __forceinline__ void load(const RowBlock& block, uint32_t tile) {
    const uint8_t* at = block.tiles + size_t{tile} * block.tile_bytes;
    const uint32_t lane = threadIdx.x % 32;
    load_plane(low, at);
    if (block.planes == 2) {
      load_plane(high, at + kPlaneBytes);
    } else {
      high[0] = high[1] = high[2] = high[3] = 0;
    }
    at += size_t{block.planes} * kPlaneBytes;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
#pragma unroll
      for (uint32_t row = 0; row < 2; ++row) {
        const uint32_t index = lane / 4 + 8 * row;
        if (block.wide != 0) {
          groups[half][row] = __ldg(reinterpret_cast<const float2*>(at) + half * kTileRows + index);
        } else {
          const uint32_t pair = __ldg(reinterpret_cast<const uint32_t*>(at) + index);
          groups[half][row] = {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000U)};
        }
      }
    }
  }

  // Value i of the fragment: two neighbouring inputs of a row, in float32.
  __device__ __forceinline__ float2 value(int step, int i) const {
    const uint32_t pair = (low[step] >> (4 * i) & 0x000F000FU) | (high[step] >> (4 * i) & 0x000F000FU) << 4;
    const float2 group = groups[step / 2][i % 2];
    return {__fadd_rn(__fmul_rn(group.x, static_cast<float>(pair & 0xFFFFU)), group.y),
            __fadd_rn(__fmul_rn(group.x, static_cast<float>(pair >> 16)), group.y)};
  }

  __device__ __forceinline__ void decode(int step, uint32_t (&a)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 w = value(step, i);
      const __nv_bfloat162 pair = __floats2bfloat162_rn(w.x, w.y);
      a[i] = *reinterpret_cast<const uint32_t*>(&pair);
    }
  }

 private:
  __device__ __forceinline__ static void load_plane(uint32_t (&words)[4], const uint8_t* at) {
    const uint4 loaded = __ldg(reinterpret_cast<const uint4*>(at) + threadIdx.x % 32);
    words[0] = loaded.x;
    words[1] = loaded.y;
    words[2] = loaded.z;
    words[3] = loaded.w;
  }
};

}  // namespace lily::cuda::prefill
