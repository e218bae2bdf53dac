#include "apps/lily/bench_rows.h"

#include <algorithm>
#include <charconv>

#include "base/check.h"
#include "model/tensors.h"

namespace lily::app {
namespace {

bool is_vocabulary(const TensorSite& site) {
  return site.name == "model.embed_tokens" || site.name == "lm_head";
}

}  // namespace

Result<std::vector<uint32_t>> parse_list(std::string_view text, uint32_t low, uint32_t high) {
  std::vector<uint32_t> values;
  for (std::string_view rest = text;;) {
    const std::string_view item = rest.substr(0, rest.find(','));
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), value);
    if (error != std::errc() || end != item.data() + item.size() || value < low || value > high) {
      return fail(ErrorKind::invalid_input,
                  "expected whole numbers from {} to {}, separated by commas, found '{}' in '{}'", low, high,
                  item, text);
    }
    values.push_back(value);
    if (item.size() == rest.size()) {
      break;
    }
    rest.remove_prefix(item.size() + 1);
  }
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

Statistic statistic_of(std::vector<double> values) {
  LILY_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {.median = median, .spread = (values.back() - values.front()) / median};
}

uint64_t multiply_adds_per_token(const Shape& shape) {
  ModelWeights weights = empty_weights(shape, /*with_mtp=*/false);
  uint64_t count = 0;
  for (const TensorSite& site : tensor_table(shape, weights)) {
    if (std::holds_alternative<AffineMatrix*>(site.view) && !is_vocabulary(site)) {
      count += uint64_t{site.rows} * site.cols * std::min(site.experts, Shape::kTopK);
    }
  }
  return count;
}

uint64_t multiply_adds_of_head(const Shape& shape) { return uint64_t{shape.vocab} * shape.hidden; }

std::string_view to_string(BenchPhase phase) { return phase == BenchPhase::prefill ? "prefill" : "decode"; }

BenchRow make_row(const BenchCase& measured, std::span<const BenchRun> runs, const DeviceLimits& limits,
                  const Shape& shape) {
  std::vector<double> speeds;
  std::vector<double> first_tokens;
  for (const BenchRun& run : runs) {
    speeds.push_back(static_cast<double>(run.tokens) / run.seconds);
    first_tokens.push_back(run.first_token);
  }
  const Statistic speed = statistic_of(std::move(speeds));
  const BenchRun& run = runs.front();  // all repeats do the same work
  const auto tokens = static_cast<double>(run.tokens);
  BenchRow row{.measured = measured,
               .tok_s = speed.median,
               .spread = speed.spread,
               .bytes_per_token = static_cast<double>(run.bytes_read) / tokens,
               .gb_s = 0,
               .share_of_limit = 0,
               .ttft_s = statistic_of(std::move(first_tokens)).median,
               .peak_bytes = 0};
  const double bytes_per_second = row.bytes_per_token * row.tok_s;
  row.gb_s = bytes_per_second / 1e9;
  if (measured.phase == BenchPhase::decode) {
    row.share_of_limit = bytes_per_second / limits.read_bytes_per_second;
  } else {
    const uint64_t multiply_adds =
        run.tokens * multiply_adds_per_token(shape) + run.head_rows * multiply_adds_of_head(shape);
    row.share_of_limit =
        static_cast<double>(multiply_adds) / tokens * row.tok_s / limits.multiply_adds_per_second;
  }
  return row;
}

void Fingerprint::add(std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    for (uint32_t shift = 0; shift < 32; shift += 8) {
      hash_ = (hash_ ^ (static_cast<uint32_t>(id) >> shift & 0xff)) * 0x100000001B3;
    }
  }
}

std::string Fingerprint::text() const { return fmt::format("{:016x}", hash_); }

}  // namespace lily::app
