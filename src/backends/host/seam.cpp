#include "backends/host/seam.h"

#include <algorithm>

#include "base/check.h"
#include "model/bytes.h"

namespace lily::host {
namespace {

Result<void> check_loaded(bool loaded) {
  return loaded ? Result<void>{} : fail(ErrorKind::invalid_input, "no model is loaded");
}

}  // namespace

Result<void> check_load(bool loaded, const ModelWeights& weights, const Plan& plan) {
  if (loaded) {
    return fail(ErrorKind::invalid_input, "this backend has loaded a model already");
  }
  if (weights.layers.size() != plan.shape.layers) {
    return fail(ErrorKind::invalid_input, "the plan is for {} layers, the weights have {}", plan.shape.layers,
                weights.layers.size());
  }
  return {};
}

Result<void> check_new_state(bool loaded, const Plan& plan, uint32_t max_tokens) {
  LILY_TRY_VOID(check_loaded(loaded));
  if (max_tokens < 1 || max_tokens > plan.context) {
    return fail(ErrorKind::limit, "a state has room for 1 to {} tokens, asked for {}", plan.context,
                max_tokens);
  }
  return {};
}

Result<void> check_stored(bool loaded, const Plan& plan, const StoredForm& form) {
  LILY_TRY_VOID(check_loaded(loaded));
  if (form.length < 1 || form.length > plan.context) {
    return fail(ErrorKind::limit, "a checkpoint holds 1 to {} tokens, asked for {}", plan.context,
                form.length);
  }
  return {};
}

Result<void> check_save(bool failed, uint32_t draft_rows) {
  if (failed) {
    return fail(ErrorKind::invalid_input, "cannot save a state that a failed pass left unusable");
  }
  if (draft_rows != 0) {
    return fail(ErrorKind::invalid_input, "cannot save a state with {} provisional rows: accept() them first",
                draft_rows);
  }
  return {};
}

Result<void> check_accept(bool failed, uint32_t draft_rows, uint32_t rows) {
  if (failed) {
    return fail(ErrorKind::invalid_input, "cannot accept rows of a state that a failed pass left unusable");
  }
  if (draft_rows == 0) {
    return fail(ErrorKind::invalid_input, "accept: the state has no provisional rows");
  }
  if (rows < 1 || rows > draft_rows) {
    return fail(ErrorKind::invalid_input, "accept: expected 1 to {} rows, found {}", draft_rows, rows);
  }
  return {};
}

Result<void> check_resume(const Checkpoint* own, uint32_t max_tokens) {
  if (own == nullptr) {
    return fail(ErrorKind::invalid_input, "the checkpoint is of another backend or model");
  }
  if (own->length() > max_tokens) {
    return fail(ErrorKind::limit, "the checkpoint holds {} tokens, the state has room for {}", own->length(),
                max_tokens);
  }
  return {};
}

void check_row_range(uint32_t begin, uint32_t end, uint32_t length) {
  LILY_CHECK(begin % Checkpoint::kRowUnit == 0 && begin <= end && end <= length &&
             (end % Checkpoint::kRowUnit == 0 || end == length));
}

Result<void> check_base(const Checkpoint* own, const StoredForm& form) {
  if (own == nullptr) {
    return fail(ErrorKind::invalid_input, "the checkpoint to share rows with is of another backend");
  }
  LILY_CHECK(form.shared % Checkpoint::kRowUnit == 0 && form.shared <= std::min(form.length, own->length()));
  return {};
}

void mark_tokens(std::span<const int32_t> prompt, uint32_t vocab, uint32_t* bits) {
  for (const int32_t token : prompt) {
    if (token >= 0 && static_cast<uint32_t>(token) < vocab) {
      bits[static_cast<size_t>(token) / 32] |= 1U << (token % 32);
    }
  }
}

Result<void> Tickets::check_idle() const {
  if (next_ != oldest_) {
    return fail(ErrorKind::invalid_input, "limits are measured with no pass in flight, {} are not collected",
                next_ - oldest_);
  }
  return {};
}

Result<void> Tickets::check_submit(bool loaded) const {
  LILY_TRY_VOID(check_loaded(loaded));
  if (next_ - oldest_ >= Backend::kMaxInFlight) {
    return fail(ErrorKind::limit, "{} passes are submitted and not collected", Backend::kMaxInFlight);
  }
  return {};
}

Result<void> Tickets::check_collect(Ticket ticket) const {
  if (ticket != oldest_ || ticket == next_) {
    return fail(ErrorKind::invalid_input, "ticket {} is not the oldest that waits to be collected", ticket);
  }
  return {};
}

uint64_t weight_bytes_read(const ModelWeights& weights, const Plan& plan, uint32_t rows, bool head,
                           FunctionRef<uint32_t(uint32_t)> experts) {
  uint64_t bytes = rows * (weights.embed.table.total_bytes() / plan.shape.vocab);
  for (uint32_t layer = 0; layer < plan.shape.layers; ++layer) {
    bytes += mixer_bytes(weights.layers[layer]) + moe_bytes(weights.layers[layer].moe, experts(layer));
  }
  return bytes + (head ? weights.head.norm.total_bytes() + weights.head.lm_head.total_bytes() : 0);
}

}  // namespace lily::host
