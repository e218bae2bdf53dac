// The one interface of what depends on the instruction set: a table of functions per ISA, chosen once at run
// time. Everything else of the backend is written over it. A function computes its part on the calling
// thread; the result of a row depends neither on the other rows of the call nor on how outputs are split over
// calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/tensors.h"

namespace lily::cpu {

// Widest input of a matrix that the kernels accept (the model's widest is 4,096).
inline constexpr uint32_t kMaxCols = 8192;
// Query heads that share one key-value head, in both shapes.
inline constexpr uint32_t kGroupHeads = 8;
static_assert(kQwen36.q_heads == kGroupHeads * kQwen36.kv_heads &&
              kTiny.q_heads == kGroupHeads * kTiny.kv_heads);
// Tokens of one key-value block (backends/host/state.h): the step of the online softmax.
inline constexpr uint32_t kAttendTokens = 64;

// What of a matrix decides how its input has to lie.
struct InputFormat {
  uint32_t cols;
  uint32_t bits;
  uint32_t group;
  bool operator==(const InputFormat&) const = default;
};

struct PrepareArgs {
  InputFormat format;
  const float* x;  // [cols]
  float* out;      // [prepared_floats(format)]
};

// y[i][o] (+)= sum_c x[i][c] * w[o][c], for outputs [begin, end):
//   sum over groups g of scale[o][g] * (q[o]·x)_g + bias[o][g] * (sum of x)_g.
struct MatmulArgs {
  const AffineMatrix* matrix;  // of one expert
  const float* x;              // prepared rows
  size_t x_stride;             // floats from one prepared row to the next
  const uint32_t* x_rows;      // row i reads prepared row x_rows[i]; nullptr: row i
  uint32_t rows;
  uint32_t begin;  // outputs
  uint32_t end;
  float* y;         // row i, output o: y[i * y_stride + o]
  size_t y_stride;  // floats
  bool accumulate;  // add to y instead of overwriting it
};

struct NormArgs {
  const float* x;
  const float* weight;
  float* out;  // may be x
  uint32_t count;
};

// out = rms_norm(x) * weight * silu(z) over kValueDim elements (facts: equation 17).
struct GatedNormArgs {
  const float* x;
  const float* z;
  const float* weight;
  float* out;  // may be x
};

// Causal depthwise convolution of width 4 and SiLU over `channels` neighbouring channels of `rows` rows, in
// place (equation 11).
struct ConvArgs {
  float* x;  // [rows][stride]
  size_t stride;
  uint32_t rows;
  uint32_t channels;    // a multiple of 16
  const float* weight;  // [4 taps][width], last tap on the current row
  float* state;         // [3][width], oldest first; updated
  size_t width;         // floats from one tap, or one row of the state, to the next
};

// The gated delta rule of one v head over `rows` rows (equation 15). q and k are normalised, q scaled.
struct DeltaArgs {
  float* state;  // [kKeyDim][kValueDim], updated
  uint32_t rows;
  const float* q;  // row r at q + r * stride, likewise k and v
  const float* k;
  const float* v;
  size_t stride;
  const float* decay;  // exp(g) of row r at decay[r * gate_stride]
  const float* beta;
  size_t gate_stride;
  float* out;  // [rows][out_stride], kValueDim each; may be v
  size_t out_stride;
};

// Attention of kGroupHeads query heads of one row over tokens [0, tokens) of consecutive blocks: the partial
// sums of an online softmax in steps of kAttendTokens tokens.
struct AttendArgs {
  const float* q;                // [kGroupHeads][kHeadDim], scaled by kHeadDim^-0.5
  const std::byte* const* keys;  // per block: bf16 [kAttendTokens][kHeadDim]
  const std::byte* const* values;
  uint32_t tokens;
  float* out;      // [kGroupHeads][kHeadDim]: sum of exp(score - largest) * value
  float* largest;  // [kGroupHeads]
  float* total;    // [kGroupHeads]: sum of exp(score - largest)
};

struct Kernels {
  std::string_view name;
  // Floats of one prepared row; a multiple of 16.
  size_t (*prepared_floats)(const InputFormat& format);
  void (*prepare)(const PrepareArgs& args);
  void (*matmul)(const MatmulArgs& args);
  void (*rms_norm)(const NormArgs& args);
  void (*gated_norm)(const GatedNormArgs& args);
  void (*conv_silu)(const ConvArgs& args);
  void (*delta_rule)(const DeltaArgs& args);
  void (*attend)(const AttendArgs& args);
  // `count` is a multiple of 16 in all of these.
  void (*l2_normalize)(float* x, uint32_t count, float scale);            // x *= scale / sqrt(sum x^2 + 1e-6)
  void (*silu_multiply)(float* gate, const float* up, uint32_t count);    // gate = silu(gate) * up
  void (*sigmoid_multiply)(float* x, const float* gate, uint32_t count);  // x *= sigmoid(gate)
  void (*multiply_add)(float* y, const float* x, float factor, uint32_t count);  // y += factor * x
  void (*to_bf16)(const float* x, std::byte* out, uint32_t count);               // round to nearest even
  // The instruction that products of many rows are made of, and its peak on one thread: does `rounds` rounds
  // of independent multiply-adds in registers and returns how many that were. Reads sink[0] and writes to it,
  // so that nothing can be left out.
  std::string_view multiply;
  uint64_t (*multiply_add_peak)(uint64_t rounds, float* sink);
};

// The variants; a null pointer where the compiler's target has none.
extern const Kernels kScalarKernels;
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();

// Every variant compiled in, the fastest first, and whether this processor can run it.
struct IsaListing {
  const Kernels* kernels;
  bool usable;
};
std::vector<IsaListing> list_isas();

// The variant called `name`, or the fastest usable one for "". An unknown or unusable name is an error that
// lists the usable ones.
Result<const Kernels*> choose_kernels(std::string_view name);

// "AMD EPYC", from the processor itself; "cpu" where it does not say.
std::string processor_name();

}  // namespace lily::cpu
