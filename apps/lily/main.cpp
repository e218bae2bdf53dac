// The command line. Exit status: 0 done, 1 failed (one clear message on stderr), 2 usage.
#include <fcntl.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>

#include "apps/lily/commands.h"
#include "apps/lily/say.h"

namespace lily::app {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

// A file or socket opened while 0, 1 or 2 is closed would take its number, and messages would go into it.
// What is closed stays unusable: there is nothing to read from stdin, and a result that nobody gets is an
// error.
void open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) < 0) {
      static_cast<void>(open("/dev/null", stream == STDOUT_FILENO ? O_RDONLY : O_RDWR));
    }
  }
}

// Weights are read through a mapping; a file that is cut meanwhile, or a disk that fails, is this signal.
// There is nothing to go on with, but a reason to give.
void on_bus_error(int) {
  constexpr char kText[] =
      "lily: a file of the model was shortened, or could not be read, while it was in use\n";
  static_cast<void>(!write(STDERR_FILENO, kText, sizeof(kText) - 1));
  _exit(kFailed);
}

void set_up_logging() {
  auto logger = spdlog::stderr_color_mt("lily");
  logger->set_pattern("%^%L%$ %H:%M:%S.%e %v");
  spdlog::set_default_logger(std::move(logger));
  spdlog::set_level(spdlog::level::info);
}

int report(const Error& error) {
  say("lily: {}\n", error.text());
  return kFailed;
}

int run(const CommandLine& line) {
  try {
    if (const Result<void> result = line.chosen(); !result) {
      return report(result.error());
    }
  } catch (const std::bad_alloc&) {
    return report({ErrorKind::out_of_memory, "out of memory", {}});
  } catch (const std::exception& exception) {
    return report({ErrorKind::internal, fmt::format("internal error: {}", exception.what()), {}});
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return report({ErrorKind::io, "cannot write to standard output", {}});
  }
  return 0;
}

int main_of(int argc, char** argv) {
  open_standard_streams();
  // A closed pipe or socket is an error of that write, not the end of the process.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGBUS, on_bus_error);
  set_up_logging();
  CLI::App app{"lily runs Qwen3.6-35B-A3B and nothing else: `lily serve` starts the API server."};
  app.set_version_flag("--version", "lily " LILY_VERSION);
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();
  CommandLine line{app, {}};
  for (void (*add)(CommandLine&) : {add_serve, add_chat, add_run, add_parse, add_inspect, add_convert,
                                    add_synth, add_eval, add_bench, add_devices}) {
    add(line);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::RequiredError& error) {
    if (app.get_subcommands().empty() &&
        !app.remaining().empty()) {  // CLI11 would only say that one is required
      say("there is no command '{}'; `lily --help` lists them\n", app.remaining().front());
      return kUsage;
    }
    app.exit(error);
    return kUsage;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  return run(line);
}

}  // namespace
}  // namespace lily::app

int main(int argc, char** argv) { return lily::app::main_of(argc, argv); }
