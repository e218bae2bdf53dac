// What goes into the next pass: data in, data out. Nothing here knows a device, a thread or a clock.
//
// Every sequence that decodes gets one row. Prefill shares one budget of `chunk` rows a pass, so that the
// step of a running answer is never longer than one chunk, whatever else is being read. Chunks end at
// absolute multiples of `chunk` (or at an end of the prompt's own), never where a companion left room: the
// rows that are computed together are the same for a prompt alone and in company. Rows that are read as
// single ones (engine/reading.h) take longer: so many as a slice may have of them use up the budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lily {

// A running sequence as the passes submitted so far leave it.
struct SequenceProgress {
  uint32_t prompt = 0;       // tokens to read before the first token is sampled
  uint32_t absorbed = 0;     // of them, read
  uint32_t end = 0;          // where the next slice must end, above `absorbed`; 0 = only with the prompt
  bool single = false;       // the next slice is read as single rows
  bool wants_token = false;  // the prompt is read and another token may be sampled
  uint64_t last_turn = 0;    // the last pass that read a chunk of it; at first the last pass before it came
};

// One sequence's part of the next pass.
struct Assignment {
  size_t sequence = 0;  // index into the running sequences
  uint32_t begin = 0;   // of its prompt: tokens [begin, begin + rows)
  uint32_t rows = 0;    // 0 = one decode row
};

// The decode rows first, then the chunks. Prefilling sequences take turns: first who waited longest, among
// equals who has not begun, then by index. The first of the line is always served, so with n prefilling
// sequences each reads a chunk in every n passes; others join as long as their whole chunk fits the budget.
// At most chunk + sequences - 1 rows in all. Empty when there is nothing to do.
// `single_rows`: of a slice that is read as single rows; no more than `chunk`.
std::vector<Assignment> schedule(std::span<const SequenceProgress> running, uint32_t chunk,
                                 uint32_t single_rows = 1);

}  // namespace lily
