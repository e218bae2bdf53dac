// States: checkpoints, sharing of blocks, drafts.
#include <numeric>

#include "tests/unit/host/fixture.h"

namespace lily::host {
namespace {

using ::testing::HasSubstr;

class CountingSink final : public ByteSink {
 public:
  Result<void> write(std::span<const std::byte> bytes) override {
    if (all.size() + bytes.size() > limit) {
      return fail(ErrorKind::io, "the disk is full");
    }
    all.insert(all.end(), bytes.begin(), bytes.end());
    return {};
  }
  std::vector<std::byte> all;
  size_t limit = SIZE_MAX;
};

using StateTest = HostBackendTest;

TEST_F(StateTest, AResumedStateContinuesExactly) {
  for (const size_t length : {1U, 63U, 64U, 65U, 128U}) {
    const auto original = state();
    feed(*original, some_tokens(length));
    const auto checkpoint = original->save();
    ASSERT_TRUE(checkpoint.has_value());
    EXPECT_EQ((*checkpoint)->length(), length);
    const auto expected = decode(*original, 80);
    const auto other = state();
    ASSERT_TRUE(other->resume(**checkpoint).has_value());
    EXPECT_EQ(other->length(), length);
    EXPECT_EQ(decode(*other, 80), expected);
    EXPECT_EQ(look(*other), look(*original));
  }
}

TEST_F(StateTest, ACheckpointDoesNotSeeWhatComesAfterIt) {
  const auto one = state();
  feed(*one, some_tokens(70));  // a full block and a begun one
  const auto checkpoint = one->save();
  ASSERT_TRUE(checkpoint.has_value());
  feed(*one, some_tokens(30, 1));  // goes on writing in the begun block
  const auto two = state();
  ASSERT_TRUE(two->resume(**checkpoint).has_value());
  feed(*two, some_tokens(30, 2));
  // Again from the same checkpoint, and from nothing.
  const auto three = state();
  ASSERT_TRUE(three->resume(**checkpoint).has_value());
  feed(*three, some_tokens(30, 1));
  const auto cold = state();
  feed(*cold, some_tokens(70));
  feed(*cold, some_tokens(30, 1));
  const auto expected = look(*cold);
  EXPECT_EQ(look(*one), expected);
  EXPECT_EQ(look(*three), expected);
  EXPECT_NE(look(*two), expected);
}

TEST_F(StateTest, ACheckpointOutlivesItsState) {
  std::unique_ptr<Checkpoint> checkpoint;
  std::vector<int32_t> expected;
  {
    const auto original = state();
    feed(*original, some_tokens(100));
    checkpoint = *original->save();
    expected = decode(*original, 10);
  }
  const auto later = state();
  ASSERT_TRUE(later->resume(*checkpoint).has_value());
  EXPECT_EQ(decode(*later, 10), expected);
}

TEST_F(StateTest, ResumeGoesBackInTheSameState) {
  const auto one = state();
  feed(*one, some_tokens(10));
  const auto checkpoint = one->save();
  const auto first = decode(*one, 5);
  feed(*one, some_tokens(60));
  ASSERT_TRUE(one->resume(**checkpoint).has_value());
  EXPECT_EQ(one->length(), 10U);
  EXPECT_EQ(decode(*one, 5), first);
}

TEST_F(StateTest, ACheckpointThatDoesNotFitIsRefusedAndTheStateStays) {
  const auto large = state(300);
  feed(*large, some_tokens(100));
  feed(*large, some_tokens(100));
  const auto checkpoint = large->save();
  const auto small = state(150);
  feed(*small, some_tokens(3));
  const auto refused = small->resume(**checkpoint);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message, "the checkpoint holds 200 tokens, the state has room for 150");
  EXPECT_EQ(small->length(), 3U);
}

TEST_F(StateTest, ACheckpointOfAnotherModelIsRefused) {
  const auto one = state();
  feed(*one, some_tokens(5));
  const auto checkpoint = one->save();
  const StateLayout deeper{kTiny, DType::f32};
  const auto other = HostState::create(deeper, 100);
  ASSERT_TRUE(other.has_value());
  const auto refused = (*other)->resume(**checkpoint);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("another backend or model"));
}

class BytesSource final : public ByteSource {
 public:
  explicit BytesSource(std::vector<std::byte> all) : all_(std::move(all)) {}
  Result<void> read(std::span<std::byte> into) override {
    if (into.size() > all_.size() - done_) return fail(ErrorKind::io, "the file ends early");
    std::copy_n(all_.begin() + static_cast<ptrdiff_t>(done_), into.size(), into.begin());
    done_ += into.size();
    return {};
  }
  size_t left() const { return all_.size() - done_; }

