// The five blocks on the CPU, written over the kernels of one instruction set. Matrices are packed when they
// are loaded, small unquantised tensors converted; the embedding is read where it is mapped. Rows are
// computed kBatchRows at a time, so that the workspace does not grow with the chunk; a row's arithmetic does
// not depend on the others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <variant>
#include <vector>

#include "backends/cpu/kernels.h"
#include "backends/cpu/packed_model.h"
#include "backends/cpu/products.h"
#include "backends/host/blocks.h"
#include "base/aligned.h"
#include "base/function_ref.h"
#include "base/threads.h"

namespace lily::cpu {

inline constexpr uint32_t kBatchRows = 2048;
// Width of the residual stream in the larger shape, for rows on the stack.
inline constexpr uint32_t kMaxHidden = 2048;
static_assert(kQwen36.hidden <= kMaxHidden && kTiny.hidden <= kMaxHidden);

// Rows of one sequence within a batch: rows [first_row, first_row + rows) of the batch are rows
// [skipped, skipped + rows) of the segment.
struct Piece {
  host::HostState* state;
  uint32_t first_row;
  uint32_t rows;
  uint32_t position;  // of the first of them
  uint32_t skipped;
  bool provisional;
  bool halves;  // a long segment, and the kernels have products of bf16 for it
};

// The unquantised tensors of a layer as floats.
struct DeltaNetDense {
  std::vector<float> input_norm;
  std::vector<float> conv;        // [kConvKernel][conv_channels]
  std::vector<float> decay_rate;  // exp(A_log)
  std::vector<float> dt_bias;
  std::vector<float> norm;
};
struct AttentionDense {
  std::vector<float> input_norm;
  std::vector<float> q_norm;
  std::vector<float> k_norm;
};
struct LayerDense {
  std::variant<DeltaNetDense, AttentionDense> mixer;
  std::vector<float> post_norm;
};

class CpuBlocks final : public host::Blocks {
 public:
  // `packed_cache`: a file that is mapped instead of packing, or written if it is not there or does not fit;
  // "" = none.
  CpuBlocks(const Kernels& kernels, unsigned threads, std::filesystem::path packed_cache = {});
  ~CpuBlocks() override;

  MemoryNeed estimate(const ModelWeights& weights, const Plan& plan) const override;
  Result<void> load(const ModelWeights& weights, const Plan& plan,
                    FunctionRef<void(double)> progress) override;
  Result<DeviceLimits> measure_limits() override;
  DType kv_type() const override { return DType::bf16; }

  void embed(std::span<const int32_t> ids, float* stream) override;
  void delta_net(uint32_t layer, std::span<const host::Segment> segments, float* stream) override;
  void attention(uint32_t layer, std::span<const host::Segment> segments, float* stream) override;
  uint32_t moe(uint32_t layer, std::span<const host::Segment> segments, float* stream) override;
  void head(std::span<const uint32_t> rows, const float* stream, float* logits) override;

  unsigned threads() const { return pool_.size(); }
  const Kernels& kernels() const { return kernels_; }

 private:
  struct DeltaNetBatch;
  struct AttentionBatch;
  struct AttendItem;
  struct AttendGroup;
  struct KeysValues;
  struct MoeBatch;

  Result<PackedModel> packed_model(FunctionRef<void(double)> progress);
  // Floats of workspace that the largest batch of any block takes.
  size_t workspace_floats(const PackedModel& forms, const Plan& plan) const;
  // Norms `rows` rows of the stream and lays them out for their readers.
  void prepare_normed(const float* stream, uint32_t rows, std::span<const float> norm,
                      const PreparedRows& to);

  void delta_net_batch(const DeltaNetBatch& batch, float* stream);
  void delta_pieces(const DeltaNetBatch& batch);
  void delta_chunk(const DeltaNetBatch& batch, const Piece& piece, uint32_t k_head, uint32_t first,
                   uint32_t rows) const;
  void run_delta_rule(const DeltaChunksArgs& heads, bool chunks) const;
  void keep_heads(host::HostState& state, uint32_t layer, uint32_t k_head, uint32_t row) const;
  void attention_batch(const AttentionBatch& batch, float* stream);
  void write_keys_values(const AttentionBatch& batch, const Piece& piece, uint32_t row) const;
  void attend_rows(const AttentionBatch& batch);
  void run_items(const AttentionBatch& batch);
  KeysValues keys_values(const AttentionBatch& batch, const AttendItem& item, uint32_t tokens) const;
  void group_items();
  void attend_group(const AttentionBatch& batch, const AttendGroup& group) const;
  void attend_item(const AttentionBatch& batch, const AttendItem& item, size_t index) const;
  void combine(const AttentionBatch& batch, const AttendItem& item, size_t first) const;
  void moe_batch(const MoeBatch& batch, float* stream);
  void route(const MoeBatch& batch, uint32_t row) const;
  void group_by_expert(const MoeBatch& batch);
  Run run_of_pair(const MoeBatch& batch, uint32_t pair) const;
  void add_gate_up(Product product, SwiGlu then);
  void route_all(const MoeBatch& batch);
  void experts(const MoeBatch& batch);

  const Kernels& kernels_;
  ThreadPool pool_;
  const std::filesystem::path packed_cache_;
  const ModelWeights* weights_ = nullptr;
  Shape shape_ = kTiny;
  uint32_t max_rows_ = 0;      // of a batch
  uint32_t max_partials_ = 0;  // attention items computed at once
  PackedModel packed_;
  std::vector<LayerDense> dense_;
  std::vector<float> head_norm_;
  AlignedArray<float> workspace_;
  std::vector<Piece> pieces_;
  std::vector<Product> products_;
  std::vector<SwiGlu> swiglus_;  // of products_, which point to them
  std::vector<AttendItem> items_;
  std::vector<AttendGroup> groups_;  // of items_
  std::vector<uint8_t> chosen_;      // [experts]: whether the current moe() chose it
};

// Cuts segments into runs of at most kBatchRows rows and calls body(pieces, first row of the stream, rows).
// With has_halves, long segments and others are never in one run, and pieces of the long ones end where
// their segment does or at a multiple of kDeltaChunk of the positions: a cut there changes no bit.
void for_batches(std::span<const host::Segment> segments, bool has_halves, std::vector<Piece>& pieces,
                 FunctionRef<void(std::span<const Piece>, uint32_t, uint32_t)> body);

}  // namespace lily::cpu
