// Properties of the whole model on kTiny, of every implementation behind its backend.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/blocks/rig.h"
#include "tests/support/oracle.h"

namespace lily::test {
namespace {

using Tokens = std::vector<int32_t>;
using Logits = std::vector<float>;

const RandomWeights& tiny_weights() {
  static const RandomWeights weights(kTiny, {.seed = 11});
  return weights;
}

Tokens prompt(size_t count, uint64_t seed = 1) {
  Tokens tokens;
  for (size_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(mix(seed * 1000 + i) % kTiny.vocab));
  }
  return tokens;
}

Sampling greedy() {
  Sampling sampling;
  sampling.mode = Sampling::Mode::greedy;
  return sampling;
}

// A loaded backend.
struct Model {
  explicit Model(const Implementation& implementation, unsigned threads = 2, uint32_t chunk = 512) {
    const auto plan = make_plan(kTiny, {.context = 1024, .sequences = 8, .chunk = chunk});
    EXPECT_TRUE(plan.has_value());
    auto made = implementation.make_backend(threads, tiny_weights().get(), *plan);
    EXPECT_TRUE(made.has_value()) << (made ? "" : made.error().message);
    backend = *std::move(made);
  }

  std::unique_ptr<SequenceState> state() const { return *backend->new_state(1024); }

  Output run(const std::vector<Slice>& slices) const {
    const auto ticket = backend->submit({.slices = slices});
    EXPECT_TRUE(ticket.has_value()) << (ticket ? "" : ticket.error().message);
    auto output = backend->collect(*ticket);
    EXPECT_TRUE(output.has_value()) << (output ? "" : output.error().message);
    return *std::move(output);
  }

  // The logits of every row of `tokens`, fed in pieces of `chunk`.
  Logits feed(SequenceState& to, const Tokens& tokens, size_t chunk) const {
    Logits all;
    for (size_t first = 0; first < tokens.size(); first += chunk) {
      const auto count = static_cast<uint32_t>(std::min(chunk, tokens.size() - first));
      const auto out =
          run({{.state = &to, .tokens = std::span(tokens).subspan(first, count), .logits_rows = count}});
      all.insert(all.end(), out.slices[0].logits.begin(), out.slices[0].logits.end());
    }
    return all;
  }

  // `count` tokens sampled greedily, each fed as the empty slice.
  Tokens decode(SequenceState& from, int count) const {
    Tokens tokens;
    for (int i = 0; i < count; ++i) {
      tokens.push_back(run({{.state = &from, .sampling = greedy()}}).slices[0].token);
    }
    return tokens;
  }

  std::unique_ptr<Backend> backend;
};

// The largest distance of two rows of logits.
double worst_row(const Logits& found, const Logits& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double worst = 0;
  for (size_t r = 0; r < expected.size() / kTiny.vocab; ++r) {
    worst = std::max(worst, distance<float>(row_of(found, r, kTiny.vocab), row_of(expected, r, kTiny.vocab)));
  }
  return worst;
}

class ModelTest : public ::testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    if (!GetParam().unusable.empty()) {
      GTEST_SKIP() << GetParam().unusable;
    }
  }
  const Tolerances& tolerance() const { return GetParam().tolerances; }
};
INSTANTIATE_TEST_SUITE_P(Host, ModelTest, ::testing::ValuesIn(implementations()), ImplementationName());

TEST_P(ModelTest, LogitsAreThoseOfTheEquations) {
  const Model model(GetParam());
  const Oracle oracle(kTiny, tiny_weights().get());
  const Tokens tokens = prompt(40);
  const auto state = model.state();
  const Logits found = model.feed(*state, tokens, 512);
  OracleState expected(kTiny);
  std::vector<double> distances;
  for (size_t r = 0; r < tokens.size(); ++r) {
    distances.push_back(distance<double>(row_of(found, r, kTiny.vocab), oracle.step(expected, tokens[r])));
  }
  // A token whose experts are chosen by less than the rounding error may go another way, and those after it
  // see that: the median row has to be within the tolerance.
  std::nth_element(distances.begin(), distances.begin() + 20, distances.end());
  EXPECT_LE(distances[20], tolerance().model);
}

