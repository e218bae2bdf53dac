#include "apps/lily/scoring.h"

#include <algorithm>
#include <cmath>

#include "sampling/sampler.h"

namespace lily::app {

Result<void> score(const LoadedModel& model, std::span<const int32_t> tokens, RowSink sink) {
  const size_t vocab = model.plan.shape.vocab;
  LILY_TRY(const auto state, model.backend->new_state(static_cast<uint32_t>(tokens.size())));
  for (size_t first = 0; first < tokens.size(); first += model.plan.chunk) {
    const size_t count = std::min<size_t>(model.plan.chunk, tokens.size() - first);
    const std::array<Slice, 1> slices{Slice{.state = state.get(),
                                            .tokens = tokens.subspan(first, count),
                                            .logits_rows = static_cast<uint32_t>(count)}};
    LILY_TRY(const Ticket ticket, model.backend->submit({.slices = slices}));
    LILY_TRY(const Output output, model.backend->collect(ticket));
    const SliceOutput& slice = output.slices[0];
    if (!slice.finite) {
      return fail(ErrorKind::internal, "the logits of tokens {} to {} are not finite", first,
                  first + count - 1);
    }
    for (size_t row = 0; row < count; ++row) {
      LILY_TRY_VOID(sink(first + row, std::span(slice.logits).subspan(row * vocab, vocab)));
    }
  }
  return {};
}

double kl_divergence(std::span<const float> p, std::span<const float> q) {
  // log p_i = p[i] - normaliser of p.
  const double p_normaliser = static_cast<double>(p[0]) - log_softmax_at(p, 0);
  const double q_normaliser = static_cast<double>(q[0]) - log_softmax_at(q, 0);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = static_cast<double>(p[i]) - p_normaliser;
    const double log_q = static_cast<double>(q[i]) - q_normaliser;
    sum += std::exp(log_p) * (log_p - log_q);
  }
  return std::max(sum, 0.0);
}

int32_t argmax(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

}  // namespace lily::app