 private:
  std::vector<std::byte> all_;
  size_t done_ = 0;
};

TEST_F(StateTest, AStoredCheckpointContinuesExactly) {
  for (const uint32_t length : {1U, 64U, 70U, 200U}) {
    const auto one = state(300);
    for (uint32_t done = 0; done < length; done += 50)
      feed(*one, some_tokens(std::min(50U, length - done), done));
    const auto checkpoint = *one->save();
    // Whole, or with rows of a checkpoint that has them.
    for (const uint32_t shared : {0U, length / 64 * 64}) {
      CountingSink sink;
      ASSERT_TRUE(checkpoint->write_rows(shared, length, sink).has_value());
      ASSERT_TRUE(checkpoint->write_rest(sink).has_value());
      BytesSource source(sink.all);
      const auto again =
          backend->read_checkpoint({.length = length, .shared = shared, .base = checkpoint.get()}, source);
      ASSERT_TRUE(again.has_value()) << again.error().text();
      EXPECT_EQ(source.left(), 0U);
      EXPECT_EQ((*again)->length(), length);
      EXPECT_EQ((*again)->bytes(), checkpoint->bytes());
      const auto two = state(300), three = state(300);
      ASSERT_TRUE(two->resume(**again).has_value());
      ASSERT_TRUE(three->resume(*checkpoint).has_value());
      feed(*two, some_tokens(30, 7));
      feed(*three, some_tokens(30, 7));
      EXPECT_EQ(look(*two), look(*three)) << length << " " << shared;
    }
  }
}

TEST_F(StateTest, AStoredCheckpointThatEndsEarlyIsRefused) {
  const auto one = state();
  feed(*one, some_tokens(70));
  const auto checkpoint = *one->save();
  CountingSink sink;
  ASSERT_TRUE(checkpoint->write_rows(0, 70, sink).has_value());
  ASSERT_TRUE(checkpoint->write_rest(sink).has_value());
  const uint64_t before = backend->state_bytes();
  sink.all.pop_back();
  BytesSource source(sink.all);
  const auto refused = backend->read_checkpoint({.length = 70}, source);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message, "the file ends early");
  EXPECT_EQ(backend->state_bytes(), before);
  sink.limit = sink.all.size() + 100;
  EXPECT_EQ(checkpoint->write_rows(0, 70, sink).error().message, "the disk is full");
}

TEST_F(StateTest, AcceptedRowsAreAsThoughNeverDrafted) {
  for (uint32_t drafted = 1; drafted <= Limits::kMaxDraft; ++drafted) {
    for (uint32_t kept = 1; kept <= drafted; ++kept) {
      const auto tokens = some_tokens(drafted, 5);
      const auto with = state();
      feed(*with, some_tokens(60));  // the draft crosses the border of a block
      ASSERT_TRUE(run({{.state = with.get(), .tokens = tokens, .keep = Keep::until_accept}}).has_value());
      EXPECT_EQ(with->length(), 60 + drafted);
      ASSERT_TRUE(with->accept(kept).has_value());
      EXPECT_EQ(with->length(), 60 + kept);
      const auto without = state();
      feed(*without, some_tokens(60));
      feed(*without, {tokens.begin(), tokens.begin() + kept});
      EXPECT_EQ(look(*with), look(*without)) << drafted << " " << kept;
      EXPECT_EQ(look(*with), look(*without));
    }
  }
}

TEST_F(StateTest, AcceptedDraftsCountAndRejectedOnesDoNot) {
  Sampling sampling = greedy();
  sampling.frequency_penalty = 100.0F;
  const std::vector<int32_t> draft{11, 12, 12, 13};
  const auto with = state();
  feed(*with, some_tokens(5));
  ASSERT_TRUE(with->begin_answer({}).has_value());
  ASSERT_TRUE(run({{.state = with.get(), .tokens = draft, .sampling = sampling, .keep = Keep::until_accept}})
                  .has_value());
  ASSERT_TRUE(with->accept(3).has_value());
  const auto& counts = static_cast<HostState&>(*with).answer().counts.answer();
  EXPECT_EQ(counts, (std::unordered_map<int32_t, uint32_t>{{12, 2}}));
  // The token sampled after the rejected row is forgotten.
  EXPECT_THAT(refusal({{.state = with.get()}}), HasSubstr("none was sampled"));
}