TEST_P(ModelTest, PrefillInAnyChunksIsTokenByToken) {
  const Model model(GetParam());
  const Tokens tokens = prompt(140);
  const auto one_by_one = model.state();
  const Logits expected = model.feed(*one_by_one, tokens, 1);
  for (const size_t chunk : {7U, 64U, 512U}) {
    const auto state = model.state();
    const double limit = tolerance().worst_row > 0 ? tolerance().worst_row : tolerance().model;
    EXPECT_LE(worst_row(model.feed(*state, tokens, chunk), expected), limit) << chunk;
  }
}

// The reference computes each row by itself: not nearly, but exactly the same.
TEST(ReferenceModel, PrefillInAnyChunksIsBitIdentical) {
  const Model model(implementations()[0]);
  const Tokens tokens = prompt(70);
  const auto one_by_one = model.state();
  const Logits expected = model.feed(*one_by_one, tokens, 1);
  for (const size_t chunk : {7U, 64U, 512U}) {
    const auto state = model.state();
    EXPECT_TRUE(model.feed(*state, tokens, chunk) == expected) << chunk;
  }
}

// A checkpoint after a prompt, and what its own state says when it goes on with other tokens.
struct Saved {
  Saved(const Model& model, size_t length, const Tokens& next) {
    const auto state = model.state();
    model.feed(*state, prompt(length), 64);
    Result<std::unique_ptr<Checkpoint>> made = state->save();
    EXPECT_TRUE(made.has_value()) << made.error().text();
    checkpoint = *std::move(made);
    expected = model.feed(*state, next, 7);
  }
  std::unique_ptr<Checkpoint> checkpoint;
  Logits expected;
};

// What a state that held something else before says to `next` once it has resumed `checkpoint`.
Logits resumed(const Model& model, const Checkpoint& checkpoint, const Tokens& next) {
  const auto other = model.state();
  model.feed(*other, prompt(20, 3), 64);
  EXPECT_TRUE(other->resume(checkpoint).has_value());
  return model.feed(*other, next, 7);
}

TEST_P(ModelTest, AResumedCheckpointContinuesExactly) {
  const Model model(GetParam());
  const Tokens next = prompt(30, 2);
  for (const size_t length : {1U, 64U, 100U}) {
    const Saved saved(model, length, next);
    EXPECT_TRUE(resumed(model, *saved.checkpoint, next) == saved.expected) << length;
  }
}

// Keeps what is written, and gives it back.
class Stored final : public ByteSink, public ByteSource {
 public:
  Result<void> write(std::span<const std::byte> bytes) override {
    all_.insert(all_.end(), bytes.begin(), bytes.end());
    return {};
  }
  Result<void> read(std::span<std::byte> into) override {
    if (into.size() > all_.size() - done_) return fail(ErrorKind::io, "nothing is left");
    std::copy_n(all_.begin() + static_cast<ptrdiff_t>(done_), into.size(), into.begin());
    done_ += into.size();
    return {};
  }
  bool used_up() const { return done_ == all_.size(); }
  const std::vector<std::byte>& all() const { return all_; }

 private:
  std::vector<std::byte> all_;
  size_t done_ = 0;
};

TEST_P(ModelTest, AStoredCheckpointContinuesExactly) {
  const Model model(GetParam());
  const Tokens next = prompt(12, 2);
  for (const uint32_t length : {1U, 64U, 100U}) {
    const Saved saved(model, length, next);
    for (const uint32_t shared : {0U, length / Checkpoint::kRowUnit * Checkpoint::kRowUnit}) {
      Stored stored;
      ASSERT_TRUE(saved.checkpoint->write_rows(shared, length, stored).has_value());
      ASSERT_TRUE(saved.checkpoint->write_rest(stored).has_value());
      const auto again = model.backend->read_checkpoint(
          {.length = length, .shared = shared, .base = saved.checkpoint.get()}, stored);
      ASSERT_TRUE(again.has_value()) << again.error().text();
      EXPECT_TRUE(stored.used_up());
      EXPECT_TRUE(resumed(model, **again, next) == saved.expected) << length << " " << shared;
    }
  }
}

