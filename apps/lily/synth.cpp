// lily synth DST --shape tiny|qwen36: random but well-conditioned weights in the MLX 4-bit layout.
#include "weights/synth.h"

#include <chrono>
#include <cstdio>
#include <memory>

#include "apps/lily/commands.h"
#include "apps/lily/interrupt.h"
#include "apps/lily/progress.h"
#include "apps/lily/say.h"

namespace lily::app {
namespace {

struct Options {
  std::string destination;
  std::string shape;
  uint32_t layers = 0;  // 0: all of the shape
  std::string float_type = "bf16";
  SynthOptions synth;
};

DType type_of(const std::string& name) {
  return name == "bf16" ? DType::bf16 : name == "f16" ? DType::f16 : DType::f32;
}

Result<void> run(const Options& given) {
  SynthOptions options = given.synth;
  LILY_TRY(options.shape, shape_by_name(given.shape));
  if (given.layers != 0) {
    options.shape = options.shape.with_layers(given.layers);
  }
  options.float_type = type_of(given.float_type);
  const Interrupts cancel(Interrupts::Kind::once);
  options.cancel = &cancel.flag();
  const auto start = std::chrono::steady_clock::now();
  ProgressBar bar("writing " + given.destination);
  LILY_TRY(const SynthReport report,
           synthesise(given.destination, options, [&](uint64_t done, uint64_t total) {
             bar.update(static_cast<double>(done) / static_cast<double>(total));
           }));
  bar.finish();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  say("{:.2f} GB in {:.1f} s\n", gigabytes(report.bytes), seconds);
  if (!report.has_tokenizer) {
    say("no tokenizer: the checkpoint is for `lily eval logits` and other computing on token ids; give "
        "--tokenizer FOLDER for one that can be talked to\n");
  }
  fmt::print("{}\n", given.destination);
  return {};
}

}  // namespace

void add_synth(CommandLine& line) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      line.app.add_subcommand("synth", "Make a checkpoint of random weights in the MLX 4-bit layout");
  command->add_option("DST", options->destination, "folder to make")->required();
  command->add_option("--shape", options->shape, "tiny or qwen36")
      ->required()
      ->check(CLI::IsMember({"tiny", "qwen36"}));
  command->add_option("--layers", options->layers, "4 to 40, a multiple of 4; default: all of the shape");
  command->add_option("--seed", options->synth.seed, "the same seed gives the same bytes");
  command
      ->add_option("--tokenizer", options->synth.tokenizer,
                   "folder with the tokenizer.json to use; without it, tiny gets one made for it")
      ->check(CLI::ExistingDirectory);
  command->add_flag("--mtp", options->synth.mtp, "write the multi-token-prediction layer too");
  command->add_option("--bits", options->synth.format.bits, "bits of a weight")->check(CLI::IsMember({4, 8}));
  command->add_option("--group", options->synth.format.group, "weights that share a scale")
      ->check(CLI::IsMember({32, 64, 128}));
  command->add_option("--scales", options->float_type, "type of scales and unquantised tensors")
      ->check(CLI::IsMember({"bf16", "f16", "f32"}));
  command->add_option("--threads", options->synth.threads, "0: all usable cores")
      ->check(CLI::Range(0U, kMostThreads));
  command->callback([&line, options] { line.chosen = [options] { return run(*options); }; });
}

}  // namespace lily::app
