// A submitted pass: its rows put in order, the tables that kernels read, and its encoding.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "backends/host/pass_rows.h"
#include "backends/metal/model.h"
#include "backends/metal/state.h"

namespace lily::metal {

// The tables of one pass in flight, in memory that host and device share.
struct PassTables {
  std::unique_ptr<Buffer> ids;      // i32 [max_rows], in the order of the stream
  std::unique_ptr<Buffer> wanted;   // u32 [max_rows]: rows of the stream whose logits are computed
  std::unique_ptr<Buffer> turns;    // f32 [max_rows][32 cosines | 32 sines]
  std::unique_ptr<Buffer> pages;    // u32: page numbers of each sequence
  std::unique_ptr<Buffer> bias;     // BiasEntry
  std::unique_ptr<Buffer> allowed;  // u32: masks
  std::unique_ptr<Buffer> experts;  // u32 [layer][max_rows][8], written by the device
  std::unique_ptr<Buffer> results;  // i32 [max_rows][token, usable], written by the device
};

struct SliceRecord : host::SliceRows<MetalState> {
  View table;  // page numbers
};

struct PassRecord {
  std::vector<SliceRecord> slices;  // in the order of their rows
  uint32_t rows = 0;
  uint32_t wanted = 0;
  PassTables tables;
  std::unique_ptr<Commands> commands;  // the last of the pass
  bool settled = true;
  Result<void> outcome{};                  // of the submission, then of the pass
  double seconds = 0;                      // of the command buffers that were waited for
  std::vector<std::vector<float>> logits;  // by slice of the pass
};

// Encodes passes. A pass is one command buffer, unless rows of logits or the stream itself have to be seen.
class PassRunner {
 public:
  // Longer slices take the kernels for many rows, those that do not say (ReadAs).
  static constexpr uint32_t kSmallSlice = DeviceModel::kSmallRows;

  PassRunner(Device& device, DeviceModel& model, StateContext& context);
  static uint64_t workspace_bytes(const Plan& plan);
  Result<void> prepare(PassRecord& record);  // allocates its tables
  Result<void> prepare();

  // Encodes and commits a checked pass. What fails is noted in the record.
  void run(const Pass& pass, PassRecord& record);
  // Waits for a pass that was run.
  static void finish(PassRecord& record);

 private:
  struct Piece {  // a batch and where its segments begin
    Batch batch;
    size_t first_segment;
    size_t segments;
  };
  Result<void> encode(const Pass& pass, PassRecord& record);
  Result<void> fill_tables(const Pass& pass, PassRecord& record);
  Result<void> fill_sampling(const Sampling& sampling, const PassRecord& record);
  void plan_batches(const PassRecord& record);
  void embed(const PassRecord& record);
  void run_step(const Step& step, const PassRecord& record);
  void keep_states(uint32_t layer, const Batch& batch, const PassRecord& record);
  Result<void> run_head(const Pass& pass, PassRecord& record);
  void sample(const Pass& pass, const PassRecord& record, uint32_t first, uint32_t count);
  Result<void> probe(const Step& step, const Probe& see, PassRecord& record);
  // Runs what is encoded so far and begins a new command buffer.
  Result<void> flush(PassRecord& record);
  struct SampledRow;
  std::vector<SampledRow> sampled_rows(const Pass& pass, const PassRecord& record, uint32_t first,
                                       uint32_t count) const;

  Device& device_;
  DeviceModel& model_;
  StateContext& context_;
  const Plan plan_;
  const std::vector<Step> program_;
  const Pipeline* adjust_ = nullptr;
  const Pipeline* choose_ = nullptr;
  const Pipeline* count_ = nullptr;
  std::unique_ptr<Buffer> adjusted_;  // [kHeadRows][vocab]
  std::unique_ptr<Buffer> best_;      // [kHeadRows][slices of a row]
  std::unique_ptr<Commands> commands_;
  std::vector<Segment> segments_;
  std::vector<Piece> pieces_;
  // Of the pass that is encoded, by slice of the pass: where its biases and its mask are.
  struct SamplingViews {
    View bias, allowed;
  };
  std::vector<SamplingViews> sampling_;
  size_t bias_used_ = 0;
  size_t allowed_used_ = 0;
};

}  // namespace lily::metal