// While passes run and states grow; what was read and dropped meanwhile is given back.
TEST_P(ModelTest, CheckpointsAreStoredAndReadByOtherThreadsBesidePasses) {
  const Model model(GetParam());
  const auto original = model.state();
  model.feed(*original, prompt(70), 70);
  auto saved = original->save();
  ASSERT_TRUE(saved.has_value());
  const Logits expected = model.feed(*original, prompt(5, 2), 5);
  std::vector<std::unique_ptr<SequenceState>> others(8);
  for (auto& state : others) state = model.state();
  std::unique_ptr<Checkpoint> again;
  std::atomic<bool> over = false;
  std::thread disk([&, checkpoint = *std::move(saved)]() mutable {
    std::vector<std::byte> first;
    do {
      Stored stored;
      EXPECT_TRUE(checkpoint->write_rows(0, 70, stored).has_value());
      EXPECT_TRUE(checkpoint->write_rest(stored).has_value());
      if (first.empty()) first = stored.all();
      EXPECT_TRUE(stored.all() == first);
      auto read = model.backend->read_checkpoint({.length = 70}, stored);
      EXPECT_TRUE(read.has_value());
      again = *std::move(read);  // the one before ends here
      Stored copy;               // of one that no state has resumed yet
      EXPECT_TRUE(again->write_rows(0, 70, copy).has_value());
      EXPECT_TRUE(again->write_rest(copy).has_value());
      EXPECT_TRUE(copy.all() == first);
    } while (!over);
    checkpoint.reset();
  });
  for (const auto& state : others) model.feed(*state, {7}, 1);
  over = true;
  disk.join();
  // Rows for which there is a base are shared, also with one that no state has resumed.
  Stored stored;
  ASSERT_TRUE(again->write_rows(64, 70, stored).has_value());
  ASSERT_TRUE(again->write_rest(stored).has_value());
  const auto shares =
      model.backend->read_checkpoint({.length = 70, .shared = 64, .base = again.get()}, stored);
  ASSERT_TRUE(shares.has_value());
  const auto other = model.state();
  ASSERT_TRUE(other->resume(*again).has_value());
  EXPECT_TRUE(model.feed(*other, prompt(5, 2), 5) == expected);
  again.reset();
  ASSERT_TRUE(other->resume(**shares).has_value());
  EXPECT_TRUE(model.feed(*other, prompt(5, 2), 5) == expected);
}

TEST_P(ModelTest, WhatEndedCheckpointsHeldIsGivenBack) {
  const Model model(GetParam());
  const auto state = model.state();
  model.feed(*state, prompt(10), 10);
  const uint64_t before = model.backend->state_bytes();
  auto saved = state->save();
  ASSERT_TRUE(saved.has_value());
  Stored stored;
  ASSERT_TRUE((*saved)->write_rows(0, 10, stored).has_value());
  ASSERT_TRUE((*saved)->write_rest(stored).has_value());
  auto read = model.backend->read_checkpoint({.length = 10}, stored);
  ASSERT_TRUE(read.has_value());
  EXPECT_GT(model.backend->state_bytes(), before + (*saved)->bytes());
  std::thread([ends = *std::move(saved), too = *std::move(read)]() mutable {
    ends.reset();
    too.reset();
  }).join();
  EXPECT_EQ(model.backend->state_bytes(), before);
}

