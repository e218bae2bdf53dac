// The seam inside a host backend: HostBackend (host_backend.h) owns passes, states and sampling; an
// implementation of Blocks computes. reference/ and backends/cpu each have one. All rows of a pass go through
// a block together.
#pragma once

#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "backends/host/state.h"
#include "model/tensors.h"

namespace lily::host {

// The rows of one sequence in a pass: rows [first_row, first_row + rows) of the stream are its tokens at
// positions [position, position + rows).
struct Segment {
  HostState* state;
  uint32_t first_row;
  uint32_t rows;
  uint32_t position;
  // Keep::until_accept: after each row r of a delta_net block both states must be kept, by
  // state->keep_row(layer, r) or by writing to state->kept_conv(layer, r) and kept_delta(layer, r).
  bool provisional;
  ReadAs read_as = ReadAs::by_number;
};

class Blocks {
 public:
  virtual ~Blocks() = default;

  // Bytes beyond the mapped file and of workspace, from the plan alone.
  virtual MemoryNeed estimate(const ModelWeights& weights, const Plan& plan) const = 0;
  // Prepares (repacks) the weights and allocates the workspace for plan.max_rows. `weights` outlives the
  // blocks.
  virtual Result<void> load(const ModelWeights& weights, const Plan& plan,
                            FunctionRef<void(double)> progress) = 0;
  // As Backend::measure_limits(); backends/host/limits.h has what implementations share.
  virtual Result<DeviceLimits> measure_limits() = 0;
  // The element type of keys and values that attention() reads and writes: f32 or bf16.
  virtual DType kv_type() const = 0;

  // stream: [rows][hidden] float, updated in place by the middle three.
  virtual void embed(std::span<const int32_t> ids, float* stream) = 0;
  virtual void delta_net(uint32_t layer, std::span<const Segment> segments, float* stream) = 0;
  virtual void attention(uint32_t layer, std::span<const Segment> segments, float* stream) = 0;
  // Returns how many distinct experts the rows were routed to: what had to be read.
  virtual uint32_t moe(uint32_t layer, std::span<const Segment> segments, float* stream) = 0;
  // logits: [rows.size()][vocab], of the given rows of the stream.
  virtual void head(std::span<const uint32_t> rows, const float* stream, float* logits) = 0;
};

}  // namespace lily::host
