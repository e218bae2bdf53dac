// A submitted pass: what was copied of it, the checks before it changes any state, and its execution.
#pragma once

#include <memory>
#include <vector>

#include "backends/host/blocks.h"
#include "sampling/sampler.h"

namespace lily::host {

struct SliceRecord {
  HostState* state;
  std::shared_ptr<PassGate> gate;
  uint32_t resumed;    // PassGate::resumed at submission
  uint32_t first_id;   // in PassRecord::ids
  uint32_t rows;       // at least 1
  uint32_t position;   // of the first row
  bool feeds_sampled;  // the one row is the token sampled last
  Keep keep;
  ReadAs read_as;
  uint32_t logits_rows;
  Sampling sampling;  // bias points into PassRecord::bias
};

struct PassRecord {
  std::vector<int32_t> ids;  // of all slices; a place is reserved for a sampled token
  std::vector<SliceRecord> slices;
  std::vector<LogitBias> bias;
  const std::atomic<bool>* cancel = nullptr;
  const Probe* probe = nullptr;
  bool done = false;
  Result<Output> result{};
};

// Copies a checked pass into `record`, enters the gates of its states and notes it in them.
void record_pass(const Pass& pass, PassRecord& record);

// Runs passes, one at a time.
class PassRunner {
 public:
  // Most rows of logits that are computed together.
  static constexpr uint32_t kHeadRows = 64;

  PassRunner(Blocks& blocks, const ModelWeights& weights, const Plan& plan);
  static uint64_t workspace_bytes(const Plan& plan);
  Result<void> allocate();

  // Leaves the outcome in `record.result`. A pass that fails as a whole makes all its states unusable; a
  // slice without finite logits, its own. A slice whose state was unusable already is left out and not
  // finite.
  void run(PassRecord& record);

 private:
  struct WantedRow {
    uint32_t row;    // of the stream
    uint32_t slice;  // of the pass
    uint32_t index;  // among the slice's rows of logits, if below its logits_rows
    bool sampled;
  };

  Result<Output> compute(PassRecord& record);
  Result<void> begin(PassRecord& record, Output& output);
  uint64_t step(const Step& step);
  Result<uint64_t> head(const PassRecord& record, Output& output);
  void take_logits(const PassRecord& record, const WantedRow& wanted, std::span<const float> logits,
                   Output& output);
  uint64_t state_bytes_read() const;

  Blocks& blocks_;
  const ModelWeights& weights_;
  const Plan plan_;
  const std::vector<Step> program_;
  AlignedArray<float> stream_;  // [max_rows][hidden]
  AlignedArray<float> logits_;  // [kHeadRows][vocab]
  // Of the pass that runs.
  std::vector<int32_t> ids_;
  std::vector<Segment> segments_;
  std::vector<WantedRow> wanted_;
  std::vector<uint32_t> head_rows_;
  SamplerScratch scratch_;
};

}  // namespace lily::host
