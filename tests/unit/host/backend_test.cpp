// Passes: what is refused, what runs when, and how failures stay with those they concern.
#include <algorithm>
#include <set>

#include "backends/host/limits.h"
#include "tests/support/random_weights.h"
#include "tests/unit/host/fixture.h"

namespace lily::host {
namespace {

using ::testing::HasSubstr;

TEST_F(HostBackendTest, SubmitDoesNotWaitAndCollectDoes) {
  const auto one = state();
  const auto tokens = some_tokens(5);
  toy->closed = true;
  const std::vector<Slice> prefill{{.state = one.get(), .tokens = tokens, .sampling = greedy()}};
  const std::vector<Slice> step{{.state = one.get(), .sampling = greedy()}};
  const auto first = backend->submit({.slices = prefill});
  const auto second = backend->submit({.slices = step});  // feeds a token that is not sampled yet
  ASSERT_TRUE(first.has_value());
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(one->length(), 6U);
  const auto third = backend->submit({.slices = step});
  ASSERT_FALSE(third.has_value());
  EXPECT_EQ(third.error().message, "2 passes are submitted and not collected");
  EXPECT_FALSE(backend->collect(*second).has_value());  // out of order
  toy->closed = false;
  const auto out_first = backend->collect(*first);
  const auto out_second = backend->collect(*second);
  ASSERT_TRUE(out_first.has_value());
  ASSERT_TRUE(out_second.has_value());
  EXPECT_FALSE(backend->collect(*second).has_value());
  const auto alone = state();
  EXPECT_EQ(feed(*alone, tokens), out_first->slices[0].token);
  EXPECT_EQ(feed(*alone, {}), out_second->slices[0].token);
}

TEST_F(HostBackendTest, AStepAheadGivesTheTokensOfOneStepAtATime) {
  const auto ahead = state();
  const auto tokens = some_tokens(20);
  const std::vector<Slice> prefill{{.state = ahead.get(), .tokens = tokens, .sampling = greedy()}};
  const std::vector<Slice> step{{.state = ahead.get(), .sampling = greedy()}};
  std::vector<int32_t> found;
  Ticket ticket = *backend->submit({.slices = prefill});
  for (int i = 0; i < 50; ++i) {
    const Ticket next = *backend->submit({.slices = step});
    found.push_back(backend->collect(ticket)->slices[0].token);
    ticket = next;
  }
  EXPECT_TRUE(backend->collect(ticket).has_value());
  const auto alone = state();
  std::vector<int32_t> expected{feed(*alone, tokens)};
  const auto rest = decode(*alone, 49);
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(found, expected);
}

// Counted from the table of tensors, by another way than the passes count.
TEST_F(HostBackendTest, BytesReadAreEveryTensorOncePerPassAndTheStates) {
  lily::test::RandomWeights random(kToyShape);
  HostBackend real({}, std::make_unique<ToyBlocks>());  // says that every pass chooses kTopK experts a layer
  ASSERT_TRUE(real.load(random.get(), plan, [](double) {}).has_value());
  uint64_t body = 0;
  uint64_t head = 0;
  uint64_t embedding_row = 0;
  ModelWeights views = random.get();
  for (const TensorSite& site : tensor_table(kToyShape, views)) {
    const uint64_t bytes =
        std::visit([](const auto* view) { return uint64_t{view->total_bytes()}; }, site.view);
    if (site.name == "model.embed_tokens") {
      embedding_row = bytes / kToyShape.vocab;
    } else if (site.name == "lm_head" || site.name == "model.norm") {
      head += bytes;
    } else {
      body += site.experts > 1 ? bytes / site.experts * Shape::kTopK : bytes;
    }
  }
  ASSERT_GT(head, uint64_t{kToyShape.vocab} * kToyShape.hidden / 2);
  const uint64_t recurrent =
      3 * sizeof(float) * (kToyShape.v_heads * 128 * 128 + 3 * kToyShape.conv_channels());
  const uint64_t kv_row =
      2 * kToyShape.kv_heads * 256 * sizeof(float);  // one attention layer, f32 in the toy
  const auto bytes_of = [&](const std::vector<Slice>& slices) {
    return real.collect(*real.submit({.slices = slices}))->bytes_read;
  };
  const auto one = *real.new_state(400);
  const auto two = *real.new_state(400);
  const auto tokens = some_tokens(100);
  EXPECT_EQ(bytes_of({{.state = one.get(), .tokens = tokens}}),
            100 * embedding_row + body + recurrent + 100 * kv_row);
  // More rows of logits than are computed at once.
  EXPECT_EQ(bytes_of({{.state = two.get(), .tokens = tokens, .sampling = greedy(), .logits_rows = 100}}),
            100 * embedding_row + body + head + recurrent + 100 * kv_row);
  const std::vector<int32_t> next{5};
  EXPECT_EQ(bytes_of({{.state = one.get(), .tokens = next, .sampling = greedy()},
                      {.state = two.get(), .sampling = greedy()}}),
            2 * (embedding_row + recurrent + 101 * kv_row) + body + head);
}

TEST_F(HostBackendTest, LimitsAreMeasuredWithNoPassInFlight) {
  const auto one = state();
  const auto tokens = some_tokens(5);
  const std::vector<Slice> prefill{{.state = one.get(), .tokens = tokens}};
  const Ticket ticket = *backend->submit({.slices = prefill});
  const auto refused = backend->measure_limits();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message, "limits are measured with no pass in flight, 1 are not collected");
  ASSERT_TRUE(backend->collect(ticket).has_value());
  EXPECT_EQ(backend->measure_limits()->multiply, "toy");
}

TEST(MachineLimits, ReadingIsMeasuredAndMultiplyAddsOfAllThreadsAreCounted) {
  ThreadPool pool(2);
  const auto bandwidth = measure_read_bandwidth(pool);
  ASSERT_TRUE(bandwidth.has_value());
  EXPECT_GT(*bandwidth, 0);
  // Every thread sleeps for what it says it did: a rate that is known.
  const double rate = measure_multiply_adds(pool, [](uint64_t rounds) {
    std::this_thread::sleep_for(std::chrono::microseconds(rounds));
    return rounds;
  });
  EXPECT_GT(rate, 0);
  EXPECT_LE(rate, 2e6);
}

TEST_F(HostBackendTest, PrefillAndDecodeMixInOnePass) {
  const auto decoding = state();
  const auto other = state();
  feed(*decoding, some_tokens(30));
  const auto chunk = some_tokens(100, 3);
  const auto output = run({{.state = other.get(), .tokens = chunk, .logits_rows = 2},
                           {.state = decoding.get(), .sampling = greedy()}});
  ASSERT_TRUE(output.has_value());
  EXPECT_EQ(output->slices[0].token, -1);
  EXPECT_EQ(output->slices[0].logits.size(), 2 * size_t{kToyShape.vocab});
  EXPECT_TRUE(output->slices[1].logits.empty());
  const auto alone = state();
  feed(*alone, some_tokens(30));
  EXPECT_EQ(feed(*alone, {}), output->slices[1].token);
  EXPECT_EQ(look(*alone), look(*decoding));
}

TEST_F(HostBackendTest, ManyWantedRowsComeInOrder) {
  const auto tokens = some_tokens(128);
  const auto all = state();
  const auto output = run({{.state = all.get(), .tokens = tokens, .sampling = greedy(), .logits_rows = 128}});
  ASSERT_TRUE(output.has_value());
  const auto single = state();
  const size_t vocab = kToyShape.vocab;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto row = look(*single, tokens[i]);
    ASSERT_TRUE(std::equal(row.begin(), row.end(),
                           output->slices[0].logits.begin() + static_cast<ptrdiff_t>(i * vocab)))
        << i;
  }
}

