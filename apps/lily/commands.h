// The subcommands: one file each. add_<name>() declares the options on the command line and leaves in
// `chosen` what to run when its subcommand was named. Results go to stdout, progress and timing to stderr.
#pragma once

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <functional>
#include <string>

#include "base/result.h"

namespace lily::app {

struct CommandLine {
  CLI::App& app;
  std::function<Result<void>()> chosen;  // run by main(): an error is printed, exit status 1
};

// More are a slip of the hand, and starting them takes minutes.
inline constexpr unsigned kMostThreads = 1024;

// As CLI::Range, which lets "nan" pass.
inline CLI::Validator number_from(double low, double high) {
  return {[low, high](const std::string& text) {
            double value = 0;
            const bool inside = CLI::detail::lexical_cast(text, value) && value >= low && value <= high;
            return inside ? std::string() : fmt::format("Value {} not in range {} to {}", text, low, high);
          },
          fmt::format("FLOAT in [{} - {}]", low, high), ""};
}

void add_serve(CommandLine& line);
void add_chat(CommandLine& line);
void add_run(CommandLine& line);
void add_parse(CommandLine& line);
void add_inspect(CommandLine& line);
void add_convert(CommandLine& line);
void add_synth(CommandLine& line);
void add_eval(CommandLine& line);
void add_bench(CommandLine& line);
void add_devices(CommandLine& line);

}  // namespace lily::app
