#include "sampling/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

namespace lily {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

// How many candidates are put in order first when top_k does not say; doubled until enough.
constexpr size_t kFirstPrefix = 256;

// Neither NaN nor +infinity among them. Without a branch, so that compilers make vectors of it: a row is as
// long as the vocabulary, and looked at for every token.
bool all_usable(std::span<const float> logits) {
  constexpr int32_t kInfinity = 0x7f800000;
  int32_t bad = 0;
  for (const float logit : logits) {
    const auto bits = std::bit_cast<int32_t>(logit);
    bad |= static_cast<int32_t>((bits & 0x7fffffff) > kInfinity) | static_cast<int32_t>(bits == kInfinity);
  }
  return bad == 0;
}

// The order of candidates: larger logit first, lower id among equals.
struct Before {
  const float* logits;
  bool operator()(int32_t a, int32_t b) const {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  }
};

void add_bias(std::span<float> logits, std::span<const LogitBias> bias) {
  for (const LogitBias& entry : bias) {
    if (entry.token >= 0 && static_cast<size_t>(entry.token) < logits.size()) {
      logits[entry.token] += entry.bias;
    }
  }
}

void penalise_repetition(std::span<float> logits, const TokenCounts& counts, float penalty) {
  const auto apply = [&](size_t token) {
    if (token < logits.size()) {
      logits[token] = logits[token] > 0 ? logits[token] / penalty : logits[token] * penalty;
    }
  };
  const std::span<const uint64_t> prompt = counts.prompt_bits();
  for (size_t word = 0; word < prompt.size(); ++word) {
    for (uint64_t bits = prompt[word]; bits != 0; bits &= bits - 1) {
      apply(word * 64 + static_cast<size_t>(std::countr_zero(bits)));
    }
  }
  for (const auto& [token, count] : counts.answer()) {
    if (!counts.in_prompt(token)) {
      apply(static_cast<size_t>(token));
    }
  }
}

void penalise_answer(std::span<float> logits, const TokenCounts& counts, const Sampling& sampling) {
  for (const auto& [token, count] : counts.answer()) {
    if (token >= 0 && static_cast<size_t>(token) < logits.size()) {
      logits[token] -= sampling.frequency_penalty * static_cast<float>(count);
      logits[token] -= sampling.presence_penalty;
    }
  }
}

void mask(std::span<float> logits, std::span<const uint32_t> allowed) {
  for (size_t token = 0; token < logits.size(); ++token) {
    const bool allow = token / 32 < allowed.size() && ((allowed[token / 32] >> (token % 32)) & 1U) != 0;
    if (!allow) {
      logits[token] = kForbidden;
    }
  }
}

float largest_of(std::span<const float> logits) {
  constexpr size_t kLanes = 16;  // independent ones, for vectors
  std::array<float, kLanes> lane;
  lane.fill(kForbidden);
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      lane[j] = logits[i + j] > lane[j] ? logits[i + j] : lane[j];
    }
  }
  for (; i < logits.size(); ++i) {
    lane[0] = std::max(lane[0], logits[i]);
  }
  return *std::max_element(lane.begin(), lane.end());
}

// The id of the largest logit, the lowest among equals; -1 where nothing is allowed or one is not usable.
int32_t argmax(std::span<const float> logits) {
  constexpr size_t kBlock = 4096;
  if (!all_usable(logits)) {
    return -1;
  }
  size_t best_block = 0;
  float largest = kForbidden;
  for (size_t block = 0; block < logits.size(); block += kBlock) {
    const float of_block = largest_of(logits.subspan(block, std::min(kBlock, logits.size() - block)));
    if (of_block > largest) {
      largest = of_block;
      best_block = block;
    }
  }
  if (largest == kForbidden) {
    return -1;
  }
  const auto found = std::find(logits.begin() + static_cast<ptrdiff_t>(best_block), logits.end(), largest);
  return static_cast<int32_t>(found - logits.begin());
}

// Whether the logits are sampled as they are.
bool leaves_logits(const Sampling& sampling) {
  return sampling.bias.empty() && sampling.repetition_penalty == 1.0F && sampling.frequency_penalty == 0.0F &&
         sampling.presence_penalty == 0.0F && sampling.allowed.empty();
}

// The candidates of a row in descending order, put in order only as far as they are looked at.
class Ranking {
 public:
  Ranking(std::span<const float> logits, float largest, SamplerScratch& scratch)
      : logits_(logits), largest_(largest), order_(scratch.order) {
    order_.resize(logits.size());
    std::iota(order_.begin(), order_.end(), 0);
  }

  size_t size() const { return order_.size(); }
  int32_t token(size_t rank) {
    while (rank >= ordered_) {
      extend(std::max(kFirstPrefix, 2 * ordered_));
    }
    return order_[rank];
  }
  double weight(size_t rank) { return weight_of(token(rank)); }
  double weight_of(int32_t id) const {
    return std::exp(static_cast<double>(logits_[id]) - static_cast<double>(largest_));
  }

  void extend(size_t count) {
    count = std::min(count, order_.size());
    std::partial_sort(order_.begin() + static_cast<ptrdiff_t>(ordered_),
                      order_.begin() + static_cast<ptrdiff_t>(count), order_.end(), Before{logits_.data()});
    ordered_ = count;
  }

 private:
  std::span<const float> logits_;
  float largest_;
  std::vector<int32_t>& order_;
  size_t ordered_ = 0;
};