TEST_F(HostBackendTest, EveryFaultOfAPassIsRefusedBeforeAnythingChanges) {
  const auto one = state(20);
  const auto two = state(20);
  const auto tokens = some_tokens(5);
  const Slice good{.state = two.get(), .tokens = tokens};
  const auto with = [&](auto change) {
    Slice slice{.state = one.get(), .tokens = tokens, .sampling = greedy()};
    change(slice);
    return refusal({good, slice});
  };
  EXPECT_EQ(refusal({}), "a pass needs at least one slice");
  EXPECT_EQ(with([](Slice& s) { s.state = nullptr; }), "slice 1: its state is absent");
  EXPECT_EQ(with([&](Slice& s) { s.state = two.get(); }), "slices 0 and 1 use the same state");
  EXPECT_EQ(with([](Slice& s) { s.tokens = {}; }),
            "slice 1: it feeds the token sampled last, but none was sampled");
  const std::vector<int32_t> negative{1, -1};
  const std::vector<int32_t> beyond{1, 2, 8192};
  EXPECT_EQ(with([&](Slice& s) { s.tokens = negative; }),
            "slice 1: token 1: expected an id in [0, 8192), found -1");
  EXPECT_EQ(with([&](Slice& s) { s.tokens = beyond; }),
            "slice 1: token 2: expected an id in [0, 8192), found 8192");
  const auto many = some_tokens(21);
  EXPECT_EQ(with([&](Slice& s) { s.tokens = many; }),
            "slice 1: its state holds 0 tokens of at most 20: no room for 21");
  EXPECT_EQ(with([](Slice& s) { s.logits_rows = 6; }), "slice 1: 6 rows of logits are wanted of 5");
  const auto nine = some_tokens(9);
  EXPECT_EQ(with([&](Slice& s) {
              s.tokens = nine;
              s.keep = Keep::until_accept;
            }),
            "slice 1: a draft has 1 to 8 given tokens, found 9");
  EXPECT_THAT(with([](Slice& s) {
                s.sampling.mode = Sampling::Mode::random;
                s.sampling.temperature = 0;
              }),
              HasSubstr("slice 1: temperature: expected a finite number above 0, found 0"));
  EXPECT_THAT(with([](Slice& s) { s.sampling.top_p = 0; }), HasSubstr("top_p"));
  EXPECT_THAT(with([](Slice& s) { s.sampling.top_p = 1.5F; }), HasSubstr("top_p"));
  EXPECT_THAT(with([](Slice& s) { s.sampling.min_p = -1; }), HasSubstr("min_p"));
  EXPECT_THAT(with([](Slice& s) { s.sampling.repetition_penalty = 0; }), HasSubstr("repetition_penalty"));
  EXPECT_THAT(with([](Slice& s) { s.sampling.presence_penalty = NAN; }), HasSubstr("presence_penalty"));
  EXPECT_THAT(with([](Slice& s) { s.sampling.frequency_penalty = INFINITY; }),
              HasSubstr("frequency_penalty"));
  const std::array<LogitBias, 1> bias{{{8192, 1}}};
  EXPECT_THAT(with([&](Slice& s) { s.sampling.bias = bias; }), HasSubstr("logit bias"));
  const std::array<uint32_t, 3> mask{};
  EXPECT_EQ(with([&](Slice& s) { s.sampling.allowed = mask; }),
            "slice 1: mask of allowed tokens: expected 256 words, found 3");
  const auto long_one = state();
  const auto chunk = some_tokens(129);
  EXPECT_EQ(refusal({{.state = long_one.get(), .tokens = chunk}}),
            "slice 0: expected at most 128 tokens, found 129");
  EXPECT_EQ(one->length() + two->length() + long_one->length(), 0U);
  EXPECT_EQ(toy->embeds, 0U);
}

