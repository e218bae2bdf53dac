// What host and kernels have to agree on: constants, the numbers of function constants, argument structs.
// Read by C++ and by the Metal compiler; only 4-byte members, so that the layout is the same in both.
#pragma once

#ifndef __METAL_VERSION__
#include <cstdint>
namespace lily::metal {
#define LILY_SHARED inline constexpr
#else
#define LILY_SHARED constant constexpr
#endif

LILY_SHARED uint32_t kHeadSize = 256;   // of an attention head
LILY_SHARED uint32_t kRotaryHalf = 32;  // pairs of a head that turn
LILY_SHARED uint32_t kGroupHeads = 8;   // query heads of a key-value head, in both shapes
LILY_SHARED uint32_t kDeltaSize = 128;  // of a key or value head of the delta net
LILY_SHARED uint32_t kConvTaps = 4;
LILY_SHARED uint32_t kTopExperts = 8;
LILY_SHARED uint32_t kPaths = 9;                   // the experts of a token and the shared one
LILY_SHARED uint32_t kPageTokens = 64;             // of a page of keys and values
LILY_SHARED uint32_t kAttendTokens = 256;          // positions that a threadgroup of `attend` takes at a time
LILY_SHARED uint32_t kAttendParts = 64;            // most parts that the positions of a row are cut into
LILY_SHARED uint32_t kPartFloats = kHeadSize + 2;  // of a part and head: weighted values, largest score, sum
LILY_SHARED uint32_t kSampleSlice = 2048;          // tokens that a threadgroup of `sample_adjust` takes
LILY_SHARED uint32_t kNoMask = 0xffffffffu;

// Outputs of a threadgroup of the kernels for few rows, and rows of inputs that a threadgroup takes.
LILY_SHARED uint32_t kProjectOutputs = 32;
LILY_SHARED uint32_t kExpertOutputs = 32;
// A tile of the kernels for many rows.
LILY_SHARED uint32_t kTileRows = 32;
LILY_SHARED uint32_t kTileOutputs = 64;
LILY_SHARED uint32_t kTileDepth = 32;
// Tokens of a chunk of the delta rule, and columns of the state that a threadgroup carries.
LILY_SHARED uint32_t kDeltaChunk = 32;
LILY_SHARED uint32_t kDeltaColumns = 32;
// Tokens of a threadgroup of prefill attention: with 8 heads each, 32 rows of queries.
LILY_SHARED uint32_t kQueryTokens = 4;
LILY_SHARED uint32_t kKeyTokens = 32;

// Types of scales and biases.
LILY_SHARED uint32_t kScaleBf16 = 0;
LILY_SHARED uint32_t kScaleF16 = 1;
LILY_SHARED uint32_t kScaleF32 = 2;

struct EmbedArgs {
  uint32_t hidden, vocab;
  uint32_t bits, group, scale_kind;
};

// y[row][output] = sum over cols of w x; rows of x and y have strides.
struct ProjectArgs {
  uint32_t outputs, cols, rows;
  uint32_t x_stride, y_stride;
};

struct NormArgs {
  uint32_t rows, width;
};

struct RouteArgs {
  uint32_t experts, rows;
};

struct ExpertArgs {
  uint32_t hidden, ffn, rows;
  uint32_t first_path;  // of the paths of this dispatch; a path from kTopExperts on is the shared expert
};

struct DeltaArgs {
  uint32_t k_heads, v_heads;
  uint32_t rows;        // of this sequence
  uint32_t chunks;      // of the delta rule
  uint32_t first_rows;  // rows of the first chunk: chunks begin at multiples of kDeltaChunk of the positions
};

struct AttendArgs {
  uint32_t q_heads, kv_heads;
  uint32_t layer, attention_layers;
  uint32_t rows, position;  // of this sequence, and of its first row
};

struct GroupArgs {
  uint32_t experts, rows;
};

struct CombineArgs {
  uint32_t hidden, rows;
};

struct CopyArgs {
  uint32_t count;  // floats
};

struct CountArgs {
  int32_t tokens[8];
  uint32_t count;
};

// How one row is sampled. seed and position are 64-bit numbers, low word first.
struct SampleArgs {
  uint32_t vocab;
  uint32_t mode;  // 0: none, 1: greedy, 2: random
  float temperature;
  uint32_t top_k;
  float top_p, min_p;
  float presence, frequency, repetition;
  uint32_t seed[2], position[2];
  uint32_t bias_count;
  uint32_t masked;
};

struct BiasEntry {
  int32_t token;
  float bias;
};

// The largest adjusted logit of a slice of a row.
struct SliceBest {
  float value;
  int32_t id;
  uint32_t usable;  // all logits of the slice are finite and none became NaN or +infinity
};

struct LimitArgs {
  uint32_t count;  // uint4 of a read, rounds of a multiplication
};

#ifndef __METAL_VERSION__
}  // namespace lily::metal
#endif
#undef LILY_SHARED
