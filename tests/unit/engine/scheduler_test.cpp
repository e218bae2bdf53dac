#include "engine/scheduler.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

namespace lily {
namespace {

SequenceProgress reading(uint32_t prompt, uint32_t absorbed, uint64_t last_turn = 0) {
  return {.prompt = prompt, .absorbed = absorbed, .wants_token = false, .last_turn = last_turn};
}
SequenceProgress decoding() { return {.prompt = 5, .absorbed = 5, .wants_token = true, .last_turn = 1}; }
SequenceProgress done() { return {.prompt = 5, .absorbed = 5, .wants_token = false, .last_turn = 1}; }

using Rows = std::vector<std::tuple<size_t, uint32_t, uint32_t>>;
Rows rows_of(const std::vector<Assignment>& pass) {
  Rows rows;
  for (const Assignment& a : pass) rows.emplace_back(a.sequence, a.begin, a.rows);
  return rows;
}

TEST(Scheduler, NothingToDoIsAnEmptyPass) {
  EXPECT_TRUE(schedule({}, 8).empty());
  const std::vector<SequenceProgress> running{done(), done()};
  EXPECT_TRUE(schedule(running, 8).empty());
}

TEST(Scheduler, EveryDecodingSequenceHasARowBesidesOneChunk) {
  const std::vector<SequenceProgress> running{reading(100, 0), decoding(), done(), decoding()};
  EXPECT_EQ(rows_of(schedule(running, 8)), (Rows{{1, 0, 0}, {3, 0, 0}, {0, 0, 8}}));
}

TEST(Scheduler, ChunksEndAtAbsoluteMultiples) {
  // A sequence that resumed at 13 reads up to 16 first; the last chunk ends with the prompt.
  EXPECT_EQ(rows_of(schedule(std::vector{reading(100, 13)}, 8)), (Rows{{0, 13, 3}}));
  EXPECT_EQ(rows_of(schedule(std::vector{reading(100, 96)}, 8)), (Rows{{0, 96, 4}}));
  EXPECT_EQ(rows_of(schedule(std::vector{reading(96, 88)}, 8)), (Rows{{0, 88, 8}}));
}

TEST(Scheduler, ShortPromptsShareAPassButNoChunkIsCut) {
  // 3 + 4 rows fit the 8; the third prompt's chunk of 8 does not and waits whole.
  const std::vector<SequenceProgress> running{reading(3, 0), reading(100, 0), reading(4, 0)};
  EXPECT_EQ(rows_of(schedule(running, 8)), (Rows{{0, 0, 3}, {2, 0, 4}}));
}

TEST(Scheduler, SlicesEndWhereTheyMust) {
  SequenceProgress prompt = reading(100, 8);
  prompt.end = 13;
  EXPECT_EQ(rows_of(schedule(std::vector{prompt}, 8)), (Rows{{0, 8, 5}}));
  prompt.end = 30;
  EXPECT_EQ(rows_of(schedule(std::vector{prompt}, 8)), (Rows{{0, 8, 8}}));
}

// So many of them as a slice may have cost as much as a chunk, wherever they begin.
TEST(Scheduler, SingleRowsCostMore) {
  SequenceProgress said = reading(100, 7);
  said.single = true;
  EXPECT_EQ(rows_of(schedule(std::vector{said}, 16, 4)), (Rows{{0, 7, 4}}));
  said.end = 9;
  EXPECT_EQ(rows_of(schedule(std::vector{said, reading(100, 8, 1), said}, 16, 4)),
            (Rows{{0, 7, 2}, {2, 7, 2}}))
      << "nothing is left for the 8 rows that came last";
  EXPECT_EQ(rows_of(schedule(std::vector{said, reading(100, 8)}, 16, 4)), (Rows{{0, 7, 2}, {1, 8, 8}}));
}

TEST(Scheduler, WhoWaitedLongestIsFirst) {
  const std::vector<SequenceProgress> running{reading(100, 8, 7), reading(100, 8, 5), reading(100, 8, 6)};
  EXPECT_EQ(rows_of(schedule(running, 8)), (Rows{{1, 8, 8}}));
}

TEST(Scheduler, ANewcomerGoesBeforeThePromptThatWasJustServed) {
  const std::vector<SequenceProgress> running{reading(1000, 80, 10), reading(100, 0, 10)};
  EXPECT_EQ(rows_of(schedule(running, 8)), (Rows{{1, 0, 8}}));
}

// Plays the engine: applies passes until nothing is left, with random arrivals, and checks each pass.
RC_GTEST_PROP(Scheduler, NobodyWaitsLongerThanTheOthersTakeTurns, ()) {
  const auto chunk = *rc::gen::inRange<uint32_t>(1, 33);
  const auto slots = *rc::gen::inRange<size_t>(1, 9);
  const auto prompts = *rc::gen::container<std::vector<uint32_t>>(rc::gen::inRange<uint32_t>(1, 200));
  struct Running {
    SequenceProgress progress;
    uint32_t answer;
    uint32_t waited = 0;
  };
  std::vector<Running> running;
  size_t next = 0;
  uint64_t pass_number = 0;
  while (next < prompts.size() || !running.empty()) {
    while (running.size() < slots && next < prompts.size()) {
      running.push_back({reading(prompts[next], 0, pass_number), 1 + prompts[next] % 7});
      ++next;
    }
    std::vector<SequenceProgress> view;
    for (const Running& r : running) view.push_back(r.progress);
    const std::vector<Assignment> pass = schedule(view, chunk);
    RC_ASSERT(!pass.empty());
    ++pass_number;
    std::map<size_t, Assignment> given;
    uint32_t total = 0, prefill = 0;
    for (const Assignment& a : pass) {
      RC_ASSERT(given.emplace(a.sequence, a).second);
      total += std::max(a.rows, 1U);
      prefill += a.rows;
    }
    RC_ASSERT(prefill <= chunk);
    RC_ASSERT(total <= chunk + slots - 1);
    for (size_t i = 0; i < running.size(); ++i) {
      Running& r = running[i];
      const auto found = given.find(i);
      if (r.progress.wants_token) {
        RC_ASSERT(found != given.end());  // a running answer is in every pass
        if (--r.answer == 0) r.progress.wants_token = false;
      } else if (found != given.end()) {
        const Assignment& a = found->second;
        RC_ASSERT(a.begin == r.progress.absorbed);
        const uint32_t end = a.begin + a.rows;
        RC_ASSERT(a.begin % chunk == 0U);
        RC_ASSERT(end % chunk == 0U || end == r.progress.prompt);
        r.progress.absorbed = end;
        r.progress.last_turn = pass_number;
        r.progress.wants_token = end == r.progress.prompt;
        r.waited = 0;
      } else {
        RC_ASSERT(++r.waited < slots);
      }
    }
    std::erase_if(running, [](const Running& r) {
      return r.progress.absorbed == r.progress.prompt && !r.progress.wants_token;
    });
  }
}

}  // namespace
}  // namespace lily
