// lily serve: the API server.
#include <pthread.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <thread>

#include "apps/lily/commands.h"
#include "apps/lily/model_source.h"
#include "apps/lily/say.h"
#include "base/log.h"
#include "base/size_text.h"
#include "engine/engine.h"
#include "server/server.h"
#include "weights/fingerprint.h"

namespace lily::app {
namespace {

struct ServeOptions {
  std::string model;
  std::string name;
  std::string api_key_file;
  double drain_seconds = 10;
  std::optional<uint64_t> cache_mib;
  std::string cache_folder;
  uint64_t disk_mib = 16'384;
  uint32_t max_answer = 0;
  double max_seconds = 0;
  bool parse_special = false;
  bool reasoning_twice = false;
  bool no_think = false;
  bool preserve_thinking = false;
  bool close_thinking = false;
  bool no_recall = false;
  ServerOptions server;
  EngineOptions engine;
  DeviceOptions device;
};

// SIGINT and SIGTERM of the whole process, taken one by one instead of by a handler. Made before any thread,
// since threads inherit what is blocked.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  // Whether one came within `milliseconds`.
  bool wait(long milliseconds) const {
    const timespec most{milliseconds / 1000, (milliseconds % 1000) * 1'000'000};
    return sigtimedwait(&set_, nullptr, &most) > 0;
  }

 private:
  sigset_t set_;
};

// One key a line; blank lines and lines that start with # are skipped.
Result<void> read_keys(const std::string& path, std::vector<std::string>& keys) {
  std::ifstream file(path);
  if (!file) {
    return fail_errno("cannot open the file of API keys", path);
  }
  const size_t before = keys.size();
  for (std::string line; std::getline(file, line);) {
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') {
      continue;
    }
    keys.push_back(line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1));
  }
  if (keys.size() == before) {
    return fail(ErrorKind::invalid_input, "'{}' has no API key: expected one a line", path);
  }
  return {};
}

Result<void> collect_keys(ServeOptions& options) {
  std::vector<std::string>& keys = options.server.api_keys;
  if (!options.api_key_file.empty()) {
    LILY_TRY_VOID(read_keys(options.api_key_file, keys));
  }
  const char* from_environment = std::getenv("LILY_API_KEY");
  if (from_environment != nullptr && *from_environment != '\0') {
    keys.emplace_back(from_environment);
  }
  for (const std::string& key : keys) {
    if (key.empty()) {
      return fail(ErrorKind::invalid_input, "an API key is empty");
    }
  }
  return {};
}

// The id of /v1/models: a repository's own name, else the folder's.
std::string model_name(const ServeOptions& options, const std::filesystem::path& folder) {
  if (!options.name.empty()) {
    return options.name;
  }
  if (options.model.empty()) {
    return "lily-tiny";
  }
  if (!std::filesystem::exists(options.model)) {
    return options.model;
  }
  const std::filesystem::path whole = std::filesystem::weakly_canonical(folder);
  return whole.filename().empty() ? "lily" : whole.filename().string();
}

// A server that runs on a thread of its own; its end stops it.
class RunningServer {
 public:
  explicit RunningServer(std::unique_ptr<Server> server)
      : server_(std::move(server)), thread_([this] { server_->run(); }) {}
  ~RunningServer() {
    server_->stop();
    thread_.join();
  }
  RunningServer(const RunningServer&) = delete;
  RunningServer& operator=(const RunningServer&) = delete;
  Server& operator*() { return *server_; }
  Server* operator->() { return server_.get(); }