TEST_F(StateTest, AFullyAcceptedDraftKeepsItsSampledToken) {
  const auto draft = some_tokens(4, 9);
  const auto with = state();
  const auto output =
      run({{.state = with.get(), .tokens = draft, .sampling = greedy(), .keep = Keep::until_accept}});
  ASSERT_TRUE(output.has_value());
  ASSERT_TRUE(with->accept(4).has_value());
  const auto without = state();
  EXPECT_EQ(feed(*without, draft), output->slices[0].token);
  EXPECT_EQ(decode(*with, 10), decode(*without, 10));
}

TEST_F(StateTest, ProvisionalRowsMustBeSettledFirst) {
  const auto one = state();
  EXPECT_EQ(one->accept(1).error().message, "accept: the state has no provisional rows");
  const auto draft = some_tokens(3);
  ASSERT_TRUE(run({{.state = one.get(), .tokens = draft, .keep = Keep::until_accept}}).has_value());
  EXPECT_THAT(refusal({{.state = one.get(), .tokens = draft}}), HasSubstr("provisional rows"));
  EXPECT_EQ(one->save().error().message, "cannot save a state with 3 provisional rows: accept() them first");
  EXPECT_EQ(one->accept(0).error().message, "accept: expected 1 to 3 rows, found 0");
  EXPECT_EQ(one->accept(4).error().message, "accept: expected 1 to 3 rows, found 4");
  ASSERT_TRUE(one->accept(3).has_value());
  EXPECT_TRUE(one->save().has_value());
}

TEST_F(StateTest, ACheckpointCarriesTheAnswerSoFar) {
  Sampling sampling = greedy();
  sampling.presence_penalty = 100.0F;
  const auto tokens = some_tokens(9);
  const auto one = state();
  ASSERT_TRUE(one->begin_answer(tokens).has_value());
  const auto step = [&](SequenceState& of, std::span<const int32_t> ids) {
    return run({{.state = &of, .tokens = ids, .sampling = sampling}})->slices[0].token;
  };
  step(*one, tokens);
  for (int i = 0; i < 5; ++i) {
    step(*one, {});
  }
  const auto checkpoint = one->save();
  std::vector<int32_t> expected;
  for (int i = 0; i < 20; ++i) {
    expected.push_back(step(*one, {}));
  }
  const auto two = state();
  ASSERT_TRUE(two->resume(**checkpoint).has_value());
  std::vector<int32_t> found;
  for (int i = 0; i < 20; ++i) {
    found.push_back(step(*two, {}));
  }
  EXPECT_EQ(found, expected);
}

TEST_F(StateTest, BlocksAreAllocatedAsTheyAreNeededAndShared) {
  const auto one = state();
  feed(*one, some_tokens(1));
  const auto small = one->save();
  feed(*one, some_tokens(128));
  const auto large = one->save();
  const uint64_t block = StateLayout{kToyShape, DType::f32}.kv_block_bytes();
  EXPECT_EQ((*large)->bytes() - (*small)->bytes(), 2 * block);
  // The full blocks of a state and of its checkpoint are the same memory; a write takes a copy.
  auto& host = static_cast<HostState&>(*one);
  const std::byte* shared = host.keys(3, 0, 0);
  const std::byte* begun = host.keys(3, 0, 2);
  const auto two = state();
  ASSERT_TRUE(two->resume(**large).has_value());
  feed(*two, some_tokens(1));
  EXPECT_EQ(static_cast<HostState&>(*two).keys(3, 0, 0), shared);
  EXPECT_NE(static_cast<HostState&>(*two).keys(3, 0, 2), begun);
  EXPECT_EQ(host.keys(3, 0, 2), begun);
}

TEST_F(StateTest, SharedRowsCountOnceAndEverythingIsGivenBack) {
  const StateLayout layout{kToyShape, DType::f32};
  const uint64_t block = layout.kv_block_bytes();
  const uint64_t arrays = layout.recurrent_floats() * sizeof(float);
  const uint64_t before = backend->state_bytes();
  {
    const auto one = state();
    EXPECT_EQ(backend->state_bytes() - before, arrays);
    feed(*one, some_tokens(100));
    EXPECT_EQ(backend->state_bytes() - before, arrays + 2 * block);
    const auto kept = one->save();
    const auto two = state();
    ASSERT_TRUE(two->resume(**kept).has_value());
    EXPECT_EQ(backend->state_bytes() - before, 3 * arrays + 2 * block);
    feed(*two, some_tokens(1));  // writes into the second block: its own copy
    EXPECT_EQ(backend->state_bytes() - before, 3 * arrays + 3 * block);
  }
  EXPECT_EQ(backend->state_bytes(), before);
}

}  // namespace
}  // namespace lily::host
