#include "model/plan.h"

#include <bit>

namespace lily {
namespace {

Result<void> check_range(std::string_view what, uint32_t value, uint32_t low, uint32_t high) {
  if (value < low || value > high) {
    return fail(ErrorKind::invalid_input, "{}: expected {} to {}, found {}", what, low, high, value);
  }
  return {};
}

}  // namespace

uint64_t Plan::kv_bytes_per_token() const {
  return uint64_t{shape.attention_layers()} * 2 * shape.kv_width() * size_of(kv_type);
}

uint64_t Plan::recurrent_bytes() const {
  const uint64_t delta = uint64_t{shape.v_heads} * Shape::kKeyDim * Shape::kValueDim;
  const uint64_t conv = uint64_t{shape.conv_channels()} * (Shape::kConvKernel - 1);
  return shape.delta_net_layers() * (delta + conv) * sizeof(float);
}

Result<Plan> make_plan(const Shape& shape, const PlanOptions& options) {
  LILY_TRY_VOID(check_layers(shape.layers));
  LILY_TRY_VOID(check_range("context length", options.context, Limits::kMinContext, Limits::kMaxContext));
  LILY_TRY_VOID(check_range("parallel sequences", options.sequences, 1, Limits::kMaxSequences));
  LILY_TRY_VOID(check_range("prefill chunk", options.chunk, 1, Limits::kMaxChunk));
  return Plan{.shape = shape,
              .context = options.context,
              .sequences = options.sequences,
              .chunk = options.chunk,
              .max_rows = options.chunk + options.sequences - 1,
              .kv_type = DType::bf16};
}

uint32_t row_bucket(uint32_t rows) { return std::bit_ceil(rows); }

}  // namespace lily
