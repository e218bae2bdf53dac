#include "backends/host/pass_check.h"

#include <algorithm>
#include <cmath>

#include "backends/host/pass.h"

namespace lily::host {
namespace {

Result<void> check_sampling(size_t index, const Sampling& sampling, uint32_t vocab) {
  if (sampling.mode == Sampling::Mode::none) {
    return {};
  }
  const auto check = [index](bool good, std::string_view name, std::string_view expected,
                             float found) -> Result<void> {
    if (good) {
      return {};
    }
    return fail(ErrorKind::invalid_input, "slice {}: {}: expected {}, found {}", index, name, expected,
                found);
  };
  const float temperature = sampling.temperature;
  LILY_TRY_VOID(
      check(sampling.mode == Sampling::Mode::greedy || (temperature > 0 && std::isfinite(temperature)),
            "temperature", "a finite number above 0", temperature));
  LILY_TRY_VOID(
      check(sampling.top_p > 0 && sampling.top_p <= 1, "top_p", "a number in (0, 1]", sampling.top_p));
  LILY_TRY_VOID(
      check(sampling.min_p >= 0 && sampling.min_p <= 1, "min_p", "a number in [0, 1]", sampling.min_p));
  LILY_TRY_VOID(check(sampling.repetition_penalty > 0 && std::isfinite(sampling.repetition_penalty),
                      "repetition_penalty", "a finite number above 0", sampling.repetition_penalty));
  LILY_TRY_VOID(check(std::isfinite(sampling.presence_penalty), "presence_penalty", "a finite number",
                      sampling.presence_penalty));
  LILY_TRY_VOID(check(std::isfinite(sampling.frequency_penalty), "frequency_penalty", "a finite number",
                      sampling.frequency_penalty));
  for (const LogitBias& bias : sampling.bias) {
    if (bias.token < 0 || static_cast<uint32_t>(bias.token) >= vocab || !std::isfinite(bias.bias)) {
      return fail(ErrorKind::invalid_input,
                  "slice {}: logit bias: expected an id below {} and a finite bias, found id {} and bias {}",
                  index, vocab, bias.token, bias.bias);
    }
  }
  const size_t words = (size_t{vocab} + 31) / 32;
  if (!sampling.allowed.empty() && sampling.allowed.size() != words) {
    return fail(ErrorKind::invalid_input, "slice {}: mask of allowed tokens: expected {} words, found {}",
                index, words, sampling.allowed.size());
  }
  return {};
}

// Ids, rows of logits and the length of a draft.
Result<void> check_tokens(size_t index, const Slice& slice, const Plan& plan) {
  const size_t rows = std::max<size_t>(slice.tokens.size(), 1);
  if (rows > plan.chunk) {
    return fail(ErrorKind::limit, "slice {}: expected at most {} tokens, found {}", index, plan.chunk, rows);
  }
  for (size_t i = 0; i < slice.tokens.size(); ++i) {
    const int32_t token = slice.tokens[i];
    if (token < 0 || static_cast<uint32_t>(token) >= plan.shape.vocab) {
      return fail(ErrorKind::invalid_input, "slice {}: token {}: expected an id in [0, {}), found {}", index,
                  i, plan.shape.vocab, token);
    }
  }
  if (slice.logits_rows > rows) {
    return fail(ErrorKind::invalid_input, "slice {}: {} rows of logits are wanted of {}", index,
                slice.logits_rows, rows);
  }
  if (slice.keep == Keep::until_accept && (slice.tokens.empty() || rows > Limits::kMaxDraft)) {
    return fail(ErrorKind::invalid_input, "slice {}: a draft has 1 to {} given tokens, found {}", index,
                Limits::kMaxDraft, slice.tokens.size());
  }
  return {};
}

Result<void> check_state(size_t index, const Slice& slice, FactsOf facts_of) {
  const std::optional<StateFacts> state = facts_of(slice.state);
  if (!state) {
    return fail(ErrorKind::invalid_input, "slice {}: its state is {}", index,
                slice.state == nullptr ? "absent" : "of another backend or model");
  }
  if (state->failed) {
    return fail(ErrorKind::invalid_input,
                "slice {}: a failed pass left its state unusable: resume a checkpoint or drop it", index);
  }
  if (state->provisional) {
    return fail(ErrorKind::invalid_input, "slice {}: its state has provisional rows: accept() them first",
                index);
  }
  if (slice.tokens.empty() && !state->samples) {
    return fail(ErrorKind::invalid_input, "slice {}: it feeds the token sampled last, but none was sampled",
                index);
  }
  const size_t rows = std::max<size_t>(slice.tokens.size(), 1);
  if (state->length + rows > state->max_tokens) {
    return fail(ErrorKind::limit, "slice {}: its state holds {} tokens of at most {}: no room for {}", index,
                state->length, state->max_tokens, rows);
  }
  return {};
}

}  // namespace

Result<void> check_pass(const Pass& pass, const Plan& plan, FactsOf facts_of) {
  if (pass.slices.empty()) {
    return fail(ErrorKind::invalid_input, "a pass needs at least one slice");
  }
  size_t rows = 0;
  for (size_t i = 0; i < pass.slices.size(); ++i) {
    const Slice& slice = pass.slices[i];
    LILY_TRY_VOID(check_state(i, slice, facts_of));
    LILY_TRY_VOID(check_tokens(i, slice, plan));
    LILY_TRY_VOID(check_sampling(i, slice.sampling, plan.shape.vocab));
    for (size_t other = 0; other < i; ++other) {
      if (pass.slices[other].state == slice.state) {
        return fail(ErrorKind::invalid_input, "slices {} and {} use the same state", other, i);
      }
    }
    rows += std::max<size_t>(slice.tokens.size(), 1);
  }
  if (rows > plan.max_rows) {
    return fail(ErrorKind::limit, "a pass has at most {} rows, found {}", plan.max_rows, rows);
  }
  return {};
}

void record_pass(const Pass& pass, PassRecord& record) {
  record.ids.clear();
  record.slices.clear();
  record.bias.clear();
  record.cancel = pass.cancel;
  record.probe = pass.probe;
  record.done = false;
  for (const Slice& slice : pass.slices) {
    record.bias.insert(record.bias.end(), slice.sampling.bias.begin(), slice.sampling.bias.end());
  }
  const LogitBias* bias = record.bias.data();
  for (const Slice& slice : pass.slices) {
    auto* state = static_cast<HostState*>(slice.state);
    const auto rows = static_cast<uint32_t>(std::max<size_t>(slice.tokens.size(), 1));
    record.slices.push_back({.state = state,
                             .gate = state->gate(),
                             .resumed = state->gate()->resumed,
                             .first_id = static_cast<uint32_t>(record.ids.size()),
                             .rows = rows,
                             .position = state->length(),
                             .feeds_sampled = slice.tokens.empty(),
                             .keep = slice.keep,
                             .read_as = slice.read_as,
                             .logits_rows = slice.logits_rows,
                             .sampling = slice.sampling});
    record.slices.back().sampling.bias = {bias, slice.sampling.bias.size()};
    bias += slice.sampling.bias.size();
    record.ids.insert(record.ids.end(), slice.tokens.begin(), slice.tokens.end());
    record.ids.resize(record.slices.back().first_id + rows);
    state->gate()->enter();
    state->submitted(slice.tokens, slice.keep, slice.sampling.mode != Sampling::Mode::none);
  }
}

}  // namespace lily::host
