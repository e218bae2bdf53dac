#include "apps/lily/bench_passes.h"

#include <algorithm>
#include <chrono>
#include <deque>

#include "engine/scheduler.h"

namespace lily::app {
namespace {

using Clock = std::chrono::steady_clock;

// SplitMix64's finaliser.
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

Sampling greedy() {
  Sampling sampling;
  sampling.mode = Sampling::Mode::greedy;
  return sampling;
}

}  // namespace

// A pass is read only when the next one is on the device already, or when there is no next one.
class Conversations::Pipeline {
 public:
  Pipeline(Backend& backend, const std::atomic<bool>* cancel, size_t sequences)
      : backend_(backend), cancel_(cancel), sequences_(sequences), start_(Clock::now()) {}

  Result<void> submit(std::span<const Slice> slices) {
    LILY_TRY(const Ticket ticket, backend_.submit({.slices = slices, .cancel = cancel_, .probe = nullptr}));
    flights_.push_back(ticket);
    return flights_.size() == Backend::kMaxInFlight ? collect() : Result<void>{};
  }
  Result<void> drain() {
    while (!flights_.empty()) {
      LILY_TRY_VOID(collect());
    }
    return {};
  }
  // After drain().
  BenchRun take(uint64_t tokens) {
    run_.tokens = tokens;
    run_.seconds = since_start();
    run_.head_rows = run_.ids.size();
    return std::move(run_);
  }

 private:
  double since_start() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  Result<void> collect() {
    const Ticket ticket = flights_.front();
    flights_.pop_front();
    LILY_TRY(const Output output, backend_.collect(ticket));
    run_.bytes_read += output.bytes_read;
    for (const SliceOutput& slice : output.slices) {
      if (!slice.finite) {
        return fail(ErrorKind::internal, "the logits of a pass are not finite");
      }
      if (slice.token >= 0) {
        run_.ids.push_back(slice.token);
      }
    }
    if (run_.first_token == 0 && run_.ids.size() >= sequences_) {
      run_.first_token = since_start();
    }
    return {};
  }

  Backend& backend_;
  const std::atomic<bool>* cancel_;
  size_t sequences_;
  Clock::time_point start_;
  std::deque<Ticket> flights_;
  BenchRun run_;
};

Result<void> Conversations::create(uint32_t count) {
  conversations_.clear();
  depth_ = 0;
  for (uint32_t i = 0; i < count; ++i) {
    Conversation conversation;
    LILY_TRY(conversation.state, backend_.new_state(plan_.context));
    LILY_TRY(conversation.at_depth, conversation.state->save());
    conversations_.push_back(std::move(conversation));
  }
  return {};
}

// A token depends on the conversation and its position alone. Evenly spread over the vocabulary: no text, but
// every sequence asks for experts of its own.
std::vector<int32_t> Conversations::tokens_of(const Conversation& conversation, uint32_t begin,
                                              uint32_t count) const {
  const auto number = static_cast<uint64_t>(&conversation - conversations_.data());
  std::vector<int32_t> tokens(count);
  for (uint32_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<int32_t>(mix((number + 1) << 32 | (begin + i)) % plan_.shape.vocab);
  }
  return tokens;
}

Result<void> Conversations::go_to_depth(uint32_t depth, FunctionRef<void(double)> progress) {
  for (size_t i = 0; i < conversations_.size(); ++i) {
    Conversation& conversation = conversations_[i];
    LILY_TRY_VOID(conversation.state->resume(*conversation.at_depth));
    // A few chunks at a time, for the progress.
    for (uint32_t done = depth_; done < depth;) {
      const uint32_t until = std::min(depth, done + 8 * plan_.chunk);
      Pipeline pipeline(backend_, cancel_, 1);
      LILY_TRY_VOID(read({&conversation, 1}, until, /*sample=*/false, pipeline));
      done = until;
      progress((static_cast<double>(i) + static_cast<double>(done - depth_) / (depth - depth_)) /
               static_cast<double>(conversations_.size()));
    }
    LILY_TRY(conversation.at_depth, conversation.state->save());
  }
  depth_ = depth;
  return {};
}

Result<BenchRun> Conversations::run(const BenchCase& measured, uint32_t steps) {
  const auto which = std::span(conversations_).first(measured.parallel);
  for (Conversation& conversation : which) {
    LILY_TRY_VOID(conversation.state->resume(*conversation.at_depth));
  }
  const bool decodes = measured.phase == BenchPhase::decode;
  Pipeline pipeline(backend_, cancel_, which.size());
  if (decodes) {
    LILY_TRY_VOID(decode(which, steps, pipeline));
  } else {
    LILY_TRY_VOID(read(which, depth_ + measured.prompt, /*sample=*/true, pipeline));
  }
  return pipeline.take(uint64_t{measured.parallel} * (decodes ? steps : measured.prompt));
}

// Prefills all of them to `until` tokens.
Result<void> Conversations::read(std::span<const Conversation> which, uint32_t until, bool sample,
                                 Pipeline& pipeline) {
  std::vector<SequenceProgress> progress;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<uint32_t> begins;
  for (const Conversation& conversation : which) {
    const uint32_t begin = conversation.state->length();
    begins.push_back(begin);
    tokens.push_back(tokens_of(conversation, begin, until - begin));
    progress.push_back({.prompt = until, .absorbed = begin, .wants_token = false, .last_turn = 0});
  }
  for (uint64_t turn = 1;; ++turn) {
    std::vector<Slice> slices;
    for (const Assignment& part : schedule(progress, plan_.chunk)) {
      SequenceProgress& of = progress[part.sequence];
      of.absorbed += part.rows;
      of.last_turn = turn;
      slices.push_back(
          {.state = which[part.sequence].state.get(),
           .tokens = std::span(tokens[part.sequence]).subspan(part.begin - begins[part.sequence], part.rows),
           .sampling = sample && of.absorbed == until ? greedy() : Sampling{}});
    }
    if (slices.empty()) {
      return pipeline.drain();
    }
    LILY_TRY_VOID(pipeline.submit(slices));
  }
}

// The first step is given a token, as after a prompt; the others take what the one before sampled.
Result<void> Conversations::decode(std::span<const Conversation> which, uint32_t steps, Pipeline& pipeline) {
  std::vector<std::vector<int32_t>> given;
  for (const Conversation& conversation : which) {
    given.push_back(tokens_of(conversation, depth_, 1));
  }
  for (uint32_t step = 0; step < steps; ++step) {
    std::vector<Slice> slices;
    for (size_t i = 0; i < which.size(); ++i) {
      slices.push_back({.state = which[i].state.get(),
                        .tokens = step == 0 ? std::span<const int32_t>(given[i]) : std::span<const int32_t>(),
                        .sampling = greedy()});
    }
    LILY_TRY_VOID(pipeline.submit(slices));
  }
  return pipeline.drain();
}

}  // namespace lily::app
