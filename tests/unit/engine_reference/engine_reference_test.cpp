// The engine over the float32 reference with random weights of the small shape: what the fake device cannot
// show. Greedy and seeded answers do not depend on companions, and equal those of a plain loop over the
// backend.
#include <gtest/gtest.h>

#include "backends/host/host_backend.h"
#include "reference/backend.h"
#include "sampling/sampler.h"
#include "tests/support/random_weights.h"
#include "tests/unit/engine/collector.h"

namespace lily::test {
namespace {

constexpr PlanOptions kOptions{.context = 160, .sequences = 9, .chunk = 16};

const RandomWeights& weights() {
  static const RandomWeights random(kTiny.with_layers(4));
  return random;
}

Plan plan() { return *make_plan(kTiny.with_layers(4), kOptions); }

std::unique_ptr<Backend> loaded_backend() {
  auto backend = make_reference_backend({.threads = 2, .isa = ""});
  EXPECT_TRUE(backend);
  auto& host = dynamic_cast<host::HostBackend&>(**backend);
  const auto done = host.load(weights().get(), plan(), [](double) {});
  EXPECT_TRUE(done) << done.error().text();
  return *std::move(backend);
}

GenerationRequest request(size_t prompt, uint32_t tokens, Sampling sampling) {
  GenerationRequest asked;
  for (size_t i = 0; i < prompt; ++i) {
    asked.prompt.push_back(static_cast<int32_t>((i * 7 + prompt * 31) % kTiny.vocab));
  }
  asked.max_tokens = tokens;
  asked.sampling = sampling;
  asked.logprobs = 0;
  return asked;
}

Sampling greedy() {
  Sampling sampling;
  sampling.mode = Sampling::Mode::greedy;
  return sampling;
}

Sampling seeded(uint64_t seed) {
  Sampling sampling;
  sampling.mode = Sampling::Mode::random;
  sampling.top_k = 40;
  sampling.top_p = 0.95F;
  sampling.presence_penalty = 1.5F;
  sampling.repetition_penalty = 1.1F;
  sampling.seed = seed;
  return sampling;
}

// Tokens without text give no event: answers are compared by what the device was asked for, over a wrapper.
class Recorder final : public Backend {
 public:
  Recorder(std::unique_ptr<Backend> inner, std::shared_ptr<std::map<int32_t, std::vector<int32_t>>> answers)
      : inner_(std::move(inner)), answers_(std::move(answers)) {}
  const DeviceInfo& device() const override { return inner_->device(); }
  Result<DeviceLimits> measure_limits() override { return inner_->measure_limits(); }
  Result<MemoryNeed> estimate(const WeightFile& file, const Plan& plan) const override {
    return inner_->estimate(file, plan);
  }
  Result<void> load(const WeightFile& file, const Plan& plan, FunctionRef<void(double)> progress) override {
    return inner_->load(file, plan, progress);
  }
  Result<std::unique_ptr<SequenceState>> new_state(uint32_t max_tokens) override {
    return inner_->new_state(max_tokens);
  }
  uint64_t state_bytes() const override { return inner_->state_bytes(); }
  Result<Ticket> submit(const Pass& pass) override {
    std::vector<int32_t> keys;
    for (const Slice& slice : pass.slices) {
      // A prompt begins with an id of its own.
      if (slice.state->length() == 0) {
        keys_[slice.state] = slice.tokens.front();
      }
      keys.push_back(slice.sampling.mode == Sampling::Mode::none ? -1 : keys_[slice.state]);
    }
    in_flight_.push_back(std::move(keys));
    return inner_->submit(pass);
  }
  Result<Output> collect(Ticket ticket) override {
    Result<Output> output = inner_->collect(ticket);
    for (size_t i = 0; output && i < in_flight_.front().size(); ++i) {
      if (const int32_t key = in_flight_.front()[i]; key >= 0) {
        (*answers_)[key].push_back(output->slices[i].token);
      }
    }
    in_flight_.pop_front();
    return output;
  }

