// lily run: one prompt, one answer.
#include <cstdio>
#include <memory>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include "apps/lily/assistant.h"
#include "apps/lily/commands.h"
#include "apps/lily/input.h"
#include "apps/lily/say.h"

namespace lily::app {
namespace {

struct RunOptions {
  std::string model;
  std::string prompt;
  std::string prompt_file;
  std::string system;
  bool raw = false;
  bool json = false;
  AnswerOptions answer;
  DeviceOptions device;
};

std::string to_json(const Answer& answer) {
  boost::json::object out{{"text", answer.content}, {"reasoning", answer.reasoning}};
  boost::json::array calls;
  for (const ParsedCall& call : answer.calls) {
    if (call.complete) {
      calls.emplace_back(boost::json::object{{"name", call.name}, {"arguments", call.arguments}});
    }
  }
  if (!calls.empty()) {
    out["tool_calls"] = std::move(calls);
  }
  if (answer.finished) {
    const Usage& usage = answer.finished->usage;
    out["finish"] = to_string(answer.finished->reason);
    out["usage"] = {
        {"prompt_tokens", usage.prompt_tokens},         {"cached_tokens", usage.cached_tokens},
        {"completion_tokens", usage.completion_tokens}, {"reasoning_tokens", usage.reasoning_tokens},
        {"queue_seconds", usage.queue_seconds},         {"prefill_seconds", usage.prefill_seconds},
        {"decode_seconds", usage.decode_seconds}};
  } else {
    out["finish"] = "interrupted";
  }
  return boost::json::serialize(out);
}

Result<GenerationRequest> prepare(const RunOptions& options, const Assistant& assistant) {
  std::string prompt = options.prompt;
  if (!options.prompt_file.empty()) {
    LILY_TRY(prompt, read_input(options.prompt_file));
  }
  if (options.raw) {
    return assistant.prepare_raw(options.answer.request({}), prompt);
  }
  Conversation conversation;
  if (!options.system.empty()) {
    conversation.messages.push_back(text_message("system", options.system));
  }
  conversation.messages.push_back(text_message("user", std::move(prompt)));
  ChatRequest request = options.answer.request(std::move(conversation));
  LILY_TRY_VOID(options.answer.read_tools_into(request));
  return assistant.prepare(request);
}

Result<void> run(const RunOptions& options) {
  LILY_TRY(const std::unique_ptr<Assistant> assistant, Assistant::load(options.model, options.device));
  LILY_TRY(GenerationRequest request, prepare(options, *assistant));
  AnswerWriter writer = AnswerWriter::for_stdout(options.answer);
  const Interrupts interrupts(Interrupts::Kind::counted);
  LILY_TRY(const Answer answer,
           assistant->ask(std::move(request), interrupts, options.json ? nullptr : &writer));
  if (options.json) {
    std::puts(to_json(answer).c_str());
  }
  if (!answer.finished) {
    return fail(ErrorKind::cancelled, "interrupted");
  }
  say("{}\n", timing_line(*answer.finished));
  return {};
}

}  // namespace

void add_run(CommandLine& line) {
  auto options = std::make_shared<RunOptions>();
  options->device.plan.sequences = 1;
  CLI::App* app = line.app.add_subcommand("run", "Answer one prompt");
  app->add_option("MODEL", options->model, kModelHelp);
  auto* prompt = app->add_option("-p,--prompt", options->prompt, "what to answer");
  auto* file = app->add_option("-f,--prompt-file", options->prompt_file, "read it from a file; - = stdin");
  prompt->excludes(file);
  auto* raw = app->add_flag("--raw", options->raw, "continue the text as it is, without the chat template");
  app->add_option("--system", options->system, "system message")->excludes(raw);
  app->add_flag("--json", options->json, "one JSON object: text, reasoning, tool_calls, finish, usage");
  add_answer_options(*app, options->answer);
  app->get_option("--tools")->excludes(raw);
  add_device_options(*app, options->device);
  add_context_option(*app, options->device);
  app->callback([&line, options, prompt, file] {
    if (prompt->count() + file->count() == 0) {
      throw CLI::RequiredError("-p or -f");
    }
    line.chosen = [options] { return run(*options); };
  });
}

}  // namespace lily::app
