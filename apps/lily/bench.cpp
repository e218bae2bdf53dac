// lily bench: the speed of a device beside the limits of the machine, measured in the same run.
#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include "apps/lily/bench_conversation.h"
#include "apps/lily/bench_passes.h"
#include "apps/lily/bench_rows.h"
#include "apps/lily/commands.h"
#include "apps/lily/interrupt.h"
#include "apps/lily/model_source.h"
#include "apps/lily/progress.h"
#include "apps/lily/random_model.h"
#include "apps/lily/say.h"
#include "base/log.h"
#include "base/threads.h"
#include "text/tokenizer.h"

namespace lily::app {
namespace {

namespace json = boost::json;

struct Options {
  std::string model;
  bool random = false;
  std::string shape = "qwen36";
  uint32_t layers = 0;  // 0: all of the shape
  uint64_t seed = 0;
  std::string scratch;
  DeviceOptions device;
  std::string prompt = "512,2048";
  std::string depth = "0";
  std::string parallel = "1";
  uint32_t decode = 64;
  uint32_t repeats = 3;
  bool json = false;
  bool conversation = false;
  ConversationOptions replay;
};

struct Bench {
  std::vector<BenchCase> cases;  // by depth
  uint32_t context = 0;          // tokens of the longest sequence
  uint32_t sequences = 0;
  uint32_t decode = 0;
  uint32_t repeats = 0;
};

struct Loaded {
  std::string name;
  std::unique_ptr<WeightFile> file;
  DeviceLimits limits;
  Plan plan{};
  std::unique_ptr<Backend> backend;
};

// The most resident memory so far. Not that of getrusage(), which begins with that of the parent process.
uint64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) {
      return std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
    }
  }
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
#if defined(__APPLE__)
  return static_cast<uint64_t>(usage.ru_maxrss);
#else
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
#endif
}

// So that what was measured with is not part of what was measured. Where the system refuses, it is.
void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

Result<Bench> bench_of(const Options& options) {
  LILY_TRY(const auto prompts, parse_list(options.prompt, 0, Limits::kMaxContext));
  LILY_TRY(const auto depths, parse_list(options.depth, 0, Limits::kMaxContext));
  LILY_TRY(const auto parallels, parse_list(options.parallel, 1, Limits::kMaxSequences));
  Bench bench{
      .cases = {}, .sequences = parallels.back(), .decode = options.decode, .repeats = options.repeats};
  for (const uint32_t depth : depths) {
    for (const uint32_t prompt : prompts) {
      for (const uint32_t parallel : prompt > 0 ? parallels : std::vector<uint32_t>{}) {
        bench.cases.push_back({BenchPhase::prefill, prompt, depth, parallel});
      }
    }
    for (const uint32_t parallel : options.decode > 0 ? parallels : std::vector<uint32_t>{}) {
      bench.cases.push_back({BenchPhase::decode, 0, depth, parallel});
    }
  }
  if (bench.cases.empty()) {
    return fail(ErrorKind::invalid_input, "--prompt 0 and --decode 0: nothing is left to measure");
  }
  const uint64_t longest = uint64_t{depths.back()} + std::max(prompts.back(), options.decode);
  if (longest > Limits::kMaxContext) {
    return fail(
        ErrorKind::limit,
        "a depth of {} and {} tokens more are {}: a sequence holds at most {}; lower --depth, --prompt or "
        "--decode",
        depths.back(), longest - depths.back(), longest, Limits::kMaxContext);
  }
  bench.context = std::max(static_cast<uint32_t>(longest), Limits::kMinContext);
  return bench;
}

// Where the weights come from, checked before anything takes time.
struct Source {
  std::string name;
  std::filesystem::path folder;  // without --random
  SynthOptions synth;            // with it
};

