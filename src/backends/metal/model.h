// The loaded model and its workspace: encodes the five blocks over batches of rows. Every block ends with a
// barrier.
#pragma once

#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "backend/backend.h"
#include "backends/metal/pipelines.h"
#include "backends/metal/residency.h"
#include "model/plan.h"

namespace lily::metal {

// The rows of one sequence in a batch.
struct Segment {
  View recurrent;      // of the sequence: StateContext says how it is laid out
  View table;          // numbers of its pages
  uint32_t first_row;  // of the stream
  uint32_t rows;
  uint32_t position;  // of the first row
};

// Consecutive rows of the stream that go through a block together: rows of short slices, each computed as
// though it were alone, or a piece of one long slice.
struct Batch {
  uint32_t first_row = 0;
  uint32_t rows = 0;
  bool many = false;  // through the kernels for many rows
  std::span<const Segment> segments{};
};

// What a pass brings along.
struct PassViews {
  View pages;    // the buffer of all keys and values
  View turns;    // [row of the stream][32 cosines | 32 sines]
  View experts;  // [layer][max_rows][8]: written by the router
};

// A matrix with the kernels that multiply with it.
struct Linear {
  Matrix matrix;
  const Pipeline* few[3];  // of 1, 2 and 4 rows
  const Pipeline* many;
};

struct DeltaNetLayer {
  uint32_t index;  // among the delta-net layers
  Linear qkv, z, a, b, out;
  View input_norm, taps, rates, dt_bias, norm;
};
struct AttentionLayer {
  uint32_t index;
  Linear q, k, v, out;
  View input_norm, q_norm, k_norm;
};
struct MoeLayer {
  Linear router, shared_gate;
  Matrix gate, up, down;  // of the experts
  Matrix shared_gate_proj, shared_up, shared_down;
  const Pipeline *few_enter, *few_enter_shared, *few_leave;
  const Pipeline *many_enter, *many_enter_shared, *many_leave, *many_leave_shared;
  View post_norm;
};
struct Layer {
  std::variant<DeltaNetLayer, AttentionLayer> mixer;
  MoeLayer moe;
};

class DeviceModel {
 public:
  static constexpr uint32_t kSmallRows = 16;    // most rows of a batch of short slices
  static constexpr uint32_t kPieceRows = 1024;  // most rows of a piece of a long slice
  static constexpr uint32_t kHeadRows = 8;      // rows whose logits are computed together

  // Layout of the recurrent states of a sequence: for each delta-net layer the delta-rule state
  // [v_heads][128][128], then the last three inputs of the convolution, oldest first.
  static uint64_t delta_bytes(const Shape& shape);
  static uint64_t conv_bytes(const Shape& shape);
  static uint64_t recurrent_bytes(const Shape& shape);

  static MemoryNeed estimate(const ModelWeights& weights, const Plan& plan, Mappings mappings,
                             const Traits& traits);
  // Compiles the kernels, maps or copies the weights and allocates the workspace. `weights` may go afterwards
  // unless they are mapped.
  static Result<std::unique_ptr<DeviceModel>> load(Device& device, const ModelWeights& weights,
                                                   const Plan& plan, Mappings mappings,
                                                   FunctionRef<void(double)> progress);
  ~DeviceModel();

  // `ids` of `rows` rows from `first_row` on.
  void embed(Commands& commands, const View& ids, uint32_t first_row, uint32_t rows);
  void delta_net(Commands& commands, uint32_t layer, const Batch& batch);
  void attention(Commands& commands, uint32_t layer, const Batch& batch, const PassViews& pass);
  void moe(Commands& commands, uint32_t layer, const Batch& batch, const PassViews& pass);
  // Logits of at most kHeadRows rows of the stream, whose numbers are in `rows`.
  void head(Commands& commands, const View& rows, uint32_t count);
  // `bytes` (a multiple of 16) of another buffer.
  void copy(Commands& commands, const View& from, const View& to);

  const Plan& plan() const { return plan_; }
  Pipelines& pipelines() const { return *pipelines_; }
  const std::unique_ptr<Buffer>& stream() const { return stream_; }
  const std::unique_ptr<Buffer>& logits() const { return logits_; }

 private:
  struct Workspace;
  DeviceModel(const Plan& plan, std::unique_ptr<Pipelines> pipelines);
  Result<void> allocate(Device& device);
  Result<void> make_kernels(const ModelWeights& weights);
  Result<void> make_layer_kernels(const LayerWeights& weights, Layer& layer);
  Result<void> make_moe_kernels(const MoeWeights& weights, MoeLayer& layer);
  // Kernels of a matrix whose inputs are normed where there are few rows, or whose outputs are added.
  enum class Use : uint8_t { normed, added };
  Result<void> make_linear(const AffineMatrix& weights, Use use, Linear& linear);

  View rows_of(const std::unique_ptr<Buffer>& stream, const Batch& batch) const;
  // y[row] = or += linear x[row] for a batch; `norm` belongs to few rows. Strides in floats.
  struct Rows {
    View x, y;
    uint32_t count, x_stride, y_stride;
    // Outputs of enter(), which knows the rest.
    static Rows to(const View& y, uint32_t y_stride) { return {{}, y, 0, 0, y_stride}; }
  };
  void project(Commands& commands, const Linear& linear, const Rows& rows, const View& norm) const;
  void project_many(Commands& commands, const Linear& linear, const Rows& rows) const;
  void norm_rows(Commands& commands, const View& x, const View& weight, uint32_t rows) const;
  // The products of a normed input, few rows or many.
  void enter(Commands& commands, std::span<const std::pair<const Linear*, Rows>> products, const Batch& batch,
             const View& norm) const;
  void delta_few(Commands& commands, const DeltaNetLayer& layer, const Batch& batch);
  void delta_many(Commands& commands, const DeltaNetLayer& layer, const Batch& batch);
  void experts_few(Commands& commands, const MoeLayer& layer, const Batch& batch, const View& chosen);
  void experts_many(Commands& commands, const MoeLayer& layer, const Batch& batch, const View& chosen);

  friend struct Wiring;  // model.cpp: where each tensor of the checkpoint goes
  const Plan plan_;
  std::unique_ptr<Pipelines> pipelines_;
  Residency residency_;
  Matrix table_;
  MatrixFormat table_format_{};
  std::vector<Layer> layers_;
  View final_norm_;
  Linear lm_head_;

  std::unique_ptr<Buffer> stream_, logits_;
  std::unique_ptr<Workspace> space_;

  // Kernels that have no format.
  struct Kernels;
  std::unique_ptr<Kernels> kernels_;
};

}  // namespace lily::metal