TEST_F(HostBackendTest, TooManyRowsInAllAreRefused) {
  const auto one = state();
  const auto two = state();
  const auto chunk = some_tokens(100);
  EXPECT_EQ(refusal({{.state = one.get(), .tokens = chunk}, {.state = two.get(), .tokens = chunk}}),
            "a pass has at most 131 rows, found 200");
}

TEST_F(HostBackendTest, CancelStopsBetweenBlocksAndFailsItsStates) {
  const auto one = state();
  feed(*one, some_tokens(10));
  const auto before = one->save();
  std::atomic<bool> cancel = false;
  uint32_t last_layer = 0;
  toy->in_moe = [&](uint32_t layer) {
    last_layer = layer;
    cancel = layer == 2;
  };
  const auto tokens = some_tokens(4, 1);
  const auto output = run({{.state = one.get(), .tokens = tokens}}, &cancel);
  ASSERT_FALSE(output.has_value());
  EXPECT_EQ(output.error().kind, ErrorKind::cancelled);
  EXPECT_EQ(output.error().message, "the pass was cancelled before layer 3 attention");
  EXPECT_EQ(last_layer, 2U);
  toy->in_moe = nullptr;
  EXPECT_THAT(refusal({{.state = one.get(), .tokens = tokens}}),
              HasSubstr("a failed pass left its state unusable"));
  EXPECT_FALSE(one->save().has_value());
  ASSERT_TRUE(one->resume(**before).has_value());
  const auto cold = state();
  feed(*cold, some_tokens(10));
  EXPECT_EQ(look(*one), look(*cold));
}

TEST_F(HostBackendTest, AnExceptionInABlockIsAnErrorOfThatPassAlone) {
  const auto one = state();
  const auto two = state();
  feed(*two, some_tokens(3));
  const std::vector<int32_t> breaks{1, ToyBlocks::kThrows};
  const auto output = run({{.state = one.get(), .tokens = breaks}});
  ASSERT_FALSE(output.has_value());
  EXPECT_EQ(output.error().kind, ErrorKind::internal);
  EXPECT_THAT(output.error().message, HasSubstr("the toy breaks"));
  EXPECT_EQ(decode(*two, 3).size(), 3U);
  EXPECT_THAT(refusal({{.state = one.get(), .tokens = breaks}}), HasSubstr("unusable"));
}