Result<Source> source_of(const Options& options, const std::atomic<bool>& cancel) {
  Source source;
  if (!options.random) {
    LILY_TRY(source.folder, find_model(options.model));
    const std::filesystem::path full = source.folder.lexically_normal();
    source.name = full.has_filename() ? full.filename() : full.parent_path().filename();
    return source;
  }
  if (!options.model.empty()) {
    return fail(ErrorKind::invalid_input, "MODEL and --random: one of them says what to run, not both");
  }
  SynthOptions& synth = source.synth;
  LILY_TRY(synth.shape, shape_by_name(options.shape));
  if (options.layers != 0) {
    synth.shape = synth.shape.with_layers(options.layers);
  }
  LILY_TRY_VOID(check_layers(synth.shape.layers));
  synth.seed = options.seed;
  synth.threads = options.device.backend.threads;
  synth.cancel = &cancel;
  source.name = fmt::format("random, seed {}", options.seed);
  return source;
}

// The limits come first: measuring them takes memory that the weights may need.
Result<Loaded> load(const Options& options, const Bench& bench, const std::atomic<bool>& cancel) {
  Loaded loaded;
  LILY_TRY(const Source source, source_of(options, cancel));
  LILY_TRY(loaded.backend, make_backend(options.device.device, options.device.backend));
  LILY_TRY(loaded.limits, loaded.backend->measure_limits());
  forget_peak();
  LILY_TRY(loaded.file, options.random ? make_random_model(source.synth, options.scratch)
                                       : WeightFile::open(source.folder));
  loaded.name = source.name;
  PlanOptions plan = plan_options(options.device, loaded.backend->device());
  plan.context = bench.context;
  plan.sequences = bench.sequences;
  LILY_TRY(loaded.plan, make_plan(loaded.file->shape(), plan));
  LILY_TRY_VOID(load_backend(*loaded.backend, *loaded.file, loaded.plan, loaded.name));
  return loaded;
}

// Pages that are touched for the first time and threads that still sleep are not what is measured.
Result<void> warm_up(Conversations& conversations, uint32_t context) {
  LILY_TRY_VOID(conversations.run({BenchPhase::prefill, std::min(context, 512U), 0, 1}, 0));
  LILY_TRY_VOID(conversations.run({BenchPhase::decode, 0, 0, 1}, std::min(context, 4U)));
  return {};
}

Result<BenchRow> measure(const Loaded& loaded, const Bench& bench, const BenchCase& wanted,
                         Conversations& conversations, Fingerprint& fingerprint) {
  std::vector<BenchRun> runs;
  for (uint32_t repeat = 0; repeat < bench.repeats; ++repeat) {
    LILY_TRY(BenchRun run, conversations.run(wanted, bench.decode));
    if (repeat > 0 && run.ids != runs.front().ids) {
      return fail(ErrorKind::internal,
                  "{} at depth {}, {} in parallel: repeat {} sampled other tokens than the first",
                  to_string(wanted.phase), wanted.depth, wanted.parallel, repeat + 1);
    }
    runs.push_back(std::move(run));
  }
  fingerprint.add(runs.front().ids);
  BenchRow row = make_row(wanted, runs, loaded.limits, loaded.plan.shape);
  return row;
}

Result<void> measure_all(const Loaded& loaded, const Bench& bench, const std::atomic<bool>& cancel,
                         Fingerprint& fingerprint, FunctionRef<void(const BenchRow&)> sink) {
  Conversations conversations(*loaded.backend, loaded.plan, &cancel);
  LILY_TRY_VOID(conversations.create(bench.sequences));
  LILY_TRY_VOID(warm_up(conversations, bench.context));
  uint32_t depth = 0;
  uint64_t peak = 0;
  for (const BenchCase& wanted : bench.cases) {
    if (wanted.depth != depth) {
      depth = wanted.depth;
      ProgressBar bar(fmt::format("reading to depth {}", depth));
      LILY_TRY_VOID(conversations.go_to_depth(depth, [&](double done) { bar.update(done); }));
      bar.finish();
    }
    LILY_TRY(BenchRow row, measure(loaded, bench, wanted, conversations, fingerprint));
    peak = std::max(peak, peak_resident_bytes());  // the system's own count of pages is a little behind
    row.peak_bytes = peak + loaded.backend->device_bytes();
    sink(row);
  }
  return {};
}

