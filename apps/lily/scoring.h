// Running token ids through a loaded model for their logits, a piece at a time: what `lily eval` measures.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "apps/lily/model_source.h"
#include "base/function_ref.h"

namespace lily::app {

// Feeds `tokens` from an empty state in chunks of the plan and hands out the logits of each row in order:
// row `i` is what the model expects after tokens[0..i]. The row is valid during the call.
using RowSink = FunctionRef<Result<void>(size_t row, std::span<const float> logits)>;
Result<void> score(const LoadedModel& model, std::span<const int32_t> tokens, RowSink sink);

// KL(p || q) of the softmaxes of two rows of logits, in double.
double kl_divergence(std::span<const float> p, std::span<const float> q);

// The first index of the largest.
int32_t argmax(std::span<const float> row);

}  // namespace lily::app
