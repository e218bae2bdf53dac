// To how many signed bytes the input of a product is quantised, by what the matrix is for: the one place that
// decides it, for all instruction sets. One byte is half the multiply-adds of two, and 0.55 % off instead of
// 0.002 %. docs/NUMERICS.md ("Quantised inputs") has the errors, docs/BENCHMARKS.md what each kind costs and
// spares.
#pragma once

#include <cstdint>

namespace lily::cpu {

enum class MatrixKind : uint8_t {
  delta_qkv,      // in_proj_qkv
  delta_z,        // in_proj_z
  delta_gates,    // in_proj_a, in_proj_b
  delta_out,      // out_proj
  attention_qkv,  // q_proj, k_proj, v_proj
  attention_out,  // o_proj
  router,         // and the gate of the shared expert
  gate_up,        // of the routed experts
  down,
  shared_gate_up,
  shared_down,
  head,
};

constexpr uint32_t input_digits(MatrixKind kind) { return kind == MatrixKind::gate_up ? 1 : 2; }

// Of which matrices the products with the rows of a long segment may be made of bf16 instead, where a
// processor has tiles for that: inputs are 0.165 % off, weights 0.176 %. Whether a row is multiplied so
// depends on what its slice says (ReadAs), or else on the length of its own segment, and on nothing else.
constexpr bool halves_for_long_segments(MatrixKind kind) {
  return kind != MatrixKind::router && kind != MatrixKind::delta_gates && kind != MatrixKind::head;
}
inline constexpr uint32_t kLongSegment = 32;  // rows, where the slice does not say

}  // namespace lily::cpu