// ---- output ----

std::string system_name() {
  utsname name{};
  return ::uname(&name) == 0 ? fmt::format("{} {} {}", name.sysname, name.release, name.machine) : "";
}

json::object json_of(const BenchRow& row, const std::string& device) {
  return {{"device", device},
          {"phase", to_string(row.measured.phase)},
          {"prompt", row.measured.prompt},
          {"depth", row.measured.depth},
          {"parallel", row.measured.parallel},
          {"tok_s", row.tok_s},
          {"spread", row.spread},
          {"bytes_per_token", row.bytes_per_token},
          {"gb_s", row.gb_s},
          {"share_of_limit", row.share_of_limit},
          {"ttft_s", row.ttft_s},
          {"peak_bytes", row.peak_bytes}};
}

json::object json_of(const Loaded& loaded, const Bench& bench) {
  const DeviceInfo& device = loaded.backend->device();
  return {{"machine",
           {{"description", device.description},
            {"system", system_name()},
            {"cores", usable_cores()},
            {"memory_bytes", device.memory_bytes}}},
          {"run",
           {{"lily", LILY_VERSION},
            {"model", loaded.name},
            {"shape", loaded.plan.shape.name},
            {"layers", loaded.plan.shape.layers},
            {"weight_bytes", loaded.file->bound_bytes()},
            {"chunk", loaded.plan.chunk},
            {"decode", bench.decode},
            {"repeats", bench.repeats}}},
          {"limits",
           {{"read_bytes_per_second", loaded.limits.read_bytes_per_second},
            {"multiply_adds_per_second", loaded.limits.multiply_adds_per_second},
            {"multiply", loaded.limits.multiply}}}};
}

void print_head(const Loaded& loaded, const Bench& bench) {
  fmt::print("machine      {}; {}\n", loaded.backend->device().description, system_name());
  fmt::print("model        {}: {} layers of '{}', {:.2f} GB; lily {}\n", loaded.name,
             loaded.plan.shape.layers, loaded.plan.shape.name, gigabytes(loaded.file->bound_bytes()),
             LILY_VERSION);
  fmt::print("limits       {:.1f} GB/s read, {:.1f} G multiply-adds/s ({})\n",
             loaded.limits.read_bytes_per_second / 1e9, loaded.limits.multiply_adds_per_second / 1e9,
             loaded.limits.multiply);
  fmt::print("rows         median of {}, chunk {}, {} decode steps\n\n", bench.repeats, loaded.plan.chunk,
             bench.decode);
  fmt::print("{:8}{:>7}{:>8}{:>9}{:>10}{:>8}{:>10}{:>8}{:>8}{:>13}{:>9}\n", "phase", "prompt", "depth",
             "parallel", "tok/s", "spread", "MB/token", "GB/s", "limit", "first token", "peak GB");
  std::fflush(stdout);
}

void print_row(const BenchRow& row) {
  fmt::print("{:8}{:>7}{:>8}{:>9}{:>10.2f}{:>7.1f}%{:>10.2f}{:>8.2f}{:>7.1f}%{:>11.3f} s{:>9.2f}\n",
             to_string(row.measured.phase), row.measured.prompt, row.measured.depth, row.measured.parallel,
             row.tok_s, 100 * row.spread, row.bytes_per_token / 1e6, row.gb_s, 100 * row.share_of_limit,
             row.ttft_s, gigabytes(row.peak_bytes));
  std::fflush(stdout);
}

json::object json_of(const ConversationTurn& turn) {
  json::object row{{"history", to_string(turn.history)},
                   {"turn", turn.turn},
                   {"kind", turn.query ? "query" : "result"},
                   {"prompt", turn.prompt},
                   {"least", turn.least},
                   {"reread", turn.reread},
                   {"warm_s", turn.warm}};
  if (turn.cold > 0) {
    row["cold_s"] = turn.cold;
  }
  if (turn.disk.seconds > 0) {
    row["disk"] = {
        {"least", turn.disk.least}, {"reread", turn.disk.reread}, {"first_token_s", turn.disk.seconds}};
  }
  return row;
}

