#include "engine/session.h"

#include <algorithm>

#include "base/check.h"

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

void Session::resume(const PromptReuse& reuse, Reading reading, std::vector<uint32_t> stops) {
  reuse_ = reuse;
  absorbed_ = reuse.cached;
  reading_ = std::move(reading);
  stops_ = std::move(stops);
}

SequenceProgress Session::progress() const {
  const auto prompt = static_cast<uint32_t>(job_->request.prompt.size());
  if (!job_->wanted()) return {};  // nothing more to do
  const uint32_t stop = next_stop_ < stops_.size() ? stops_[next_stop_] : 0;
  if (absorbed_ == stop && stop != 0) return {};  // waits until it is kept
  if (unsaved()) return {};                       // or until a copy is
  // What is to be absorbed or sampled next depends on the last token: it must be known.
  const bool known = !(over_budget() || may_close_thinking()) || generation_.tokens() == samples_;
  return {.prompt = prompt,
          .absorbed = absorbed_,
          .end = std::min({stop != 0 ? stop : prompt, prompt, reading_.next_change(absorbed_)}),
          .single = reading_.single(absorbed_),
          .wants_token = absorbed_ == prompt && samples_ < max_tokens_ && known,
          .last_turn = last_turn};
}

bool Session::unsaved() const {
  return unsaved_seconds_ > most_unsaved && absorbed_ < job_->request.prompt.size() &&
         reading_.keeps(absorbed_);
}

bool Session::over_budget() const {
  const GenerationRequest& request = job_->request;
  return request.thinking_budget && samples_ >= *request.thinking_budget && !think_ended_ &&
         generation_.in_think();
}

bool Session::may_close_thinking() const {
  const GenerationRequest& request = job_->request;
  return request.close_thinking && request.starts_in_think && generation_.in_think();
}

