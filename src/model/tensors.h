// Every tensor of the model: where it lies (views), and the one table of names and shapes that binding,
// inspection, conversion and synthesis share. A view borrows from the mapped checkpoint; WeightFile
// (weights/bind.h) keeps it alive.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "model/shape.h"

namespace lily {

// A matrix in affine groups, or a stack of `experts` of them: w[r][c] = scale[r][c/group] * q[r][c] +
// bias[r][c/group]. Codes: each row is a little-endian stream of u32 words, element i of a row in bits
// [bits*i, bits*i + bits), lowest first. The data has no guaranteed alignment: read it with load_unaligned.
struct AffineMatrix {
  const std::byte* codes = nullptr;   // u32 [experts][rows][cols * bits / 32]
  const std::byte* scales = nullptr;  // scale_type [experts][rows][cols / group]
  const std::byte* biases = nullptr;  // scale_type [experts][rows][cols / group]
  DType scale_type = DType::bf16;     // bf16, f16 or f32
  uint32_t rows = 0;                  // outputs
  uint32_t cols = 0;                  // inputs
  uint32_t experts = 1;
  uint32_t bits = 4;    // 4 or 8
  uint32_t group = 64;  // 32, 64 or 128

  size_t code_bytes() const { return size_t{rows} * cols * bits / 8; }                        // of one expert
  size_t scale_bytes() const { return size_t{rows} * (cols / group) * size_of(scale_type); }  // of one expert
  size_t total_bytes() const { return experts * (code_bytes() + 2 * scale_bytes()); }
  AffineMatrix expert(uint32_t index) const;  // the matrix of one expert
};

// An unquantised tensor: norms, conv1d, A_log, dt_bias. Row-major; no guaranteed alignment.
struct DenseTensor {
  const std::byte* data = nullptr;
  DType type = DType::bf16;  // bf16, f16 or f32
  uint32_t rows = 0;
  uint32_t cols = 1;  // 1 for a vector

  size_t count() const { return size_t{rows} * cols; }
  size_t total_bytes() const { return count() * size_of(type); }
  float at(size_t index) const { return load_float(data, type, index); }
  std::vector<float> to_floats() const;
};

// Norm weights are used as they are: the +1 of the zero-centred published weights is folded in.
struct EmbedWeights {
  AffineMatrix table;  // [vocab, hidden]
};
struct DeltaNetWeights {
  DenseTensor input_norm;    // [hidden]
  AffineMatrix in_proj_qkv;  // [2*key_width + value_width, hidden]: rows q | k | v
  AffineMatrix in_proj_z;    // [value_width, hidden]
  AffineMatrix in_proj_a;    // [v_heads, hidden]
  AffineMatrix in_proj_b;    // [v_heads, hidden]
  DenseTensor conv1d;        // [conv_channels, kConvKernel], last tap on the current token
  DenseTensor a_log;         // [v_heads]
  DenseTensor dt_bias;       // [v_heads]
  DenseTensor norm;          // [kValueDim]
  AffineMatrix out_proj;     // [hidden, value_width]
};
struct AttentionWeights {
  DenseTensor input_norm;  // [hidden]
  AffineMatrix q_proj;     // [2*q_width, hidden]: per head 256 rows of q, then 256 of gate
  AffineMatrix k_proj;     // [kv_width, hidden]
  AffineMatrix v_proj;     // [kv_width, hidden]
  DenseTensor q_norm;      // [kHeadDim]
  DenseTensor k_norm;      // [kHeadDim]
  AffineMatrix o_proj;     // [hidden, q_width]
};
struct MoeWeights {
  DenseTensor post_norm;          // [hidden]: post_attention_layernorm
  AffineMatrix router;            // [experts, hidden]
  AffineMatrix gate;              // experts x [expert_ffn, hidden]
  AffineMatrix up;                // experts x [expert_ffn, hidden]
  AffineMatrix down;              // experts x [hidden, expert_ffn]
  AffineMatrix shared_gate;       // [1, hidden]: the scalar gate of the shared expert
  AffineMatrix shared_gate_proj;  // [shared_ffn, hidden]
  AffineMatrix shared_up_proj;    // [shared_ffn, hidden]
  AffineMatrix shared_down_proj;  // [hidden, shared_ffn]
};
struct LayerWeights {
  std::variant<DeltaNetWeights, AttentionWeights> mixer;
  MoeWeights moe;
};
struct HeadWeights {
  DenseTensor norm;      // [hidden]
  AffineMatrix lm_head;  // [vocab, hidden]
};
// The multi-token-prediction layer (facts: equations 23-26). Optional in a checkpoint.
struct MtpWeights {
  DenseTensor norm_embedding;  // [hidden]
  DenseTensor norm_hidden;     // [hidden]
  AffineMatrix fc;             // [hidden, 2*hidden]: columns embedding | hidden state
  AttentionWeights attention;
  MoeWeights moe;
  DenseTensor norm;  // [hidden]
};
struct ModelWeights {
  EmbedWeights embed;
  std::vector<LayerWeights> layers;
  HeadWeights head;
  std::optional<MtpWeights> mtp;
  // The views lie in a read-only mapped file: pages that are given back (release_pages) are read again if
  // touched. False for weights in memory.
  bool mapped = false;
  // What is packed need not be there any longer (dispose_pages): the file is nobody else's.
  bool disposable = false;
};

// One line of the table: a tensor (or quantised module), its place in ModelWeights and its shape.
struct TensorSite {
  // Module path as published, without the checkpoint's prefix: "model.layers.3.self_attn.q_proj", "lm_head",
  // "mtp.fc". A quantised module is stored as <name>.weight, .scales and .biases; a dense one under `name`
  // plus `suffix`.
  std::string name;
  std::string suffix;  // ".weight" or "" (A_log, dt_bias)
  std::variant<AffineMatrix*, DenseTensor*> view;
  uint32_t rows;                   // expected
  uint32_t cols;                   // expected; 1 for a vector
  uint32_t experts;                // expected; 1 unless a stack
  bool router_like = false;        // router and shared gate: 8 bits by default in the MLX recipe
  bool zero_centred_norm = false;  // published weights store w - 1
};

// ModelWeights sized for `shape` (layers with the right mixer each; mtp engaged if asked), all views empty.
ModelWeights empty_weights(const Shape& shape, bool with_mtp);

// The table, in the order of the file: embedding, layers 0.., final norm, head, MTP. The sites point into
// `weights`, which must outlive them and must have been made by empty_weights for the same shape.
std::vector<TensorSite> tensor_table(const Shape& shape, ModelWeights& weights);

}  // namespace lily