// ---- What a device says of its reading (backend.h, ReadingTraits) --------------------------------------
// Feeds `tokens` in slices that end at `ends` (ascending, the last is all of them); their logits follow.
void feed_until(const Model& model, SequenceState& to, const Tokens& tokens, const std::vector<size_t>& ends,
                ReadAs read_as, Logits& logits) {
  for (const size_t end : ends) {
    const auto slice = std::span(tokens).subspan(to.length(), end - to.length());
    const auto out = model.run({{.state = &to,
                                 .tokens = slice,
                                 .logits_rows = static_cast<uint32_t>(slice.size()),
                                 .read_as = read_as}});
    logits.insert(logits.end(), out.slices[0].logits.begin(), out.slices[0].logits.end());
  }
}

// What a state says that has read `tokens` so: the first `many` of them as many rows in slices that end at
// `ends`, the others as single rows, `each` at a time; and then decodes.
Logits read_as_said(const Model& model, const Tokens& tokens, const std::vector<size_t>& ends, size_t each) {
  const auto state = model.state();
  Logits logits;
  feed_until(model, *state, tokens, ends, ReadAs::many, logits);
  std::vector<size_t> single;
  for (size_t end = state->length() + each; end < tokens.size(); end += each) single.push_back(end);
  single.push_back(tokens.size());
  feed_until(model, *state, tokens, single, ReadAs::single, logits);
  model.run({{.state = state.get(), .tokens = std::span(tokens).first(1), .sampling = greedy()}});
  const Output decoded = model.run({{.state = state.get(), .logits_rows = 1}});
  logits.insert(logits.end(), decoded.slices[0].logits.begin(), decoded.slices[0].logits.end());
  return logits;
}

TEST_P(ModelTest, RowsThatAreReadAsSingleOnesAreThoseOfDecoding) {
  const Model model(GetParam());
  const Tokens tokens = prompt(31, 5);
  const Logits expected = read_as_said(model, tokens, {10}, 1);
  for (const size_t each : {5U, 17U, 21U}) {
    EXPECT_TRUE(read_as_said(model, tokens, {10}, each) == expected) << each;
  }
}

// Wherever they begin, also with a slice of one row at either end.
TEST_P(ModelTest, RowsThatAreReadAsManyMayBeCutAtUnits) {
  const Model model(GetParam());
  const size_t unit = std::max(model.backend->device().reading.unit, 16U);
  const Tokens tokens = prompt(3 * unit + 1, 6);
  const size_t all = tokens.size();
  for (const size_t begin : {size_t{0}, unit - 1}) {
    const auto said = [&](std::vector<size_t> ends) {
      const auto state = model.state();
      Logits logits;
      if (begin > 0) feed_until(model, *state, tokens, {begin}, ReadAs::single, logits);
      feed_until(model, *state, tokens, ends, ReadAs::many, logits);
      const Output next =
          model.run({{.state = state.get(), .tokens = std::span(tokens).first(1), .logits_rows = 1}});
      logits.insert(logits.end(), next.slices[0].logits.begin(), next.slices[0].logits.end());
      return logits;
    };
    const Logits expected = said({all});
    EXPECT_TRUE(said({unit, all}) == expected) << begin;
    EXPECT_TRUE(said({unit, 2 * unit, 3 * unit, all}) == expected) << begin;
  }
}

// And the two together in a pass with one that decodes.
TEST_P(ModelTest, HowRowsAreReadDoesNotDependOnCompanions) {
  const Model model(GetParam());
  const Tokens tokens = prompt(20, 7);
  std::vector<Logits> alone, together;
  for (const bool company : {false, true}) {
    const auto single = model.state(), many = model.state(), decodes = model.state();
    model.run({{.state = decodes.get(), .tokens = tokens, .sampling = greedy()}});
    std::vector<Slice> slices{
        {.state = single.get(), .tokens = tokens, .logits_rows = 1, .read_as = ReadAs::single},
        {.state = many.get(),
         .tokens = std::span(tokens).first(3),
         .logits_rows = 1,
         .read_as = ReadAs::many},
        {.state = decodes.get(), .logits_rows = 1}};
    std::vector<Logits>& said = company ? together : alone;
    if (company) {
      for (SliceOutput& one : model.run(slices).slices) said.push_back(std::move(one.logits));
    } else {
      for (const Slice& slice : slices) said.push_back(model.run({slice}).slices[0].logits);
    }
  }
  EXPECT_TRUE(alone == together);
}