uint32_t above(uint32_t reread, uint32_t least) { return reread - std::min(reread, least); }

void print_turn(const ConversationTurn& turn) {
  if (turn.turn == 1) {
    fmt::print("\n{:11}{:>5}  {:7}{:>8}{:>8}{:>9}{:>13}{:>13}{:>13}\n", "reasoning", "turn", "new is",
               "prompt", "least", "re-read", "warm", "cold", "from disk");
  }
  const auto seconds = [](double value) {
    return value > 0 ? fmt::format("{:>11.3f} s", value) : std::string(13, ' ');
  };
  const std::string times = seconds(turn.warm) + seconds(turn.cold) + seconds(turn.disk.seconds);
  fmt::print("{:11}{:>5}  {:7}{:>8}{:>8}{:>9}{}\n", to_string(turn.history), turn.turn,
             turn.query ? "query" : "result", turn.prompt, turn.least, turn.reread,
             times.substr(0, times.find_last_not_of(' ') + 1));
  std::fflush(stdout);
}

Result<std::unique_ptr<Tokenizer>> tokenizer_of(const Options& options, const Loaded& loaded) {
  if (!options.random) {
    return Tokenizer::load(loaded.file->folder());
  }
  return Tokenizer::from_json(synth_tokenizer_json(loaded.plan.shape.vocab), synth_tokenizer_config_json());
}

Result<void> run_conversation(const Options& options) {
  Bench bench;
  bench.sequences = 1;
  bench.context = options.replay.length + kConversationRoom;
  if (bench.context > Limits::kMaxContext) {
    return fail(ErrorKind::limit, "--length {}: expected at most {}", options.replay.length,
                Limits::kMaxContext - kConversationRoom);
  }
  const Interrupts cancel(Interrupts::Kind::once);
  LILY_TRY(Loaded loaded, load(options, bench, cancel.flag()));
  LILY_TRY(const std::unique_ptr<Tokenizer> tokenizer, tokenizer_of(options, loaded));
  json::object root;
  json::array turns;
  if (options.json) {
    root = json_of(loaded, bench);
  } else {
    fmt::print("machine      {}; {}\nmodel        {}: {} layers of '{}'; lily {}\n",
               loaded.backend->device().description, system_name(), loaded.name, loaded.plan.shape.layers,
               loaded.plan.shape.name, LILY_VERSION);
  }
  uint32_t most = 0;
  std::unique_ptr<Backend> backend = std::move(loaded.backend);
  LILY_TRY_VOID(replay_conversations(
      std::move(backend), loaded.plan, *tokenizer, options.replay, cancel.flag(),
      [&](const ConversationTurn& turn) {
        most = std::max({most, above(turn.reread, turn.least), above(turn.disk.reread, turn.disk.least)});
        if (options.json) {
          turns.push_back(json_of(turn));
        } else {
          print_turn(turn);
        }
      }));
  if (options.json) {
    root["turns"] = std::move(turns);
    root["most_above_least"] = most;
    fmt::print("{}\n", json::serialize(root));
  } else {
    fmt::print("\nread again beyond what had to be: at most {} tokens in a turn\n", most);
  }
  return {};
}

Result<void> run(const Options& options) {
  if (options.conversation) {
    return run_conversation(options);
  }
  LILY_TRY(const Bench bench, bench_of(options));
  const Interrupts cancel(Interrupts::Kind::once);
  LILY_TRY(const Loaded loaded, load(options, bench, cancel.flag()));
  Fingerprint fingerprint;
  json::array rows;
  if (!options.json) {
    print_head(loaded, bench);
  }
  LILY_TRY_VOID(measure_all(loaded, bench, cancel.flag(), fingerprint, [&](const BenchRow& row) {
    if (options.json) {
      rows.push_back(json_of(row, loaded.backend->device().name));
    } else {
      print_row(row);
    }
  }));
  if (options.json) {
    json::object root = json_of(loaded, bench);
    root["fingerprint"] = fingerprint.text();
    root["rows"] = std::move(rows);
    fmt::print("{}\n", json::serialize(root));
  } else {
    fmt::print("\nfingerprint  {}\n", fingerprint.text());
  }
  return {};
}