TEST_F(HostBackendTest, LogitsThatAreNotFiniteConcernTheirSliceAlone) {
  const auto bad = state();
  const auto good = state();
  const auto alone = state();
  feed(*bad, some_tokens(10));
  feed(*good, some_tokens(10, 1));
  feed(*alone, some_tokens(10, 1));
  const std::vector<int32_t> poison{ToyBlocks::kPoison};
  const std::vector<Slice> first{{.state = bad.get(), .tokens = poison, .sampling = greedy()},
                                 {.state = good.get(), .sampling = greedy()}};
  const std::vector<Slice> second{{.state = bad.get(), .sampling = greedy()},
                                  {.state = good.get(), .sampling = greedy()}};
  const Ticket one = *backend->submit({.slices = first});
  const Ticket two = *backend->submit({.slices = second});  // before anybody can know
  const auto out_one = backend->collect(one);
  const auto out_two = backend->collect(two);
  ASSERT_TRUE(out_one.has_value());
  ASSERT_TRUE(out_two.has_value());
  for (const auto& output : {*out_one, *out_two}) {
    EXPECT_FALSE(output.slices[0].finite);
    EXPECT_EQ(output.slices[0].token, -1);
    EXPECT_TRUE(output.slices[1].finite);
  }
  EXPECT_EQ(out_one->slices[1].token, feed(*alone, {}));
  EXPECT_EQ(out_two->slices[1].token, feed(*alone, {}));
  EXPECT_EQ(decode(*good, 5), decode(*alone, 5));
  EXPECT_THAT(refusal(second), HasSubstr("slice 0"));
}

TEST_F(HostBackendTest, AFailureCollectedAfterAResumeIsNotHeldAgainstTheState) {
  const auto one = state();
  feed(*one, some_tokens(10));
  const auto before = one->save();
  const std::vector<int32_t> poison{ToyBlocks::kPoison};
  const std::vector<Slice> slices{{.state = one.get(), .tokens = poison, .sampling = greedy()}};
  const Ticket ticket = *backend->submit({.slices = slices});
  ASSERT_TRUE(one->resume(**before).has_value());
  EXPECT_FALSE(backend->collect(ticket)->slices[0].finite);
  EXPECT_EQ(decode(*one, 3).size(), 3U);
}

TEST_F(HostBackendTest, WantedLogitsAreCheckedWithoutSamplingToo) {
  const auto one = state();
  const std::vector<int32_t> poison{1, ToyBlocks::kPoison};
  const auto output = run({{.state = one.get(), .tokens = poison, .logits_rows = 2}});
  ASSERT_TRUE(output.has_value());
  EXPECT_FALSE(output->slices[0].finite);
}

TEST_F(HostBackendTest, PenaltiesSeeTheAnswerAndItsPrompt) {
  const auto one = state();
  const auto tokens = some_tokens(10);
  ASSERT_TRUE(one->begin_answer(tokens).has_value());
  Sampling sampling = greedy();
  sampling.presence_penalty = 1000.0F;
  std::vector<int32_t> seen;
  std::span<const int32_t> next = tokens;
  for (int i = 0; i < 100; ++i) {
    const auto output = run({{.state = one.get(), .tokens = next, .sampling = sampling}});
    ASSERT_TRUE(output.has_value());
    const int32_t token = output->slices[0].token;
    EXPECT_EQ(std::count(seen.begin(), seen.end(), token), 0);
    seen.push_back(token);
    next = {};
  }
  // A new answer may use them again.
  ASSERT_TRUE(one->begin_answer(tokens).has_value());
  EXPECT_TRUE(static_cast<HostState&>(*one).answer().counts.answer().empty());
}

TEST_F(HostBackendTest, ADrawDependsOnSeedAndPositionNotOnCompany) {
  const auto tokens = some_tokens(12);
  Sampling sampling = greedy();
  sampling.mode = Sampling::Mode::random;
  sampling.seed = 99;
  const auto together = [&](size_t company) {
    std::vector<std::unique_ptr<SequenceState>> states;
    std::vector<Slice> slices;
    for (size_t i = 0; i <= company; ++i) {
      states.push_back(state());
      slices.push_back({.state = states.back().get(), .tokens = tokens, .sampling = sampling});
      slices.back().sampling.seed += company - i;
    }
    std::vector<int32_t> drawn;
    for (int step = 0; step < 20; ++step) {
      drawn.push_back(run(slices)->slices.back().token);
      for (Slice& slice : slices) {
        slice.tokens = {};
      }
    }
    return drawn;
  };
  const auto alone = together(0);
  EXPECT_EQ(together(3), alone);
  EXPECT_GT(std::set<int32_t>(alone.begin(), alone.end()).size(), 10U);
}