// `count` sequences decode `steps` tokens together, and each alone. A device has other kernels for more of
// them.
void expect_as_though_alone(const Model& model, size_t count, int steps) {
  std::vector<std::unique_ptr<SequenceState>> together;
  std::vector<std::unique_ptr<SequenceState>> alone;
  for (size_t i = 0; i < count; ++i) {
    together.push_back(model.state());
    alone.push_back(model.state());
    const Tokens tokens = prompt(5 + 30 * i, i);
    for (SequenceState* state : {together[i].get(), alone[i].get()}) {
      model.run({{.state = state, .tokens = tokens, .sampling = greedy()}});
    }
  }
  for (int step = 0; step < steps; ++step) {
    std::vector<Slice> slices;
    for (const auto& state : together) {
      slices.push_back({.state = state.get(), .sampling = greedy(), .logits_rows = 1});
    }
    // A chunk of another prompt shares each pass.
    const auto other = model.state();
    const Tokens chunk = prompt(50, 70 + static_cast<uint64_t>(step));
    slices.insert(slices.begin() + 2, Slice{.state = other.get(), .tokens = chunk});
    Output output = model.run(slices);
    output.slices.erase(output.slices.begin() + 2);
    for (size_t i = 0; i < count; ++i) {
      const Output single = model.run({{.state = alone[i].get(), .sampling = greedy(), .logits_rows = 1}});
      ASSERT_EQ(single.slices[0].token, output.slices[i].token) << i << " step " << step;
      ASSERT_TRUE(single.slices[0].logits == output.slices[i].logits) << i << " step " << step;
    }
  }
}

TEST_P(ModelTest, SequencesInOnePassAreEachAsThoughAlone) {
  const Model model(GetParam());
  expect_as_though_alone(model, 5, 4);
  if (GetParam().name == "cuda") {  // of which other kernels take two, three or eight rows
    for (const size_t count : {2U, 3U, 8U}) {
      expect_as_though_alone(model, count, 20);
    }
  }
}

TEST_P(ModelTest, AnyNumberOfThreadsGivesTheSameBits) {
  const Tokens tokens = prompt(70);
  Logits expected;
  for (const unsigned threads : {1U, 2U, 3U, 7U}) {
    const Model model(GetParam(), threads);
    const auto state = model.state();
    Logits logits = model.feed(*state, tokens, 50);
    const Logits step = model.feed(*state, {5}, 1);
    logits.insert(logits.end(), step.begin(), step.end());
    if (expected.empty()) {
      expected = logits;
    }
    EXPECT_TRUE(logits == expected) << threads;
  }
}

TEST_P(ModelTest, RejectedDraftsLeaveNoTrace) {
  const Model model(GetParam());
  const Tokens start = prompt(61);
  const Tokens draft = prompt(6, 9);
  for (const uint32_t kept : {1U, 3U, 6U}) {
    const auto drafted = model.state();
    model.feed(*drafted, start, 64);
    model.run({{.state = drafted.get(), .tokens = draft, .keep = Keep::until_accept}});
    ASSERT_TRUE(drafted->accept(kept).has_value());
    const auto never = model.state();
    model.feed(*never, start, 64);
    model.feed(*never, {draft.begin(), draft.begin() + kept}, 1);
    const Tokens more = prompt(5, 10);
    EXPECT_LE(worst_row(model.feed(*drafted, more, 1), model.feed(*never, more, 1)), tolerance().model)
        << kept;
  }
}