void add_list(CLI::App& command, const char* name, std::string& list, uint32_t low, uint32_t high,
              const char* help) {
  command.add_option(name, list, help)->check([low, high](const std::string& text) {
    const auto values = parse_list(text, low, high);
    return values ? std::string() : values.error().message;
  });
}

constexpr const char* kDescription =
    "Measure the speed of a device: tokens per second of prefill and decode at given depths of context, "
    "beside the "
    "machine's read bandwidth and peak rate of multiply-adds measured in the same run with the same threads. "
    "Prompts "
    "are made-up token ids, sampling is greedy, passes run as in the server. Lists are separated by commas; "
    "every "
    "combination is a row. docs/BENCHMARKS.md says how to read one.";
constexpr const char* kRandomHelp =
    "random weights instead of a checkpoint: made in memory-backed storage (/dev/shm) with the layout and "
    "the bytes "
    "of `lily synth`, mapped, and their names removed before anything is measured, so that no file is left";

}  // namespace

void add_bench(CommandLine& line) {
  auto options = std::make_shared<Options>();
  CLI::App* command = line.app.add_subcommand("bench", kDescription);
  command->add_option("MODEL", options->model, kModelHelp);
  command->add_flag("--random", options->random, kRandomHelp);
  command->add_option("--shape", options->shape, "with --random: tiny or qwen36")
      ->check(CLI::IsMember({"tiny", "qwen36"}));
  command->add_option("--layers", options->layers,
                      "with --random: 4 to 40, a multiple of 4; 0 = all of the shape");
  command->add_option("--seed", options->seed, "with --random: the same seed gives the same weights");
  command
      ->add_option("--scratch", options->scratch,
                   "with --random: folder to make the weights in, where memory-backed storage has no room")
      ->check(CLI::ExistingDirectory);
  add_compute_options(*command, options->device);
  add_list(*command, "--prompt", options->prompt, 0, Limits::kMaxContext,
           "tokens of prefill rows; 0 = no such rows");
  command->add_option("--decode", options->decode, "steps of decode rows; 0 = no such rows")
      ->check(CLI::Range(0U, Limits::kMaxContext));
  add_list(*command, "--depth", options->depth, 0, Limits::kMaxContext,
           "tokens that every sequence holds before; read once for each sequence, then resumed");
  add_list(*command, "--parallel", options->parallel, 1, Limits::kMaxSequences, "sequences at once");
  command->add_option("--repeats", options->repeats, "times that every row is measured")
      ->check(CLI::Range(1U, 1000U));
  CLI::Option* conversation = command->add_flag("--conversation", options->conversation,
                                                "instead: replay an agent's conversation turn by turn and "
                                                "say what is read again and how long the first "
                                                "token takes, with the reasoning returned and without");
  command->add_option("--turns", options->replay.turns, "of --conversation")
      ->check(CLI::Range(1U, 1000U))
      ->needs(conversation);
  command
      ->add_option("--length", options->replay.length, "of --conversation: tokens of its last prompt, about")
      ->check(CLI::Range(2000U, Limits::kMaxContext))
      ->needs(conversation);
  command
      ->add_option("--cold-every", options->replay.cold_every,
                   "of --conversation: every so many turns the prompt is read from its start too, and with "
                   "--cache-dir after a restart; 0 = never")
      ->needs(conversation);
  command
      ->add_option("--cache-dir", options->replay.cache_folder,
                   "of --conversation: keep conversations on disk too, in a new folder in this one that is "
                   "removed afterwards, and say how long the first token takes from there")
      ->check(CLI::ExistingDirectory)
      ->needs(conversation);
  command->add_flag("--json", options->json, "one JSON object instead of the table");
  command->callback([&line, options] { line.chosen = [options] { return run(*options); }; });
}

}  // namespace lily::app