TEST_F(HostBackendTest, BiasIsCopiedAtSubmission) {
  const auto one = state();
  const auto tokens = some_tokens(3);
  toy->closed = true;
  std::vector<LogitBias> bias{{77, 1000.0F}};
  std::vector<Slice> slices{{.state = one.get(), .tokens = tokens, .sampling = greedy()}};
  slices[0].sampling.bias = bias;
  const Ticket ticket = *backend->submit({.slices = slices});
  bias[0].token = 78;
  toy->closed = false;
  EXPECT_EQ(backend->collect(ticket)->slices[0].token, 77);
}

TEST_F(HostBackendTest, AProbeSeesEveryStepInOrder) {
  const auto one = state();
  const auto tokens = some_tokens(6);
  std::vector<std::string> steps;
  size_t floats = 0;
  const auto see = [&](const Step& step, std::span<const float> stream) {
    steps.push_back(to_string(step));
    floats = stream.size();
  };
  const Probe probe(see);
  ASSERT_TRUE(run({{.state = one.get(), .tokens = tokens}}, nullptr, &probe).has_value());
  std::vector<std::string> expected;
  for (const Step& step : make_program(kToyShape)) {
    expected.push_back(to_string(step));
  }
  EXPECT_EQ(steps, expected);
  EXPECT_EQ(floats, 6 * size_t{kToyShape.hidden});
}

TEST_F(HostBackendTest, AStateMayBeDestroyedWithPassesInFlight) {
  auto one = state();
  const auto tokens = some_tokens(3);
  toy->closed = true;
  const std::vector<Slice> slices{{.state = one.get(), .tokens = tokens}};
  const Ticket ticket = *backend->submit({.slices = slices});
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    toy->closed = false;
  });
  one.reset();  // waits
  EXPECT_TRUE(backend->collect(ticket).has_value());
  opener.join();
}

TEST_F(HostBackendTest, SaveWaitsForSubmittedPasses) {
  const auto one = state();
  const auto tokens = some_tokens(3);
  const std::vector<Slice> slices{{.state = one.get(), .tokens = tokens, .sampling = greedy()}};
  toy->closed = true;
  const Ticket ticket = *backend->submit({.slices = slices});
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    toy->closed = false;
  });
  const auto checkpoint = one->save();
  opener.join();
  ASSERT_TRUE(checkpoint.has_value());
  EXPECT_TRUE(backend->collect(ticket).has_value());
  const auto two = state();
  ASSERT_TRUE(two->resume(**checkpoint).has_value());
  EXPECT_EQ(look(*two), look(*one));
}

TEST_F(HostBackendTest, ABackendEndsSubmittedPassesBeforeItGoes) {
  const auto tokens = some_tokens(3);
  auto one = state();
  const std::vector<Slice> slices{{.state = one.get(), .tokens = tokens}};
  ASSERT_TRUE(backend->submit({.slices = slices}).has_value());
  one.reset();
  backend.reset();
}

TEST_F(HostBackendTest, StatesHaveLimits) {
  EXPECT_EQ(backend->new_state(513).error().message, "a state has room for 1 to 512 tokens, asked for 513");
  EXPECT_FALSE(backend->new_state(0).has_value());
  const auto one = state(3);
  feed(*one, some_tokens(3));
  EXPECT_THAT(refusal({{.state = one.get()}}), HasSubstr("holds 3 tokens of at most 3"));
  EXPECT_FALSE(backend->load(weights, plan, [](double) {}).has_value());
}

TEST_F(HostBackendTest, TheEstimateCountsStatesAndWorkspace) {
  const MemoryNeed need = backend->estimate(weights, plan);
  EXPECT_EQ(need.weights, 1U);
  EXPECT_EQ(need.mapped, 2U);
  const StateLayout layout{kToyShape, DType::f32};
  EXPECT_EQ(need.per_sequence, layout.recurrent_floats() * 4 + 8 * layout.kv_block_bytes());
  EXPECT_EQ(need.workspace, 4 + 4 * (131 * 256 + 64 * 8192));
}

}  // namespace
}  // namespace lily::host