TEST(ReferenceModel, RejectedDraftsLeaveNotABit) {
  const Model model(implementations()[0]);
  const Tokens draft = prompt(8, 9);
  const auto drafted = model.state();
  model.feed(*drafted, prompt(61), 64);
  model.run({{.state = drafted.get(), .tokens = draft, .keep = Keep::until_accept}});
  ASSERT_TRUE(drafted->accept(5).has_value());
  const auto never = model.state();
  model.feed(*never, prompt(61), 64);
  model.feed(*never, {draft.begin(), draft.begin() + 5}, 1);
  EXPECT_TRUE(model.feed(*drafted, prompt(4, 10), 1) == model.feed(*never, prompt(4, 10), 1));
}

TEST_P(ModelTest, GreedyDecodingFollowsItsOwnLogits) {
  const Model model(GetParam());
  const auto state = model.state();
  const Tokens start = prompt(20);
  const int32_t first =
      model.run({{.state = state.get(), .tokens = start, .sampling = greedy()}}).slices[0].token;
  Tokens all{first};
  const Tokens rest = model.decode(*state, 30);
  all.insert(all.end(), rest.begin(), rest.end());
  // The same tokens, given one by one, each have the largest logit after the one before.
  const auto again = model.state();
  Logits logits = model.feed(*again, start, 20);
  for (const int32_t token : all) {
    const auto last = row_of(logits, logits.size() / kTiny.vocab - 1, kTiny.vocab);
    ASSERT_EQ(std::max_element(last.begin(), last.end()) - last.begin(), token);
    logits = model.feed(*again, {token}, 1);
  }
}

TEST_P(ModelTest, ItSaysHowManyBytesAStepReads) {
  const Model model(GetParam());
  const auto state = model.state();
  const Tokens tokens = prompt(3);
  const uint64_t none = model.run({{.state = state.get(), .tokens = tokens}}).bytes_read;
  const uint64_t step =
      model.run({{.state = state.get(), .tokens = tokens, .sampling = greedy()}}).bytes_read;
  const uint64_t head = tiny_weights().get().head.lm_head.total_bytes();
  EXPECT_GT(step, none + head - 100'000);
  EXPECT_GT(none, 8 * 8 * tiny_weights().get().layers[0].moe.gate.total_bytes() / 32);
}

TEST_P(ModelTest, EveryStepOfAPassIsCloseToTheReference) {
  const Model model(GetParam());
  const Model reference(implementations()[0]);
  const Tokens tokens = prompt(30, 4);
  std::vector<Logits> streams;
  const auto record = [&](const Step&, std::span<const float> stream) {
    streams.emplace_back(stream.begin(), stream.end());
  };
  std::vector<std::string> drifted;
  size_t index = 0;
  const auto compare = [&](const Step& step, std::span<const float> stream) {
    const Logits& expected = streams[index++];
    std::vector<double> rows;
    for (size_t r = 0; r < tokens.size(); ++r) {
      rows.push_back(
          distance<float>(stream.subspan(r * kTiny.hidden, kTiny.hidden), row_of(expected, r, kTiny.hidden)));
    }
    std::nth_element(rows.begin(), rows.begin() + 15, rows.end());
    if (rows[15] > tolerance().model) {
      drifted.push_back(fmt::format("{}: {}", to_string(step), rows[15]));
    }
  };
  const Probe recorder(record);
  const Probe comparer(compare);
  for (const auto& [of, probe] : {std::pair{&reference, &recorder}, std::pair{&model, &comparer}}) {
    const auto state = of->state();
    const std::vector<Slice> slices{{.state = state.get(), .tokens = tokens}};
    const auto ticket = of->backend->submit({.slices = slices, .probe = probe});
    ASSERT_TRUE(ticket.has_value());
    ASSERT_TRUE(of->backend->collect(*ticket).has_value());
  }
  EXPECT_TRUE(drifted.empty()) << "first: " << drifted.front();
}

}  // namespace
}  // namespace lily::test
