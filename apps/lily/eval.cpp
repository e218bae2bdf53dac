// lily eval: perplexity of a text, agreement of two models or devices, logits of given tokens.
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>

#include "apps/lily/commands.h"
#include "apps/lily/input.h"
#include "apps/lily/model_source.h"
#include "apps/lily/progress.h"
#include "apps/lily/scoring.h"
#include "sampling/sampler.h"

namespace lily::app {
namespace {

namespace fs = std::filesystem;

struct EvalOptions {
  std::string model;
  DeviceOptions device;
  fs::path text;
  uint32_t window = 1024;
  uint32_t stride = 512;
  uint64_t most_tokens = 0;  // 0 = all of the text
  bool json = false;
  // agreement
  std::string against;
  std::string against_device;
  double near_tie = 0.1;
  // logits
  fs::path ids;
  fs::path out;
};

Result<std::vector<int32_t>> read_text(const EvalOptions& options, const LoadedModel& model) {
  LILY_TRY(const std::string text, read_input(options.text));
  std::vector<int32_t> tokens = model.tokenizer->encode(text);
  if (options.most_tokens != 0 && tokens.size() > options.most_tokens) {
    tokens.resize(options.most_tokens);
  }
  if (tokens.size() < 2) {
    return fail(ErrorKind::invalid_input, "'{}': expected at least two tokens of text, found {}",
                options.text.string(), tokens.size());
  }
  return tokens;
}

// Models are loaded for windows of one sequence.
Result<LoadedModel> load_for_windows(const std::string& name, DeviceOptions device, uint32_t window) {
  device.plan.context = std::max(window, Limits::kMinContext);
  device.plan.sequences = 1;
  return load_model(name, device, /*with_tokenizer=*/true);
}

// The part of a text that one window computes, and the first of its tokens that counts.
struct Window {
  size_t begin, end;
  size_t first_scored;  // index into the text; the token before it is in the window
};

// The first window scores all its tokens but the very first; each further one begins `stride` tokens later
// and scores only what no window scored before.
std::vector<Window> windows_of(size_t tokens, uint32_t window, uint32_t stride) {
  std::vector<Window> windows;
  size_t scored = 1;
  for (size_t begin = 0; scored < tokens; begin += stride) {
    const size_t end = std::min(tokens, begin + window);
    windows.push_back({begin, end, std::max(scored, begin + 1)});
    scored = end;
  }
  return windows;
}

Result<void> perplexity(const EvalOptions& options) {
  if (options.stride > options.window) {
    return fail(ErrorKind::invalid_input, "--stride {} is larger than --window {}: tokens would be left out",
                options.stride, options.window);
  }
  LILY_TRY(const LoadedModel model, load_for_windows(options.model, options.device, options.window));
  LILY_TRY(const std::vector<int32_t> tokens, read_text(options, model));
  ProgressBar progress("scoring");
  double sum = 0;
  size_t count = 0;
  for (const Window& window : windows_of(tokens.size(), options.window, options.stride)) {
    // The last token of a window is only a target.
    const std::span<const int32_t> inputs =
        std::span(tokens).subspan(window.begin, window.end - 1 - window.begin);
    LILY_TRY_VOID(score(model, inputs, [&](size_t row, std::span<const float> logits) -> Result<void> {
      const size_t target = window.begin + row + 1;
      if (target >= window.first_scored) {
        sum -= log_softmax_at(logits, tokens[target]);
        ++count;
      }
      return {};
    }));
    progress.update(static_cast<double>(window.end) / static_cast<double>(tokens.size()));
  }
  progress.finish();
  const double mean = sum / static_cast<double>(count);
  if (options.json) {
    fmt::print("{}\n", boost::json::serialize(boost::json::object{{"perplexity", std::exp(mean)},
                                                                  {"nats_per_token", mean},
                                                                  {"tokens", count},
                                                                  {"window", options.window},
                                                                  {"stride", options.stride}}));
  } else {
    fmt::print("perplexity {:.4f}  ({:.5f} nats per token over {} tokens; window {}, stride {})\n",
               std::exp(mean), mean, count, options.window, options.stride);
  }
  return {};
}

struct Agreement {
  uint64_t rows = 0;
  uint64_t agree = 0;
  uint64_t near_ties = 0;  // of the disagreements
  double kl_sum = 0, kl_max = 0;
  uint64_t kl_max_row = 0;
  double distance_sum = 0, distance_max = 0;
  double widest = 0;  // margin of a disagreement