// top_k, top_p and min_p in turn: returns how many tokens are kept, and their mass in `mass`.
size_t keep(Ranking& ranking, const Sampling& sampling, double& mass) {
  size_t count = ranking.size();
  double total = 0;
  if (sampling.top_k != 0 && sampling.top_k < count) {
    count = sampling.top_k;
    ranking.extend(count);
    for (size_t rank = 0; rank < count; ++rank) {
      total += ranking.weight(rank);
    }
  } else {
    for (size_t id = 0; id < count; ++id) {
      total += ranking.weight_of(static_cast<int32_t>(id));
    }
  }
  mass = total;
  if (sampling.top_p >= 1.0F && sampling.min_p <= 0.0F) {
    return count;
  }
  const double enough = static_cast<double>(sampling.top_p) * total;
  double sum = 0;
  size_t kept = 0;
  while (kept < count) {
    const double weight = ranking.weight(kept);
    if (kept > 0 && (weight < static_cast<double>(sampling.min_p) || weight == 0)) {  // the largest weighs 1
      break;
    }
    sum += weight;
    ++kept;
    if (sampling.top_p < 1.0F && sum >= enough) {
      break;
    }
  }
  mass = sum;
  return kept;
}

int32_t draw(Ranking& ranking, size_t kept, double target) {
  double sum = 0;
  int32_t last = ranking.token(0);
  for (size_t rank = 0; rank < kept; ++rank) {
    const double weight = ranking.weight(rank);
    if (weight == 0) {
      break;
    }
    last = ranking.token(rank);
    sum += weight;
    if (target < sum) {
      break;
    }
  }
  return last;  // the last of any weight where rounding left the sum short of the target
}

}  // namespace

void TokenCounts::begin(std::span<const int32_t> prompt, uint32_t vocab) {
  answer_.clear();
  prompt_.assign((size_t{vocab} + 63) / 64, 0);
  for (const int32_t token : prompt) {
    if (token >= 0 && static_cast<uint32_t>(token) < vocab) {
      prompt_[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64);
    }
  }
}

void TokenCounts::add(int32_t token) { ++answer_[token]; }

void TokenCounts::remove(int32_t token) {
  const auto found = answer_.find(token);
  if (found != answer_.end() && --found->second == 0) {
    answer_.erase(found);
  }
}

bool TokenCounts::in_prompt(int32_t token) const {
  const size_t word = static_cast<size_t>(token) / 64;
  return token >= 0 && word < prompt_.size() && ((prompt_[word] >> (token % 64)) & 1U) != 0;
}

Sampled sample(std::span<const float> logits, const Sampling& sampling, const TokenCounts& counts,
               uint64_t position, SamplerScratch& scratch) {
  if (sampling.mode != Sampling::Mode::random && leaves_logits(sampling)) {
    const int32_t best = argmax(logits);
    return {.token = best, .finite = best >= 0};
  }
  if (!all_usable(logits)) {
    return {.token = -1, .finite = false};
  }
  std::vector<float>& adjusted = scratch.adjusted;
  adjusted.assign(logits.begin(), logits.end());
  add_bias(adjusted, sampling.bias);
  if (sampling.repetition_penalty != 1.0F) {
    penalise_repetition(adjusted, counts, sampling.repetition_penalty);
  }
  if (sampling.frequency_penalty != 0.0F || sampling.presence_penalty != 0.0F) {
    penalise_answer(adjusted, counts, sampling);
  }
  if (!sampling.allowed.empty()) {
    mask(adjusted, sampling.allowed);
  }
  const int32_t best = argmax(adjusted);
  if (best < 0 || sampling.mode != Sampling::Mode::random) {
    return {.token = best, .finite = best >= 0};
  }
  for (float& logit : adjusted) {
    logit /= sampling.temperature;
  }
  if (!std::isfinite(
          adjusted[best])) {  // a temperature so small that the quotient overflows decides like greedy
    return {.token = best, .finite = true};
  }
  Ranking ranking(adjusted, adjusted[best], scratch);
  double mass = 0;
  const size_t kept = keep(ranking, sampling, mass);
  return {.token = draw(ranking, kept, philox_uniform(sampling.seed, position) * mass), .finite = true};
}

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53U;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57U;
  constexpr uint32_t kWeyl0 = 0x9E3779B9U;
  constexpr uint32_t kWeyl1 = 0xBB67AE85U;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

double philox_uniform(uint64_t seed, uint64_t position) {
  const auto words =
      philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (uint64_t{words[0]} << 32) | words[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

namespace {

// The logarithm of the sum of exponentials of a row.
double log_sum_exp(std::span<const float> logits) {
  const double largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - largest);
  }
  return largest + std::log(sum);
}

}  // namespace

double log_softmax_at(std::span<const float> logits, int32_t token) {
  return static_cast<double>(logits[token]) - log_sum_exp(logits);
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, uint32_t count) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t kept = std::min<size_t>(count, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(kept), order.end(),
                    Before{logits.data()});
  std::vector<TokenLogprob> top;
  top.reserve(kept);
  const double normaliser = kept == 0 ? 0 : log_sum_exp(logits);
  for (size_t rank = 0; rank < kept; ++rank) {
    top.push_back({order[rank], static_cast<double>(logits[order[rank]]) - normaliser});
  }
  return top;
}

}  // namespace lily
