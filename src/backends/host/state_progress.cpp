#include "backends/host/state_progress.h"

#include <algorithm>

namespace lily::host {

void StateProgress::submitted(std::span<const int32_t> tokens, Keep keep, bool samples_now) {
  const auto rows = static_cast<uint32_t>(std::max<size_t>(tokens.size(), 1));
  length += rows;
  samples = samples_now;
  if (keep == Keep::until_accept) {
    draft_rows = rows;
    draft_tokens.assign(tokens.begin(), tokens.end());
  }
}

void StateProgress::resumed(uint32_t checkpoint_length, bool checkpoint_samples) {
  length = checkpoint_length;
  samples = checkpoint_samples;
  draft_rows = 0;
}

void StateProgress::accepted(uint32_t rows) {
  if (rows < draft_rows) {
    samples = false;
    length -= draft_rows - rows;
  }
  draft_rows = 0;
}

StateFacts StateProgress::facts(bool failed) const {
  return {.failed = failed,
          .provisional = draft_rows != 0,
          .samples = samples,
          .length = length,
          .max_tokens = max_tokens};
}

}  // namespace lily::host