  void add(std::span<const float> found, std::span<const float> expected, double near_tie) {
    const int32_t mine = argmax(found);
    const int32_t theirs = argmax(expected);
    if (mine == theirs) {
      ++agree;
    } else {
      // How much the other model prefers its choice to this one: a difference of log-probabilities.
      const double margin = static_cast<double>(expected[theirs]) - static_cast<double>(expected[mine]);
      near_ties += margin <= near_tie ? 1 : 0;
      widest = std::max(widest, margin);
    }
    const double kl = kl_divergence(expected, found);
    if (kl > kl_max) {
      kl_max = kl;
      kl_max_row = rows;
    }
    kl_sum += kl;
    double difference = 0;
    double size = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      difference += std::pow(static_cast<double>(found[i]) - static_cast<double>(expected[i]), 2);
      size += std::pow(static_cast<double>(expected[i]), 2);
    }
    const double distance = size > 0 ? std::sqrt(difference / size) : 0;
    distance_sum += distance;
    distance_max = std::max(distance_max, distance);
    ++rows;
  }
};

void print(const Agreement& a, const EvalOptions& options) {
  const auto rows = static_cast<double>(a.rows);
  const uint64_t differ = a.rows - a.agree;
  if (options.json) {
    fmt::print("{}\n", boost::json::serialize(
                           boost::json::object{{"tokens", a.rows},
                                               {"top1_agreement", static_cast<double>(a.agree) / rows},
                                               {"kl_mean", a.kl_sum / rows},
                                               {"kl_max", a.kl_max},
                                               {"relative_difference_mean", a.distance_sum / rows},
                                               {"relative_difference_max", a.distance_max},
                                               {"disagreements", differ},
                                               {"near_ties", a.near_ties},
                                               {"near_tie_nats", options.near_tie},
                                               {"widest_disagreement_nats", a.widest}}));
    return;
  }
  fmt::print("top-1 agreement      {:.4f} %  ({} of {} tokens)\n",
             100.0 * static_cast<double>(a.agree) / rows, a.agree, a.rows);
  fmt::print("KL divergence        mean {:.3e}, max {:.3e} nats (token {})\n", a.kl_sum / rows, a.kl_max,
             a.kl_max_row);
  fmt::print("logits, relative     mean {:.3e}, max {:.3e} (norm of the difference over norm)\n",
             a.distance_sum / rows, a.distance_max);
  fmt::print("disagreements        {}, of them {} near-ties (within {} nats); widest {:.4f} nats\n", differ,
             a.near_ties, options.near_tie, a.widest);
}

Result<void> agreement(const EvalOptions& options) {
  EvalOptions chosen = options;
  if (chosen.against.empty()) {
    chosen.against = chosen.model;
    if (chosen.against_device.empty()) {
      chosen.against_device = chosen.device.device == "reference" ? "auto" : "reference";
    }
  }
  LILY_TRY(const LoadedModel model, load_for_windows(chosen.model, chosen.device, chosen.window));
  DeviceOptions other_device = chosen.device;
  if (!chosen.against_device.empty()) {
    other_device.device = chosen.against_device;
    other_device.backend.isa.clear();
  }
  LILY_TRY(const LoadedModel other, load_for_windows(chosen.against, other_device, chosen.window));
  if (model.plan.shape.vocab != other.plan.shape.vocab) {
    return fail(ErrorKind::invalid_input, "the models have {} and {} rows of vocabulary: nothing to compare",
                model.plan.shape.vocab, other.plan.shape.vocab);
  }
  LILY_TRY(const std::vector<int32_t> tokens, read_text(chosen, model));
  ProgressBar progress("comparing");
  Agreement result;
  std::vector<float> expected;
  for (size_t begin = 0; begin < tokens.size(); begin += chosen.window) {
    const auto window =
        std::span(tokens).subspan(begin, std::min<size_t>(chosen.window, tokens.size() - begin));
    // A chunk at a time of each would need two states fed in turn; a window's logits fit in memory instead.
    expected.clear();
    LILY_TRY_VOID(score(other, window, [&](size_t, std::span<const float> logits) -> Result<void> {
      expected.insert(expected.end(), logits.begin(), logits.end());
      return {};
    }));
    LILY_TRY_VOID(score(model, window, [&](size_t row, std::span<const float> logits) -> Result<void> {
      result.add(logits, std::span(expected).subspan(row * logits.size(), logits.size()), chosen.near_tie);
      return {};
    }));
    progress.update(static_cast<double>(begin + window.size()) / static_cast<double>(tokens.size()));
  }
  progress.finish();
  print(result, chosen);
  return {};
}

Result<std::vector<int32_t>> read_ids(const fs::path& path, uint32_t vocab) {
  LILY_TRY(const std::string text, read_input(path));
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(text, error);
  if (error || !value.is_array() || value.get_array().empty()) {
    return fail(ErrorKind::invalid_input, "'{}': expected a JSON array of token ids, found {}", path.string(),
                error ? error.message() : "something else or nothing in it");
  }
  std::vector<int32_t> ids;
  for (const boost::json::value& id : value.get_array()) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= vocab) {
      return fail(ErrorKind::invalid_input, "'{}': entry {}: expected an id in [0, {}), found {}",
                  path.string(), ids.size(), vocab, boost::json::serialize(id));
    }
    ids.push_back(static_cast<int32_t>(id.get_int64()));
  }
  return ids;
}

