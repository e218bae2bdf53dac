// What the kernels share: sixteen weights at a time, sums over a SIMD group, elementwise functions.
#pragma once

#include <metal_stdlib>
using namespace metal;

#include "backends/metal/kernel_args.h"

constant constexpr uint kPiece = 16;  // weights that a thread takes at a time; never over the end of a group

// An affine matrix (model/tensors.h), or a stack of them. Scales and biases are read as halves of words, so
// that any even address will do.
struct Matrix {
  device const uint* codes;
  device const ushort* scales;
  device const ushort* biases;
  uint bits, group, scale_kind;
};

inline float affine_value(device const ushort* table, uint index, uint kind) {
  if (kind == kScaleF32) {
    return as_type<float>(uint(table[2 * index]) | uint(table[2 * index + 1]) << 16);
  }
  const ushort bits = table[index];
  return kind == kScaleBf16 ? as_type<float>(uint(bits) << 16) : float(as_type<half>(bits));
}

// The sixteen codes of a row of `cols` weights that begin at `col`.
inline void load_codes(device const uint* codes, uint row, uint cols, uint col, uint bits, thread float* q) {
  if (bits == 4) {
    device const uint* words = codes + row * (cols / 8) + col / 8;
    for (uint w = 0; w < 2; ++w) {
      const uint word = words[w];
      for (uint i = 0; i < 8; ++i) {
        q[8 * w + i] = float((word >> (4 * i)) & 15u);
      }
    }
  } else {
    device const uint* words = codes + row * (cols / 4) + col / 4;
    for (uint w = 0; w < 4; ++w) {
      const uint word = words[w];
      for (uint i = 0; i < 4; ++i) {
        q[4 * w + i] = float((word >> (8 * i)) & 255u);
      }
    }
  }
}

// Sixteen floats from a 16-byte aligned row.
inline void load_inputs(device const float* from, thread float* x) {
  for (uint i = 0; i < kPiece / 4; ++i) {
    const float4 v = ((device const float4*)from)[i];
    x[4 * i] = v.x;
    x[4 * i + 1] = v.y;
    x[4 * i + 2] = v.z;
    x[4 * i + 3] = v.w;
  }
}

inline float sum_of(thread const float* x) {
  float sum = 0;
  for (uint i = 0; i < kPiece; ++i) {
    sum += x[i];
  }
  return sum;
}
inline float dot_of(thread const float* a, thread const float* b) {
  float sum = 0;
  for (uint i = 0; i < kPiece; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

inline float sigmoid_of(float x) { return 1.0f / (1.0f + exp(-x)); }
inline float silu_of(float x) { return x / (1.0f + exp(-x)); }

constant constexpr float kEpsilon = 1e-6f;
inline float norm_factor(float sum_of_squares, uint width) {
  return 1.0f / sqrt(sum_of_squares / float(width) + kEpsilon);
}

// ---- A normed row in threadgroup memory ------------------------------------------------------------------
// Every SIMD group of a threadgroup multiplies with the same row. It is put once beside them, times the
// weights of its norm, in the order in which they read it: element i of the pieces of all threads side by
// side.
constant constexpr uint kStaged = 2048;  // floats: the widest row that is normed, the residual stream

inline uint staged_place(uint piece, uint element) {
  return (piece / 32 * kPiece + element) * 32 + piece % 32;
}

// By 256 threads; `factor` gets 1 / rms. Its sum of squares is that of one SIMD group with load_inputs().
inline void stage_normed(threadgroup float* staged, threadgroup float* factor, device const float* x,
                         device const float* norm, uint cols, uint t) {
  const uint pieces = cols / kPiece;
  for (uint i = t; i < 2 * pieces; i += 256) {
    const uint piece = i % pieces;
    const uint first = i / pieces * 8;
    for (uint part = first; part < first + 8; part += 4) {
      const uint at = (piece * kPiece + part) / 4;
      const float4 v = ((device const float4*)x)[at] * ((device const float4*)norm)[at];
      for (uint e = 0; e < 4; ++e) {
        staged[staged_place(piece, part + e)] = v[e];
      }
    }
  }
  if (t < 32) {
    float squares = 0;
    for (uint col = t * kPiece; col < cols; col += 32 * kPiece) {
      float piece[kPiece];
      load_inputs(x + col, piece);
      squares += dot_of(piece, piece);
    }
    squares = simd_sum(squares);
    if (t == 0) {
      *factor = norm_factor(squares, cols);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

inline void load_staged(threadgroup const float* staged, uint piece, thread float* x) {
  for (uint e = 0; e < kPiece; ++e) {
    x[e] = staged[staged_place(piece, e)];
  }
}

inline float from_bf16(uint bits) { return as_type<float>(bits << 16); }
// To nearest, ties to even; a NaN stays one.
inline ushort to_bf16(float value) {
  const uint bits = as_type<uint>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return ushort((bits >> 16) | 0x40u);
  }
  return ushort((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Keys and values of all pages: [page][attention layer][keys | values][kv head][token][kHeadSize], bf16.
inline ulong page_offset(constant AttendArgs& a, uint page, uint which, uint kv_head) {
  const ulong plane = ulong(kPageTokens) * kHeadSize;
  return ((ulong(page) * a.attention_layers + a.layer) * 2 + which) * a.kv_heads * plane + kv_head * plane;
}
