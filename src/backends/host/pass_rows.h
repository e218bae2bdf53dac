// How a pass of slices becomes rows of a device's stream: for backends whose states are in a device's memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"

namespace lily::host {

// What a state shares with the passes that use it.
struct StateFlags {
  bool failed = false;     // a pass left the state unusable
  uint32_t resumed = 0;    // how often: a pass collected later says nothing of the state of now
  uint32_t in_flight = 0;  // passes submitted and not settled
};

inline uint32_t rows_of(const Slice& slice) {
  return slice.tokens.empty() ? 1 : static_cast<uint32_t>(slice.tokens.size());
}

// Whether a slice goes through the kernels for many rows, where by number those of up to `small` do not.
inline bool is_many(const Slice& slice, uint32_t small) {
  if (slice.keep == Keep::until_accept || slice.tokens.empty() || slice.read_as == ReadAs::single) {
    return false;
  }
  return slice.read_as == ReadAs::many || slice.tokens.size() > small;
}

template <class State>
struct SliceRows {
  State* state = nullptr;
  std::shared_ptr<StateFlags> flags;
  uint32_t resumed = 0;    // flags->resumed at submission
  uint32_t slice = 0;      // of the pass
  uint32_t first_row = 0;  // of the stream: not the order of the pass
  uint32_t rows = 0;
  uint32_t position = 0;
  bool feeds_sampled = false;
  bool many = false;  // goes through the kernels for many rows
  Keep keep = Keep::all_rows;
  uint32_t logits_rows = 0;
  uint32_t first_wanted = 0, wanted = 0;  // in the tables; the last is the one that is sampled, if any is
  bool samples = false;
};

struct RowCounts {
  uint32_t rows = 0;
  uint32_t wanted = 0;  // rows whose logits are computed
};

// Single rows first, then slices of several that are read as such, then drafts, then slices of many rows:
// batches are consecutive rows. `small`: as is_many(). Every state has one more pass in flight. `Record`
// derives from SliceRows<State> or is it.
template <class State, class Record>
RowCounts order_rows(const Pass& pass, uint32_t small, std::vector<Record>& records) {
  records.clear();
  RowCounts counts;
  const auto rank = [small](const Slice& slice) {
    return slice.keep == Keep::until_accept ? 2 : is_many(slice, small) ? 3 : rows_of(slice) == 1 ? 0 : 1;
  };
  for (int turn = 0; turn < 4; ++turn) {
    for (uint32_t i = 0; i < pass.slices.size(); ++i) {
      const Slice& slice = pass.slices[i];
      if (rank(slice) != turn) {
        continue;
      }
      auto* state = static_cast<State*>(slice.state);
      const uint32_t rows = rows_of(slice);
      const bool samples = slice.sampling.mode != Sampling::Mode::none;
      const uint32_t wanted = std::max<uint32_t>(slice.logits_rows, samples ? 1 : 0);
      SliceRows<State>& record = records.emplace_back();
      record = {.state = state,
                .flags = state->flags(),
                .resumed = state->flags()->resumed,
                .slice = i,
                .first_row = counts.rows,
                .rows = rows,
                .position = state->length(),
                .feeds_sampled = slice.tokens.empty(),
                .many = is_many(slice, small),
                .keep = slice.keep,
                .logits_rows = slice.logits_rows,
                .first_wanted = counts.wanted,
                .wanted = wanted,
                .samples = samples};
      ++state->flags()->in_flight;
      counts.rows += rows;
      counts.wanted += wanted;
    }
  }
  return counts;
}

}  // namespace lily::host