 private:
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

struct Served {
  LoadedModel model;
  std::unique_ptr<Engine> engine;  // destroyed first
};

Result<Served> load(const ServeOptions& options) {
  LILY_TRY(LoadedModel model, load_model(options.model, options.device, true));
  EngineOptions engine_options = options.engine;
  engine_options.cache_bytes = options.cache_mib ? *options.cache_mib << 20U : default_cache_bytes(model);
  log_info("conversations: {} for those that run and those that are kept",
           size_text(engine_options.cache_bytes));
  // It runs, and its recurrent states are kept once more.
  const uint64_t one = model.need.per_sequence + model.plan.recurrent_bytes();
  if (engine_options.cache_bytes > 0 && engine_options.cache_bytes < one + one / 16) {
    log_warn(
        "--cache-ram: {} do not hold a conversation of the whole context with what is kept of it, {}: one "
        "that "
        "has no room is read anew each time",
        size_text(engine_options.cache_bytes), size_text(one));
  }
  if (!options.cache_folder.empty()) {
    engine_options.disk = DiskOptions{.folder = options.cache_folder,
                                      .max_bytes = options.disk_mib << 20U,
                                      .model = fingerprint(*model.file)};
  }
  std::unique_ptr<Backend> backend = std::move(model.backend);
  LILY_TRY(std::unique_ptr<Engine> engine,
           Engine::create(std::move(backend), model.plan, *model.tokenizer, engine_options));
  return Served{std::move(model), std::move(engine)};
}

void say_how_to_talk(const std::string& url, const std::string& name, const Served& served, bool key) {
  const char* header = key ? " -H \"Authorization: Bearer $LILY_API_KEY\"" : "";
  say("\n{} is ready on {} ({} tokens of context, {} at once). Open that address in a browser, or talk to it "
      "with\n\n"
      "  curl -N {}/v1/chat/completions -H 'Content-Type: application/json'{} -d '{{\n"
      "    \"model\": \"{}\", \"stream\": true,\n"
      "    \"messages\": [{{\"role\": \"user\", \"content\": \"What is the capital of France?\"}}]\n"
      "  }}'\n\n"
      "or any client of OpenAI's API with the base URL {}/v1. Ctrl-C ends it.\n\n",
      name, url, served.engine->plan().context, served.engine->plan().sequences, url, header, name, url);
  std::fflush(stderr);
}

// The first signal lets answers finish for a while, the second ends them.
void end(Server& server, const Signals& signals, double seconds) {
  say("lily: finishing what runs, for up to {:g} s; again to end at once\n", seconds);
  std::atomic<bool> ended{false};
  std::thread drain([&] {
    server.drain(seconds);
    ended = true;
  });
  while (!ended) {
    if (signals.wait(50)) {
      server.stop();
    }
  }
  drain.join();
}

Result<void> serve(ServeOptions options) {
  LILY_TRY_VOID(collect_keys(options));
  if (!options.cache_folder.empty() && options.cache_mib == uint64_t{0}) {
    return fail(
        ErrorKind::invalid_input,
        "--cache-dir with --cache-ram 0: what is on disk passes through memory, leave out one of them");
  }
  const Signals signals;
  const bool key = !options.server.api_keys.empty();
  LILY_TRY(std::unique_ptr<Server> listening, Server::listen(options.server));
  const std::string url = listening->url();
  log_info("listening on {}", url);
  std::optional<Served> served;  // outlives the server's thread
  RunningServer server(std::move(listening));
  std::future<Result<Served>> loading = std::async(std::launch::async, [&options] { return load(options); });
  while (loading.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    if (signals.wait(20)) {  // loading cannot be told to end
      say("lily: stopped while loading\n");
      std::fflush(stderr);
      std::_Exit(0);
    }
  }
  LILY_TRY(served, loading.get());
  const std::string name = model_name(options, served->model.folder);
  ServedModel attached;
  attached.name = name;
  attached.engine = served->engine.get();
  attached.tokenizer = served->model.tokenizer.get();
  attached.generation = served->model.generation;
  attached.max_answer = options.max_answer;
  attached.max_seconds = options.max_seconds;
  attached.parse_special = options.parse_special;
  attached.reasoning_twice = options.reasoning_twice;
  attached.close_thinking = options.close_thinking;
  attached.enable_thinking = !options.no_think;
  attached.preserve_thinking = options.preserve_thinking;
  attached.recall = !options.no_recall;
  server->attach(std::move(attached));
  say_how_to_talk(url, name, *served, key);
  while (!signals.wait(3'600'000)) {
  }
  end(*server, signals, options.drain_seconds);
  return {};
}

void add_options(CLI::App& app, ServeOptions& options) {
  app.add_option("MODEL", options.model, kModelHelp);
  app.add_option("--host", options.server.host, "address or name to listen on");
  app.add_option("--port", options.server.port, "0 = any free one")->check(CLI::Range(0, 65'535));
  app.add_option("--parallel", options.device.plan.sequences, "answers computed at once")
      ->check(CLI::Range(1U, Limits::kMaxSequences));
  app.add_option("--queue", options.engine.queue, "requests that may wait; one more is answered with 429")
      ->check(CLI::Range(0U, Limits::kMaxQueue));
  app.add_option("--cache-ram", options.cache_mib,
                 "MiB for running and kept conversations together; 0 = keep none; absent = from the memory")
      ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 24U));
  CLI::Option* folder = app.add_option(
      "--cache-dir", options.cache_folder,
      "folder where conversations are kept beyond memory and over restarts; absent = they are not");
  app.add_option("--cache-disk", options.disk_mib,
                 "MiB of files in --cache-dir, what other models left there included")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 30U))
      ->needs(folder);
  app.add_option("--max-answer", options.max_answer,
                 "most tokens of an answer, whatever is asked for; 0 = the context")
      ->check(CLI::Range(0U, Limits::kMaxContext));
  app.add_option("--max-seconds", options.max_seconds,
                 "most seconds of a request, waiting included: its answer ends there; 0 = no limit")
      ->check(number_from(0, 1e6));
  app.add_flag("--parse-special", options.parse_special,
               "text of messages such as <|im_end|> becomes control tokens, as with other programs");
  app.add_flag("--reasoning-twice", options.reasoning_twice,
               "send the thinking as `reasoning` too, for clients that do not read `reasoning_content`");
  app.add_flag("--no-think", options.no_think, "requests that do not say so are answered without thinking");
  app.add_flag("--preserve-thinking", options.preserve_thinking,
               "requests that do not say so keep the thinking of earlier turns in the prompt");
  app.add_flag(
      "--close-thinking", options.close_thinking,
      "an answer that ends while it still thinks goes on with its content; thinking takes more time");
  app.add_flag("--no-recall", options.no_recall,
               "render every answer in a history from what the client sent, also where the tokens that were "
               "generated are remembered");
  app.add_flag("--log-prompts", options.server.log_prompts, "write the text of conversations into the log");
  app.add_option("--model-name", options.name, "the id in /v1/models; absent = from MODEL");
  app.add_option("--api-key", options.server.api_keys,
                 "ask clients for this key (may be repeated; also LILY_API_KEY in the environment)");
  app.add_option("--api-key-file", options.api_key_file, "a file with one key a line");
  app.add_flag("--allow-anonymous", options.server.allow_anonymous,
               "listen beyond this machine although no key is asked for");
  app.add_option("--cors-origin", options.server.allowed_origin,
                 "origin of web pages that may call this server; * = all, empty = none");
  app.add_option("--drain", options.drain_seconds, "seconds that running answers get after Ctrl-C or SIGTERM")
      ->check(number_from(0, 3600));
  add_device_options(app, options.device);
  add_context_option(app, options.device);
}

}  // namespace

void add_serve(CommandLine& line) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* app = line.app.add_subcommand(
      "serve", "Serve the APIs of OpenAI and Anthropic, and a page to talk to the model");
  add_options(*app, *options);
  app->callback([&line, options] { line.chosen = [options] { return serve(*options); }; });
}

}  // namespace lily::app