 private:
  std::unique_ptr<Backend> inner_;
  std::shared_ptr<std::map<int32_t, std::vector<int32_t>>> answers_;
  std::map<const SequenceState*, int32_t> keys_;
  std::deque<std::vector<int32_t>> in_flight_;
};

// The tokens of each answer, by the first id of its prompt.
std::map<int32_t, std::vector<int32_t>> run(const std::vector<GenerationRequest>& requests) {
  const std::unique_ptr<Tokenizer> tokenizer = make_tiny_tokenizer();
  const auto answers = std::make_shared<std::map<int32_t, std::vector<int32_t>>>();
  auto engine = Engine::create(std::make_unique<Recorder>(loaded_backend(), answers), plan(), *tokenizer, {});
  EXPECT_TRUE(engine);
  std::vector<Collector> events(requests.size());
  std::vector<std::unique_ptr<Job>> jobs;
  for (size_t i = 0; i < requests.size(); ++i) {
    auto job = (*engine)->submit(requests[i], events[i].sink());
    EXPECT_TRUE(job);
    jobs.push_back(*std::move(job));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(events[i].wait_end());
    EXPECT_TRUE(events[i].finished());
    EXPECT_EQ(events[i].finished()->usage.completion_tokens, requests[i].max_tokens);
  }
  engine->reset();
  return *answers;
}

// The same without an engine: the whole prompt, then token by token, each read before the next.
std::vector<int32_t> plain_loop(Backend* backend, const GenerationRequest& asked) {
  auto state = backend->new_state(kOptions.context);
  EXPECT_TRUE((*state)->begin_answer(asked.prompt));
  std::vector<int32_t> answer;
  answer.reserve(asked.max_tokens);  // spans into it stay valid
  std::span<const int32_t> next = asked.prompt;
  while (answer.size() < asked.max_tokens) {
    const size_t rows = std::min<size_t>(next.size(), kOptions.chunk);
    Slice slice;
    slice.state = state->get();
    slice.tokens = next.first(rows);
    next = next.subspan(rows);
    if (next.empty()) {
      slice.sampling = asked.sampling;
    }
    const auto ticket =
        backend->submit({.slices = std::span(&slice, 1), .cancel = nullptr, .probe = nullptr});
    EXPECT_TRUE(ticket) << ticket.error().text();
    const auto output = backend->collect(*ticket);
    EXPECT_TRUE(output) << output.error().text();
    if (next.empty()) {
      answer.push_back(output->slices[0].token);
      next = std::span(&answer.back(), 1);
    }
  }
  return answer;
}

TEST(EngineOnTheReference, AnswersAreTheSameAloneAndInCompany) {
  std::vector<GenerationRequest> requests;
  for (const size_t prompt : {3UL, 16UL, 17UL, 40UL, 1UL, 33UL, 8UL, 20UL, 48UL}) {
    requests.push_back(request(prompt, 8, prompt % 2 == 0 ? greedy() : seeded(prompt)));
  }
  const auto together = run(requests);
  ASSERT_EQ(together.size(), requests.size());
  const std::unique_ptr<Backend> backend = loaded_backend();
  for (const GenerationRequest& asked : requests) {
    const std::vector<int32_t>& answer = together.at(asked.prompt.front());
    EXPECT_EQ(answer.size(), asked.max_tokens);
    EXPECT_EQ(plain_loop(backend.get(), asked), answer);
  }
  for (const size_t alone : {2UL, 5UL}) {
    const int32_t first = requests[alone].prompt.front();
    EXPECT_EQ(run({requests[alone]}).at(first), together.at(first));
  }
}

TEST(EngineOnTheReference, ASecondAnswerStartsFromNothing) {
  // One state for both: what the first left in it must not show in the second.
  const GenerationRequest first = request(40, 8, seeded(1)), second = request(33, 8, seeded(2));
  const std::unique_ptr<Tokenizer> tokenizer = make_tiny_tokenizer();
  const auto answers = std::make_shared<std::map<int32_t, std::vector<int32_t>>>();
  Plan one = plan();
  one.sequences = 1;
  auto engine = Engine::create(std::make_unique<Recorder>(loaded_backend(), answers), one, *tokenizer, {});
  ASSERT_TRUE(engine);
  for (const GenerationRequest* asked : {&first, &second}) {
    Collector events;
    const auto job = (*engine)->submit(*asked, events.sink());
    ASSERT_TRUE(job);
    ASSERT_TRUE(events.wait_end());
  }
  engine->reset();
  EXPECT_EQ(answers->at(second.prompt.front()), plain_loop(loaded_backend().get(), second));
}

}  // namespace
}  // namespace lily::test