Slice Session::slice(const Assignment& assignment) {
  const GenerationRequest& request = job_->request;
  Slice slice;
  slice.state = state_.get();
  if (assignment.rows > 0) {
    slice.tokens = std::span(request.prompt).subspan(assignment.begin, assignment.rows);
    slice.read_as = reading_.as(assignment.begin);
  }
  if (assignment.rows == 0 && replaced_ >= 0) {
    slice.tokens = std::span(&replaced_, 1);
    slice.read_as = ReadAs::single;
  }
  const bool samples = assignment.rows == 0 || assignment.begin + assignment.rows == request.prompt.size();
  if (samples) {
    slice.sampling = request.sampling;
    slice.sampling.bias = request.logit_bias;
    if (over_budget()) {
      constexpr float kCertain = 1e9F;  // more than any logit and penalty together
      think_end_ = {{.token = request.think_end, .bias = kCertain}};
      slice.sampling =
          Sampling{.mode = Sampling::Mode::greedy, .seed = request.sampling.seed, .bias = think_end_};
    }
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
  if (absorbed_ == job_->request.prompt.size()) {
    think_ended_ = think_ended_ || over_budget();
    replaced_ = -1;
    ++samples_;
  }
}

bool Session::at_stop() const {
  return passes_in_flight == 0 && next_stop_ < stops_.size() && absorbed_ == stops_[next_stop_];
}

std::shared_ptr<Checkpoint> Session::left_aside() const {
  const bool of_use = state_failed || state_->length() >= job_->request.prompt.size();
  return job_->cancelled() && of_use ? aside_ : nullptr;
}

bool Session::leaves_beginning_of(std::span<const int32_t> prompt) const {
  const std::span<const int32_t> own = job_->request.prompt;
  const auto begins = [&](size_t length) {
    const auto beginning = own.first(std::min(length, own.size()));
    return !beginning.empty() && beginning.size() < prompt.size() &&
           (length > own.size() || reading_.keeps(static_cast<uint32_t>(length))) &&
           std::equal(beginning.begin(), beginning.end(), prompt.begin());
  };
  // Cancelled, the pass that holds the state may yet be dropped, and the state with it.
  if (job_->cancelled() && aside_ != nullptr && begins(aside_->length())) return true;
  return !state_failed && begins(state_->length());
}

std::span<const int32_t> Session::absorbed_tokens() {
  const std::span<const int32_t> prompt = job_->request.prompt;
  const size_t length = state_->length();
  if (length <= prompt.size()) return prompt.first(length);
  // Of the answer all but the last token were fed back; that one too, if a pass was on its way when it came.
  history_.assign(prompt.begin(), prompt.end());
  history_.insert(history_.end(), sampled_.begin(), sampled_.end());
  LILY_CHECK(length <= history_.size());
  return std::span<const int32_t>(history_).first(length);
}

void Session::start() {
  started_ = EngineClock::now();
  job_->send(Started{reuse_});
}

SequenceMetrics Session::metrics() const {
  return {.job = number,
          .prompt_tokens = static_cast<uint32_t>(job_->request.prompt.size()),
          .cached_tokens = reuse_.cached,
          .read_tokens = absorbed_,
          .sampled_tokens = generation_.tokens(),
          .max_tokens = max_tokens_};
}

std::vector<int32_t> Session::all_tokens() const {
  std::vector<int32_t> tokens = job_->request.prompt;
  tokens.insert(tokens.end(), sampled_.begin(), sampled_.end());
  return tokens;
}

// Whether `output` can be believed.
Result<void> Session::check(const Assignment& assignment, const SliceOutput& output, uint32_t vocab) const {
  const auto prompt = static_cast<uint32_t>(job_->request.prompt.size());
  const uint32_t read = assignment.begin + assignment.rows;
  if (!output.finite && assignment.rows > 0) {
    return fail(ErrorKind::internal, "the model's logits are not finite after prompt token {} of {}", read,
                prompt);
  }
  if (!output.finite) {
    return fail(ErrorKind::internal, "the model's logits are not finite at token {} of the answer",
                generation_.tokens() + 1);
  }
  const size_t expected_logits = job_->request.logprobs ? vocab : 0;
  const bool samples = assignment.rows == 0 || read == prompt;
  if (samples && (output.token < 0 || static_cast<uint32_t>(output.token) >= vocab ||
                  output.logits.size() < expected_logits)) {
    return fail(ErrorKind::internal,
                "the device gave token {} and {} logits: expected a token under {} and {}", output.token,
                output.logits.size(), vocab, expected_logits);
  }
  return {};
}

Result<std::optional<Finished>> Session::take(const Assignment& assignment, const SliceOutput& output,
                                              uint32_t vocab) {
  const auto prompt = static_cast<uint32_t>(job_->request.prompt.size());
  new_prompt_tokens += assignment.rows;
  if (Result<void> checked = check(assignment, output, vocab); !checked) {
    state_failed = true;
    return fail(std::move(checked).error());
  }
  if (assignment.rows > 0) {
    job_->send(PromptProgress{.done = assignment.begin + assignment.rows, .total = prompt});
    if (assignment.begin + assignment.rows < prompt) return std::nullopt;
    put_aside(nullptr);
  }
  last_token_ = EngineClock::now();
  if (generation_.tokens() == 0) first_token_ = last_token_;
  ++new_tokens;
  int32_t token = output.token;
  const std::vector<int32_t>& stop_ids = job_->request.stop_ids;
  if (may_close_thinking() && std::ranges::find(stop_ids, token) != stop_ids.end() &&
      !generation_.thinking_ends_with_calls()) {
    token = replaced_ = sampled_.back() = job_->request.think_end;
    closed_thinking = true;
  }
  Generation::Step step = generation_.push(token, output.logits);
  for (Delta& delta : step.deltas) job_->send(std::move(delta));
  if (!step.end) return std::nullopt;
  return finished(*step.end);
}

std::optional<Finished> Session::cut_off() {
  if (generation_.tokens() == 0) return std::nullopt;
  Generation::Step step = generation_.cut();
  for (Delta& delta : step.deltas) job_->send(std::move(delta));
  return finished(*step.end);
}

Finished Session::finished(FinishReason reason) const {
  return {.reason = reason, .stop_string = generation_.stop_string(), .usage = usage()};
}

Usage Session::usage() const {
  Usage usage;
  usage.prompt_tokens = static_cast<uint32_t>(job_->request.prompt.size());
  usage.cached_tokens = reuse_.cached;
  usage.completion_tokens = generation_.tokens();
  usage.reasoning_tokens = generation_.reasoning_tokens();
  usage.queue_seconds = seconds_between(job_->submitted, started_);
  usage.prefill_seconds = seconds_between(started_, first_token_);
  usage.decode_seconds = seconds_between(first_token_, last_token_);
  return usage;
}

}  // namespace lily
