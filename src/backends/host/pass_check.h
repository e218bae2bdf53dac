// What a slice must keep to whatever memory its state is in. A message names the slice by its index in the
// pass.
#pragma once

#include "backend/backend.h"

namespace lily::host {

Result<void> check_sampling(size_t index, const Sampling& sampling, uint32_t vocab);
// Ids, rows of logits and the length of a draft.
Result<void> check_tokens(size_t index, const Slice& slice, const Plan& plan);

}  // namespace lily::host
