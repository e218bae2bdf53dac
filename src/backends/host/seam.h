// What every backend checks at the seam, in the same words, and what becomes of a pass whose states are in a
// device's memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/function_ref.h"
#include "model/tensors.h"

namespace lily::host {

// load(): once, and weights of as many layers as the plan has.
Result<void> check_load(bool loaded, const ModelWeights& weights, const Plan& plan);
// new_state()
Result<void> check_new_state(bool loaded, const Plan& plan, uint32_t max_tokens);
// read_checkpoint()
Result<void> check_stored(bool loaded, const Plan& plan, const StoredForm& form);

// Of a state; `draft_rows` are provisional.
Result<void> check_save(bool failed, uint32_t draft_rows);
Result<void> check_accept(bool failed, uint32_t draft_rows, uint32_t rows);
// `own`: the checkpoint, or null if it is not one of this state's backend and model.
Result<void> check_resume(const Checkpoint* own, uint32_t max_tokens);
// Of a checkpoint. write_rows(): aborts where the caller broke its contract.
void check_row_range(uint32_t begin, uint32_t end, uint32_t length);
// read_checkpoint() of a form that shares rows; `own`: its base, or null as above.
Result<void> check_base(const Checkpoint* own, const StoredForm& form);

// Sets the bit of each token of a prompt, in words of 32: for penalties. Ids beyond the vocabulary count for
// nothing.
void mark_tokens(std::span<const int32_t> prompt, uint32_t vocab, uint32_t* bits);

// The passes in flight: tickets count up, and are collected in the order of their submission.
class Tickets {
 public:
  Ticket next() const { return next_; }      // of the next pass that is submitted
  Ticket oldest() const { return oldest_; }  // that is not collected; next() where there is none
  Result<void> check_idle() const;           // measure_limits(): with no pass in flight
  Result<void> check_submit(bool loaded) const;
  Result<void> check_collect(Ticket ticket) const;
  Ticket submit() { return next_++; }
  void collect() { ++oldest_; }

 private:
  Ticket next_ = 0;
  Ticket oldest_ = 0;
};

// A pass has run or failed: its states have one pass less in flight, and those for which `usable(slice)` is
// false are unusable until they are resumed. Slices are SliceRows.
template <class Slice, class Usable>
void leave_states(const std::vector<Slice>& slices, Usable&& usable) {
  for (const Slice& slice : slices) {
    --slice.flags->in_flight;
    if (!usable(slice) && slice.flags->resumed == slice.resumed) {
      slice.flags->failed = true;
    }
  }
}

// What a pass that has run put out, in the order of the pass: its logits are moved. `token_at(i)` is the
// token that was sampled from wanted row i.
template <class Slice, class TokenAt>
std::vector<SliceOutput> outputs_of(const std::vector<Slice>& slices, std::vector<std::vector<float>>& logits,
                                    TokenAt&& token_at) {
  std::vector<SliceOutput> outputs(slices.size());
  for (const Slice& slice : slices) {
    SliceOutput& out = outputs[slice.slice];
    out.finite = !(slice.flags->failed && slice.flags->resumed == slice.resumed);
    out.logits = std::move(logits[slice.slice]);
    if (slice.samples && out.finite) {
      out.token = token_at(slice.first_wanted + slice.wanted - 1);
    }
  }
  return outputs;
}

// Bytes that a pass of `rows` rows reads of the weights: a layer's experts as `experts(layer)` counts them.
uint64_t weight_bytes_read(const ModelWeights& weights, const Plan& plan, uint32_t rows, bool head,
                           FunctionRef<uint32_t(uint32_t)> experts);
// And of its states.
template <class Slice>
uint64_t state_bytes_read(const std::vector<Slice>& slices, const Plan& plan) {
  uint64_t bytes = 0;
  for (const Slice& slice : slices) {
    bytes += plan.state_bytes(slice.position + slice.rows);
  }
  return bytes;
}

}  // namespace lily::host
