// What the caller's side of a state knows of it: the rows submitted for it, and which of them are
// provisional.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backends/host/pass_check.h"

namespace lily::host {

struct StateProgress {
  // Drafts have their memory from the start: none is allocated while passes run.
  explicit StateProgress(uint32_t room) : max_tokens(room) { draft_tokens.reserve(Limits::kMaxDraft); }

  uint32_t max_tokens;
  uint32_t length = 0;
  uint32_t draft_rows = 0;            // of an unsettled Keep::until_accept pass: part of `length`
  std::vector<int32_t> draft_tokens;  // theirs
  bool samples = false;               // the last submitted pass samples a token for this state

  // A submitted slice: `tokens` are its ids (rows of them), or empty for the sampled token.
  void submitted(std::span<const int32_t> tokens, Keep keep, bool samples_now);
  void resumed(uint32_t checkpoint_length, bool checkpoint_samples);
  // The first `rows` of the provisional ones stay. With fewer than all, what their pass sampled is forgotten.
  void accepted(uint32_t rows);
  StateFacts facts(bool failed) const;
};

}  // namespace lily::host
