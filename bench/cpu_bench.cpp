// Speed of the CPU backend on random weights in memory, beside the read bandwidth measured in the same run
// with the same threads: cpu_bench --layers 8 --prompt 512 --decode 32.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>

#include "backends/cpu/blocks/cpu_blocks.h"
#include "backends/host/host_backend.h"
#include "tests/support/random_weights.h"

namespace {

using namespace lily;

struct Options {
  std::string shape = "qwen36";
  uint32_t layers = 8;
  std::string isa;
  unsigned threads = 0;
  uint32_t prompt = 512;
  uint32_t chunk = 256;
  uint32_t decode = 32;
  uint32_t parallel = 1;
  uint32_t repeats = 3;
};

// With --cpu-time the processor time of all threads instead of the clock: what a busy machine can still tell,
// with --threads 1.
bool cpu_time = false;

double now() {
  timespec time{};
  clock_gettime(cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double seconds_of(const std::function<void()>& work) {
  const double begin = now();
  work();
  return now() - begin;
}

// GB/s of summing a block far larger than any cache; the best of some passes.
double read_bandwidth(unsigned threads) {
  constexpr size_t kBytes = size_t{1} << 30;
  auto block = *AlignedArray<uint64_t>::allocate(kBytes / 8);
  std::fill_n(block.data(), block.size(), 1);
  ThreadPool pool(threads);
  double best = 0;
  std::atomic<uint64_t> total{0};
  for (int pass = 0; pass < 8; ++pass) {
    const double seconds = seconds_of([&] {
      pool.for_each(block.size(), size_t{1} << 17, [&](size_t begin, size_t end) {
        uint64_t sum[8] = {};
        for (size_t i = begin; i < end; i += 8) {
          for (size_t j = 0; j < 8; ++j) {
            sum[j] += block[i + j];
          }
        }
        total += sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
      });
    });
    best = std::max(best, kBytes / seconds / 1e9);
  }
  return total == 8 * block.size() ? best : 0;
}

std::vector<int32_t> tokens_of(uint32_t count, uint64_t seed, uint32_t vocab) {
  std::vector<int32_t> tokens(count);
  for (uint32_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<int32_t>(lily::test::mix(seed + i) % vocab);
  }
  return tokens;
}

Output run(Backend& backend, const std::vector<Slice>& slices) {
  const auto ticket = backend.submit({.slices = slices});
  if (!ticket) {
    throw std::runtime_error(ticket.error().message);
  }
  auto output = backend.collect(*ticket);
  if (!output) {
    throw std::runtime_error(output.error().message);
  }
  return *std::move(output);
}

uint64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) {
      return std::stoull(line.substr(6)) * 1024;
    }
  }
  return 0;
}

void measure(Backend& backend, const Options& options, uint32_t vocab, double bandwidth) {
  for (uint32_t repeat = 0; repeat < options.repeats; ++repeat) {
    std::vector<std::unique_ptr<SequenceState>> states;
    double prefill = 0;
    for (uint32_t i = 0; i < options.parallel; ++i) {
      states.push_back(*backend.new_state(options.prompt + options.decode));
      const auto prompt = tokens_of(options.prompt, repeat * 1000 + i, vocab);
      prefill += seconds_of([&] {
        for (uint32_t begin = 0; begin < options.prompt; begin += options.chunk) {
          const auto rows = std::span(prompt).subspan(begin, std::min(options.chunk, options.prompt - begin));
          run(backend, {{.state = states.back().get(), .tokens = rows, .sampling = {}}});
        }
      });
    }
    std::vector<double> steps;
    uint64_t bytes = 0;
    const auto ids = tokens_of(options.decode, 77 + repeat, vocab);
    for (uint32_t step = 0; step < options.decode; ++step) {
      std::vector<Slice> slices;
      slices.reserve(states.size());
      for (const auto& state : states) {
        slices.push_back({.state = state.get(), .tokens = {&ids[step], 1}, .sampling = {}, .logits_rows = 1});
      }
      steps.push_back(seconds_of([&] { bytes = run(backend, slices).bytes_read; }));
    }
    std::sort(steps.begin(), steps.end());
    const double median = steps.empty() ? 1 : steps[steps.size() / 2];
    const double gb_s = static_cast<double>(bytes) / median / 1e9;
    std::cout << fmt::format(
        "prefill {:.1f} tok/s | decode {:.2f} tok/s (best step {:.2f}), {:.3f} GB per step, {:.1f} GB/s, "
        "{:.0f} % of the "
        "bandwidth\n",
        options.parallel * options.prompt / prefill, options.parallel / median,
        options.parallel / (steps.empty() ? 1 : steps.front()), static_cast<double>(bytes) / 1e9, gb_s,
        100 * gb_s / bandwidth);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of the CPU backend on random weights");
  app.add_option("--shape", options.shape);
  app.add_option("--layers", options.layers);
  app.add_option("--isa", options.isa);
  app.add_option("--threads", options.threads);
  app.add_option("--prompt", options.prompt);
  app.add_option("--chunk", options.chunk);
  app.add_option("--decode", options.decode);
  app.add_option("--parallel", options.parallel);
  app.add_option("--repeats", options.repeats);
  app.add_flag("--cpu-time", cpu_time);
  CLI11_PARSE(app, argc, argv);
  try {
    const Shape shape = shape_by_name(options.shape).value().with_layers(options.layers);
    const cpu::Kernels* kernels = cpu::choose_kernels(options.isa).value();
    const double bandwidth = read_bandwidth(options.threads);
    const lily::test::RandomWeights weights(shape, {.share_layers = true});
    const Plan plan = make_plan(shape, {.context = std::max(options.prompt + options.decode, 64U),
                                        .sequences = options.parallel,
                                        .chunk = options.chunk})
                          .value();
    host::HostBackend backend(DeviceInfo{}, std::make_unique<cpu::CpuBlocks>(*kernels, options.threads));
    const MemoryNeed need = backend.estimate(weights.get(), plan);
    if (const auto loaded = backend.load(weights.get(), plan, [](double) {}); !loaded) {
      throw std::runtime_error(loaded.error().message);
    }
    std::cout << fmt::format("{}, {}, {} layers; read bandwidth {:.1f} GB/s; workspace {:.0f} MB\n",
                             cpu::processor_name(), kernels->name, options.layers, bandwidth,
                             static_cast<double>(need.workspace) / 1e6);
    measure(backend, options, shape.vocab, bandwidth);
    std::cout << fmt::format("peak resident {:.2f} GB\n", static_cast<double>(peak_resident_bytes()) / 1e9);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
