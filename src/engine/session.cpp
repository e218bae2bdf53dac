#include "engine/session.h"

#include <algorithm>

namespace lily {
namespace {

uint32_t answer_limit(const GenerationRequest& request, uint32_t context) {
  const uint32_t room = context - static_cast<uint32_t>(request.prompt.size());
  return request.max_tokens == 0 ? room : std::min(room, request.max_tokens);
}

double seconds_between(EngineClock::time_point begin, EngineClock::time_point end) {
  return std::max(0.0, std::chrono::duration<double>(end - begin).count());
}

}  // namespace

Session::Session(std::shared_ptr<JobRecord> job, std::unique_ptr<SequenceState> state,
                 const Tokenizer& tokenizer, uint32_t context)
    : job_(std::move(job)),
      state_(std::move(state)),
      max_tokens_(answer_limit(job_->request, context)),
      generation_(tokenizer, job_->request, max_tokens_) {}

SequenceProgress Session::progress() const {
  const auto prompt = static_cast<uint32_t>(job_->request.prompt.size());
  if (!job_->wanted()) return {};  // nothing more to do
  return {.prompt = prompt,
          .absorbed = absorbed_,
          .wants_token = absorbed_ == prompt && samples_ < max_tokens_,
          .last_turn = last_turn};
}

Slice Session::slice(const Assignment& assignment) {
  const GenerationRequest& request = job_->request;
  Slice slice;
  slice.state = state_.get();
  if (assignment.rows > 0)
    slice.tokens = std::span(request.prompt).subspan(assignment.begin, assignment.rows);
  const bool samples = assignment.rows == 0 || assignment.begin + assignment.rows == request.prompt.size();
  if (samples) {
    slice.sampling = request.sampling;
    slice.sampling.bias = request.logit_bias;
    slice.logits_rows = request.logprobs ? 1 : 0;
  }
  return slice;
}

void Session::submitted(const Assignment& assignment, uint64_t pass) {
  ++passes_in_flight;
  if (assignment.rows > 0) {
    absorbed_ = assignment.begin + assignment.rows;
    last_turn = pass;
  }
  if (absorbed_ == job_->request.prompt.size()) ++samples_;
}

void Session::start() {
  started_ = EngineClock::now();
  job_->send(Started{});
}

Result<void> Session::take(const Assignment& assignment, const SliceOutput& output, uint32_t vocab) {
  const auto prompt = static_cast<uint32_t>(job_->request.prompt.size());
  if (assignment.rows > 0) {
    new_prompt_tokens += assignment.rows;
    if (!output.finite) {
      state_failed = true;
      return fail(ErrorKind::internal, "the model's logits are not finite after prompt token {} of {}",
                  assignment.begin + assignment.rows, prompt);
    }
    job_->send(PromptProgress{.done = assignment.begin + assignment.rows, .total = prompt});
    if (assignment.begin + assignment.rows < prompt) return {};
  }
  if (!output.finite) {
    state_failed = true;
    return fail(ErrorKind::internal, "the model's logits are not finite at token {} of the answer",
                generation_.tokens() + 1);
  }
  const size_t expected_logits = job_->request.logprobs ? vocab : 0;
  if (output.token < 0 || static_cast<uint32_t>(output.token) >= vocab ||
      output.logits.size() < expected_logits) {
    state_failed = true;
    return fail(ErrorKind::internal,
                "the device gave token {} and {} logits: expected a token under {} and {}", output.token,
                output.logits.size(), vocab, expected_logits);
  }
  last_token_ = EngineClock::now();
  if (generation_.tokens() == 0) first_token_ = last_token_;
  ++new_tokens;
  Generation::Step step = generation_.push(output.token, output.logits);
  for (Delta& delta : step.deltas) job_->send(std::move(delta));
  if (step.end) finish(*step.end);
  return {};
}

void Session::finish(FinishReason reason) {
  job_->end(Finished{.reason = reason, .stop_string = generation_.stop_string(), .usage = usage()});
}

Usage Session::usage() const {
  Usage usage;
  usage.prompt_tokens = static_cast<uint32_t>(job_->request.prompt.size());
  usage.completion_tokens = generation_.tokens();
  usage.reasoning_tokens = generation_.reasoning_tokens();
  usage.queue_seconds = seconds_between(job_->submitted, started_);
  usage.prefill_seconds = seconds_between(started_, first_token_);
  usage.decode_seconds = seconds_between(first_token_, last_token_);
  return usage;
}

}  // namespace lily
