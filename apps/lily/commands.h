// The subcommands: one file each. add_<name>() declares the options on the command line and leaves in
// `chosen` what to run when its subcommand was named. Results go to stdout, progress and timing to stderr.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "base/result.h"

namespace lily::app {

struct CommandLine {
  CLI::App& app;
  std::function<Result<void>()> chosen;  // run by main(): an error is printed, exit status 1
};

void add_serve(CommandLine& line);
void add_chat(CommandLine& line);
void add_run(CommandLine& line);
void add_inspect(CommandLine& line);
void add_convert(CommandLine& line);
void add_synth(CommandLine& line);
void add_eval(CommandLine& line);
void add_bench(CommandLine& line);
void add_devices(CommandLine& line);

}  // namespace lily::app
