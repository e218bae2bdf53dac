// A submitted pass: its rows put in order, the tables that kernels read, and its execution.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "backends/cuda/model.h"
#include "backends/cuda/state.h"
#include "backends/host/pass_rows.h"

namespace lily::cuda {

// The tables of a pass, in page-locked memory for each pass that may be in flight and once on the device.
class PassTables {
 public:
  static constexpr uint32_t kCopies = Backend::kMaxInFlight;
  Result<void> allocate(uint32_t rows, Meter& meter, Stream queue);
  uint32_t rows() const { return rows_; }
  static uint64_t bytes(uint32_t rows);

  struct View {
    Segment* segments;
    uint32_t* row_segment;
    int32_t* ids;
    const int32_t** sampled;
    uint32_t* wanted;    // rows of the stream whose logits are computed
    SampleRow* samples;  // how, one for each of them
  };
  View host(uint32_t copy) const;
  View device() const;
  Result<void> upload(uint32_t copy, Stream queue) const;

  // What comes back: the sampled tokens and whether logits were finite.
  int32_t* tokens() const { return results_.as<int32_t>(); }
  uint32_t* finite() const { return results_.as<uint32_t>() + rows_; }
  int32_t* host_tokens(uint32_t copy) const { return host_results_[copy].as<int32_t>(); }
  uint32_t* host_finite(uint32_t copy) const { return host_results_[copy].as<uint32_t>() + rows_; }
  Result<void> download(uint32_t copy, Stream queue) const;
  // For a kernel that does it.
  HostCopyArgs to_upload(uint32_t copy) const;

 private:
  View view(uint8_t* base) const;
  uint32_t rows_ = 0;
  DeviceMemory tables_;
  DeviceMemory results_;
  std::array<PinnedMemory, kCopies> host_;
  std::array<PinnedMemory, kCopies> host_results_;
};

using SliceRecord = host::SliceRows<CudaState>;

struct PassRecord {
  std::vector<SliceRecord> slices;  // in the order of their rows
  uint32_t rows = 0;
  uint32_t wanted = 0;
  const PassTables* tables = nullptr;
  uint32_t copy = 0;
  bool heads = false;
  Event start, end;
  bool settled = true;
  Result<void> outcome{};                  // of the submission
  std::vector<std::vector<float>> logits;  // by slice of the pass
  const uint32_t* experts_used = nullptr;  // [layers][DeviceModel::kExpertWords]
};

// Queues passes on the stream of the model.
class PassRunner {
 public:
  static constexpr uint32_t kSmallSlice =
      16;  // most rows of a slice that goes through the kernels for few rows, if it does not say (ReadAs)

  PassRunner(DeviceModel& model, const Plan& plan, Meter& meter);
  ~PassRunner();
  static uint64_t workspace_bytes(const Plan& plan);
  // Allocates tables and captures a graph for every number of rows that a decoding pass may have.
  Result<void> prepare();

  // Queues a checked pass. What fails is noted in the record.
  void run(const Pass& pass, PassRecord& record, uint32_t copy);

 private:
  struct Graph;
  Result<void> queue_pass(const Pass& pass, PassRecord& record);
  Result<void> fill_tables(const Pass& pass, PassRecord& record);
  Result<void> fill_sample(const Sampling& sampling, const SliceRecord& slice, SampleRow& row);
  void plan_batches(const PassRecord& record);
  Result<void> run_steps(const Pass& pass, const PassRecord& record);
  Result<void> run_step(const Step& step, const PassRecord& record);
  Result<void> keep_states(uint32_t layer, const Batch& batch, const PassRecord& record);
  Result<void> run_head(const PassRecord& record, PassRecord& to);
  Result<void> probe(const Step& step, const Probe& see, const PassRecord& record);
  SampleArgs sampling(uint32_t first, uint32_t rows, const PassTables& tables) const;
  Result<void> capture(uint32_t rows, uint32_t copy);
  HostCopyArgs report_experts(uint32_t copy) const;
  bool is_decode(const Pass& pass, const PassRecord& record) const;

  DeviceModel& model_;
  const Plan plan_;
  Meter& meter_;
  const std::vector<Step> program_;
  PassTables small_, large_;
  DeviceMemory bias_, allowed_;
  std::vector<BiasEntry> host_bias_;
  uint32_t bias_used_ = 0;
  uint32_t allowed_used_ = 0;
  std::array<std::vector<std::unique_ptr<Graph>>, PassTables::kCopies> graphs_;  // [copy][rows - 1]
  std::array<PinnedMemory, PassTables::kCopies> experts_used_;
  std::vector<Batch> batches_;
  std::vector<float> probed_;
};

}  // namespace lily::cuda
