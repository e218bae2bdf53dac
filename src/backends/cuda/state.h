// What one conversation owns in device memory: a block of recurrent states, pages of keys and values that
// states and checkpoints share by reference (a shared page is copied before it is written), and a side block
// with the page table, the token sampled last and the counts that penalties look at.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backends/cuda/device.h"
#include "backends/cuda/kernel_args.h"
#include "backends/host/pass_rows.h"
#include "backends/host/state_progress.h"
#include "model/plan.h"

namespace lily::cuda {

// Sizes and pools that all states of a backend share.
struct StateContext {
  StateContext(const Plan& plan, Meter& meter, Stream queue);

  Plan plan;
  Dims dims;
  Stream queue;
  std::shared_ptr<DevicePool> recurrent;
  std::shared_ptr<DevicePool> pages;
  std::shared_ptr<DevicePool> sides;
  // Waits for the passes that are submitted and marks the states that they left unusable.
  std::function<void()> settle;

  static uint64_t recurrent_bytes(const Dims& dims);
  static uint64_t page_bytes(const Dims& dims);
  // Side block: page table, then the sampled token, the bits of the prompt, the counts of the answer.
  static uint64_t table_bytes(const Plan& plan);
  static uint64_t bits_offset(const Plan& plan);
  static uint64_t counts_offset(const Plan& plan);
  static uint64_t side_bytes(const Plan& plan);
  static uint64_t bytes_per_sequence(const Plan& plan);
};

using host::StateFlags;

class CudaCheckpoint final : public Checkpoint {
 public:
  CudaCheckpoint(std::shared_ptr<const StateContext> context, uint32_t length)
      : context_(std::move(context)), length_(length) {}
  uint32_t length() const override { return length_; }
  // Pages count in full although others may share them.
  uint64_t bytes() const override;
  // Per page its bytes, the last one whole; the rest is the recurrent block. The counts of an answer and its
  // last token are not stored: a checkpoint that was read starts a new answer. Both wait for what is queued.
  Result<void> write_rows(uint32_t begin, uint32_t end, ByteSink& sink) const override;
  Result<void> write_rest(ByteSink& sink) const override;
  static Result<std::unique_ptr<CudaCheckpoint>> read(const std::shared_ptr<const StateContext>& context,
                                                      const StoredForm& form, ByteSource& source);

 private:
  friend class CudaState;
  std::shared_ptr<const StateContext> context_;
  uint32_t length_;
  bool samples_ = false;
  BlockRef recurrent_;
  std::vector<BlockRef> pages_;
  BlockRef side_;
};

class CudaState final : public SequenceState {
 public:
  static Result<std::unique_ptr<CudaState>> create(std::shared_ptr<const StateContext> context,
                                                   uint32_t max_tokens);

  uint32_t length() const override { return progress_.length; }
  Result<std::unique_ptr<Checkpoint>> save() override;
  Result<void> resume(const Checkpoint& checkpoint) override;
  Result<void> accept(uint32_t rows) override;
  Result<void> begin_answer(std::span<const int32_t> prompt) override;

  // For whoever submits passes.
  const StateContext& context() const { return *context_; }
  const std::shared_ptr<StateFlags>& flags() const { return flags_; }
  host::StateFacts facts() const { return progress_.facts(flags_->failed); }
  // Pages for rows [position, position + rows) that are this state's own, and for a provisional pass the
  // blocks that keep the recurrent states after each row but the last.
  Result<void> begin_rows(uint32_t position, uint32_t rows, bool provisional);
  // Notes a submitted slice. Drafted tokens but the first count as the answer's.
  Result<void> submitted(std::span<const int32_t> tokens, Keep keep, bool samples);

  Segment segment(uint32_t first_row, uint32_t rows, uint32_t position) const;
  float* recurrent() const { return reinterpret_cast<float*>(recurrent_.get()); }
  // Where the recurrent states after row `row` of the provisional pass go; null for the last row.
  float* kept(uint32_t row) const;
  int32_t* sampled() const;
  uint32_t* prompt_bits() const;
  uint32_t* counts() const;

 private:
  CudaState(std::shared_ptr<const StateContext> context, uint32_t max_tokens);
  void wait() const;
  Result<void> upload_table(size_t first, size_t count);
  // Adds `change` to the counts of the drafted tokens [from, draft), and to that of the sampled one if asked.
  Result<void> count(size_t from, int32_t change, bool sampled);

  std::shared_ptr<const StateContext> context_;
  std::shared_ptr<StateFlags> flags_ = std::make_shared<StateFlags>();
  host::StateProgress progress_;
  BlockRef recurrent_;
  BlockRef side_;
  std::vector<BlockRef> pages_;
  std::vector<uint16_t*> table_;  // what the device's page table holds
  std::vector<BlockRef> kept_;
};

}  // namespace lily::cuda
