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

#include "backends/cpu/packed.h"
#include "base/result.h"
#include "model/shape.h"

namespace lily::cpu {

// Widest input of a matrix that the kernels accept (the model's widest is 4,096).
inline constexpr uint32_t kMaxCols = 8192;
// Query heads that share one key-value head, in both shapes.
inline constexpr uint32_t kGroupHeads = 8;
static_assert(kQwen36.q_heads == kGroupHeads * kQwen36.kv_heads &&
              kTiny.q_heads == kGroupHeads * kTiny.kv_heads);
// Tokens of one key-value block (backends/host/state.h): the step of the online softmax.
inline constexpr uint32_t kAttendTokens = 64;
// A row's tokens are cut into partitions of this many blocks, whose partial sums are combined in order: the
// unit of parallel work of a long row, the same for any number of threads.
inline constexpr uint32_t kPartitionBlocks = 8;

// A prepared (quantised) row is words of signed bytes: per group its digits, the highest of all inputs
// first, of every 8 inputs the 4 even ones before the 4 odd ones. Then per group two floats, words of their
// own: the scale and the sum of what the digits stand for.
//   x[c] ~ scale * (256 * digit0[c] + digit1[c])    with two digits
//   x[c] ~ scale * digit0[c]                        with one
// A group with an input that is not finite has a scale that is not a number.
//
// With kHalves in the place of digits it is bf16 in the order of the inputs, and nothing else; 64 bytes
// behind the last row are read, too.
//
// Rows that are multiplied together lie in panels, their words interleaved: word w of row r of a panel of R
// rows is word w * R + r. Words of digits have Kernels::word bytes, 4 or 64. A panel takes the bytes of its
// rows, 64-byte aligned and padded.
static constexpr size_t prepared_scales(const InputFormat& f) {  // offset in bytes, of a row by itself
  return size_t{f.cols} * (f.digits == kHalves ? 2 : f.digits);
}
static constexpr size_t prepared_bytes(const InputFormat& f) {
  if (f.digits == kHalves) {
    return (prepared_scales(f) + 63) / 64 * 64;
  }
  return (prepared_scales(f) + f.cols / f.group * 2 * sizeof(float) + 63) / 64 * 64;
}

// How rows are cut into panels of at most `most`: as few as possible, and as even.
struct Panels {
  uint32_t count;
  uint32_t least;  // rows of a panel
  uint32_t more;   // so many panels, the first, have one row more
};
static constexpr Panels panels_of(uint32_t rows, uint32_t most) {
  const uint32_t count = (rows + most - 1) / most;
  const uint32_t least = count == 0 ? 0 : rows / count;
  return {count, least, rows - count * least};
}
static constexpr uint32_t rows_of_panel(const Panels& p, uint32_t panel) {
  return p.least + (panel < p.more ? 1 : 0);
}
static constexpr uint32_t panel_begin(const Panels& p, uint32_t panel) {  // its first row
  return panel * p.least + (panel < p.more ? panel : p.more);
}
static constexpr uint32_t panel_of_row(const Panels& p, uint32_t row) {
  const uint32_t in_larger = p.more * (p.least + 1);
  return row < in_larger ? row / (p.least + 1) : p.more + (row - in_larger) / p.least;
}

struct PrepareArgs {
  InputFormat format;
  const float* x;  // [end - begin]: columns [begin, end) of the row, both multiples of the group
  uint32_t begin;
  uint32_t end;
  std::byte* panel;
  uint32_t panel_rows;
  uint32_t row;   // in the panel
  uint32_t word;  // bytes; Kernels::word
};

// y[i][o] (+)= sum over groups g of scale[o][g] * (q[o]·x[i])_g + bias[o][g] * (sum of x[i])_g, for outputs
// [begin, end), the groups in order. The products of codes and digits are integers and exact.
struct MatmulArgs {
  const PackedMatrix* matrix;  // of one expert
  const std::byte* x;          // prepared rows, in panels of at most panel_rows(format, rows)
  size_t x_stride;             // bytes of a prepared row
  uint32_t rows;
  uint32_t begin;  // outputs; a multiple of kBlockOutputs
  uint32_t end;
  float* y;         // row i, output o: y[i * y_stride + o]
  size_t y_stride;  // floats
  bool accumulate;  // add to y instead of overwriting it
  // A hint: y is large, lies at multiples of 64 bytes and is not read soon, so that it need not go through
  // the caches.
  bool bypass = false;
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

// Causal depthwise convolution of width 4 and SiLU over `channels` neighbouring channels of `rows` rows
// (equation 11).
struct ConvArgs {
  const float* x;  // [rows][stride]
  size_t stride;
  float* out;  // [rows][out_stride]; may be x
  size_t out_stride;
  uint32_t rows;
  uint32_t channels;    // a multiple of 16
  const float* weight;  // [4 taps][width], last tap on the current row
  float* state;         // [3][width], oldest first; updated
  size_t width;         // floats from one tap, or one row of the state, to the next
};

// The gated delta rule of one v head over `rows` rows (equation 15). q and k are normalised, q scaled.
struct DeltaArgs {
  float* state;    // [kKeyDim][kValueDim], updated
  uint32_t rows;   // at least one
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

// The same of `heads` v heads that share q and k, by chunks of kDeltaChunk rows that begin at multiples of it
// of a sequence's positions: another order of sums (docs/NUMERICS.md).
inline constexpr uint32_t kDeltaChunk = 32;
struct DeltaChunksArgs {
  float* state;  // [heads][kKeyDim][kValueDim]
  uint32_t heads;
  uint32_t position;  // of the first row
  uint32_t rows;
  const float* q;  // as above; v head h at v + h * kValueDim, decay + h, beta + h, out + h * kValueDim
  const float* k;
  const float* v;
  size_t stride;
  const float* decay;
  const float* beta;
  size_t gate_stride;
  float* out;
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

// The same of consecutive rows of one sequence, each of which sees one token more than the row before, up to
// `most`: the whole partition in one step, with queries and weights of bf16 (docs/NUMERICS.md).
inline constexpr uint32_t kAttendRows = 32;
struct AttendRowsArgs {
  const float* q;  // row r: [kGroupHeads][kHeadDim] at q + r * q_stride, scaled
  size_t q_stride;
  uint32_t rows;                 // 1 to kAttendRows
  const std::byte* const* keys;  // of the blocks that the last row sees, at most kPartitionBlocks
  const std::byte* const* values;
  uint32_t tokens;          // that the first row sees, at least 1
  uint32_t most;            // at most kPartitionBlocks * kAttendTokens
  const uint32_t* partial;  // [rows]: which of the partial sums are the row's
  float* out;               // [partial][kGroupHeads][kHeadDim]
  float* largest;           // [partial][kGroupHeads]
  float* total;             // [partial][kGroupHeads]
};

inline constexpr size_t kPeakSink = 192;

struct Kernels {
  std::string_view name;
  uint32_t word;  // bytes of a word of digits
  bool halves;    // whether prepare and matmul take kHalves; words are then 64 bytes
  uint32_t (*panel_rows)(const InputFormat& format, uint32_t rows);  // the most of a panel, of a run of rows
  void (*prepare)(const PrepareArgs& args);
  void (*matmul)(const MatmulArgs& args);
  void (*rms_norm)(const NormArgs& args);
  void (*gated_norm)(const GatedNormArgs& args);
  void (*conv_silu)(const ConvArgs& args);
  void (*delta_rule)(const DeltaArgs& args);
  void (*delta_chunks)(const DeltaChunksArgs& args);  // null: delta_rule does it
  void (*attend)(const AttendArgs& args);
  void (*attend_rows)(const AttendRowsArgs& args);  // null: attend does it
  // `count` is a multiple of 16 in all of these.
  void (*l2_normalize)(float* x, uint32_t count, float scale);            // x *= scale / sqrt(sum x^2 + 1e-6)
  void (*silu_multiply)(float* gate, const float* up, uint32_t count);    // gate = silu(gate) * up
  void (*sigmoid_multiply)(float* x, const float* gate, uint32_t count);  // x *= sigmoid(gate)
  void (*multiply_add)(float* y, const float* x, float factor, uint32_t count);  // y += factor * x
  void (*to_bf16)(const float* x, std::byte* out, uint32_t count);               // round to nearest even
  // The instruction that products of many rows are made of, and its peak on one thread: does `rounds` rounds
  // of independent multiply-adds of codes of 4 bits and digits in registers and returns how many that were.
  // sink: kPeakSink bytes: 64 of codes, 64 of digits, 64 that are added to the digits (as words) after each
  // round. Writes the sum of all to it as a float, so that nothing can be left out.
  std::string_view multiply;
  uint64_t (*multiply_add_peak)(uint64_t rounds, std::byte* sink);
};

// The variants; a null pointer where the compiler's target has none.
extern const Kernels kScalarKernels;
const Kernels* avx2_kernels();
const Kernels* avxvnni_kernels();
const Kernels* avx512_kernels();
const Kernels* avx512vnni_kernels();
const Kernels* amx_kernels();       // AVX-512 VNNI with the products of amx_tiles()
const Kernels* amx_bf16_kernels();  // and of amx_bf16_tiles()
const Kernels* neon_kernels();
const Kernels* i8mm_kernels();

// What tiles of a processor replace of the table of its vectors.
struct TileKernels {
  uint32_t word;
  bool halves;
  uint32_t (*panel_rows)(const InputFormat& format, uint32_t rows);
  void (*matmul)(const MatmulArgs& args);
  void (*delta_chunks)(const DeltaChunksArgs& args);
  void (*attend_rows)(const AttendRowsArgs& args);
  std::string_view multiply;
  uint64_t (*multiply_add_peak)(uint64_t rounds, std::byte* sink);
};
const TileKernels* amx_tiles();
const TileKernels* amx_bf16_tiles();
Kernels with_tiles(std::string_view name, const TileKernels& tiles, const Kernels& vectors);

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
