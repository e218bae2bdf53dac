// lily convert SRC DST: the published checkpoint to 4 bits in the MLX layout.
#include "weights/convert.h"

#include <chrono>
#include <cstdio>
#include <memory>

#include "apps/lily/commands.h"
#include "apps/lily/interrupt.h"
#include "apps/lily/model_source.h"
#include "apps/lily/progress.h"
#include "apps/lily/say.h"

namespace lily::app {
namespace {

struct Options {
  std::string source;
  std::string destination;
  ConvertOptions convert;
};

Result<void> run(const Options& given) {
  LILY_TRY(const std::filesystem::path source, find_model(given.source));
  ConvertOptions options = given.convert;
  const Interrupts cancel(Interrupts::Kind::once);
  options.cancel = &cancel.flag();
  const auto start = std::chrono::steady_clock::now();
  ProgressBar bar("converting " + given.source);
  LILY_TRY(const ConvertReport report,
           convert_checkpoint(source, given.destination, options, [&](uint64_t done, uint64_t total) {
             bar.update(static_cast<double>(done) / static_cast<double>(total));
           }));
  bar.finish();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  say("{} layers of '{}'{}: {:.2f} GB read, {:.2f} GB of vision left out, {:.2f} GB written in {:.1f} s\n",
      report.shape.layers, report.shape.name, report.mtp ? " with the MTP layer" : "",
      gigabytes(report.read_bytes), gigabytes(report.ignored_bytes), gigabytes(report.written_bytes),
      seconds);
  fmt::print("{}\n", given.destination);
  return {};
}

}  // namespace

void add_convert(CommandLine& line) {
  auto options = std::make_shared<Options>();
  CLI::App* command = line.app.add_subcommand(
      "convert", "Quantise the published bf16 checkpoint to 4 bits in the MLX layout, MTP layer kept");
  command->add_option("SRC", options->source, "published checkpoint: folder or owner/name")->required();
  command->add_option("DST", options->destination, "folder to make")->required();
  command->add_option("--bits", options->convert.format.bits, "bits of a weight (router and shared gate: 8)")
      ->check(CLI::IsMember({4, 8}));
  command->add_option("--group", options->convert.format.group, "weights that share a scale")
      ->check(CLI::IsMember({32, 64, 128}));
  command->add_option("--threads", options->convert.threads, "0: all usable cores")
      ->check(CLI::Range(0U, kMostThreads));
  command->callback([&line, options] { line.chosen = [options] { return run(*options); }; });
}

}  // namespace lily::app