// The header of an .npy file of version 1.0 with float32 elements in row-major order.
std::string npy_header(size_t rows, size_t cols) {
  static_assert(std::endian::native == std::endian::little);
  std::string text =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, cols);
  constexpr size_t kPrefix = 10;  // magic, version, length
  constexpr size_t kAlignment = 64;
  text.append(kAlignment - (kPrefix + text.size() + 1) % kAlignment, ' ');
  text += '\n';
  std::string header = "\x93NUMPY";
  header += '\x01';
  header += '\0';
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

Result<void> write_logits(const EvalOptions& options, std::ofstream& out, const LoadedModel& model,
                          std::span<const int32_t> ids) {
  const std::string header = npy_header(ids.size(), model.plan.shape.vocab);
  out.write(header.data(), static_cast<std::streamsize>(header.size()));
  ProgressBar progress("computing");
  LILY_TRY_VOID(score(model, ids, [&](size_t row, std::span<const float> logits) -> Result<void> {
    out.write(reinterpret_cast<const char*>(logits.data()),
              static_cast<std::streamsize>(logits.size_bytes()));
    if (!out) {
      return fail_errno("cannot write", options.out.string());
    }
    progress.update(static_cast<double>(row + 1) / static_cast<double>(ids.size()));
    return {};
  }));
  out.close();
  if (!out) {
    return fail_errno("cannot write", options.out.string());
  }
  progress.finish();
  return {};
}

Result<void> logits(EvalOptions options) {
  LILY_TRY(const fs::path folder, find_model(options.model));
  LILY_TRY(const ModelConfig config, read_model_config(folder));
  LILY_TRY(const std::vector<int32_t> ids, read_ids(options.ids, config.shape.vocab));
  if (ids.size() > Limits::kMaxContext) {
    return fail(ErrorKind::limit, "'{}': expected at most {} ids, found {}", options.ids.string(),
                Limits::kMaxContext, ids.size());
  }
  options.device.plan.context = std::max(static_cast<uint32_t>(ids.size()), Limits::kMinContext);
  options.device.plan.sequences = 1;
  LILY_TRY(const LoadedModel model, load_model(options.model, options.device, /*with_tokenizer=*/false));
  std::ofstream out(options.out, std::ios::binary | std::ios::trunc);
  if (!out) {
    return fail_errno("cannot open", options.out.string());
  }
  if (auto written = write_logits(options, out, model, ids); !written) {
    std::error_code ignored;
    if (fs::is_regular_file(options.out, ignored)) {  // never a device or a pipe
      fs::remove(options.out, ignored);               // half a result would be read as one
    }
    return written;
  }
  return {};
}

void add_text_options(CLI::App& command, EvalOptions& options) {
  command.add_option("--text", options.text, "UTF-8 text; it is tokenised whole, added tokens included")
      ->required();
  command.add_option("--window", options.window, "tokens of a window, each computed from an empty state")
      ->check(CLI::Range(2U, Limits::kMaxContext));
  command.add_option("--max-tokens", options.most_tokens, "look at the first N tokens only; 0 = all");
  command.add_flag("--json", options.json, "print one JSON object");
}

void add_perplexity(CLI::App& eval, CommandLine& line) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command = eval.add_subcommand(
      "perplexity",
      "Perplexity of a text. Windows of --window tokens, each --stride after the one before; the first "
      "scores all "
      "its tokens but the very first, each other one only the tokens that none scored before.");
  command->add_option("MODEL", options->model, kModelHelp);
  add_text_options(*command, *options);
  command->add_option("--stride", options->stride, "tokens from one window to the next")
      ->check(CLI::Range(1U, Limits::kMaxContext));
  add_device_options(*command, options->device);
  command->callback([&line, options] { line.chosen = [options] { return perplexity(*options); }; });
}

void add_agreement(CLI::App& eval, CommandLine& line) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command = eval.add_subcommand("agreement",
                                          "How far two models, or one model on two devices, agree on every "
                                          "next token of a text: top-1 agreement, "
                                          "KL(other || MODEL), and whether disagreements are near-ties. "
                                          "Windows of --window tokens, side by side.");
  command->add_option("MODEL", options->model, kModelHelp);
  command->add_option("--against", options->against, "the other model; left out: MODEL itself");
  command->add_option("--against-device", options->against_device,
                      "device of the other model; left out: --device with --against, else the reference (or "
                      "auto, against the reference)");
  command->add_option(
      "--near-tie", options->near_tie,
      "a disagreement is a near-tie when the other model prefers its token by at most this many nats");
  add_text_options(*command, *options);
  options->window = 512;
  add_device_options(*command, options->device);
  command->callback([&line, options] { line.chosen = [options] { return agreement(*options); }; });
}

void add_logits(CLI::App& eval, CommandLine& line) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command = eval.add_subcommand(
      "logits",
      "Logits after every token of a list, as a float32 array [tokens, vocabulary]: those of the float32 "
      "reference unless a device is named");
  command->add_option("MODEL", options->model, kModelHelp);
  command->add_option("--tokens", options->ids, "a JSON array of token ids")->required();
  command->add_option("--out", options->out, "the .npy file to write")->required();
  // What another program's logits are compared with are those of the equations, not of a device's types.
  options->device.device = "reference";
  add_device_options(*command, options->device);
  command->callback([&line, options] { line.chosen = [options] { return logits(*options); }; });
}

}  // namespace

void add_eval(CommandLine& line) {
  CLI::App* eval = line.app.add_subcommand("eval", "Measure a model: perplexity, agreement, logits");
  eval->require_subcommand(1);
  add_perplexity(*eval, line);
  add_agreement(*eval, line);
  add_logits(*eval, line);
}

}  // namespace lily::app
