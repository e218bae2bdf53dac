// lily chat: a conversation in the terminal.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "apps/lily/assistant.h"
#include "apps/lily/commands.h"
#include "apps/lily/say.h"

namespace lily::app {
namespace {

constexpr const char* kHelp =
    "  /help            this list\n"
    "  /reset           forget the conversation (the system message stays)\n"
    "  /system TEXT     another system message, and start anew\n"
    "  /think           think before answering\n"
    "  /nothink         answer at once\n"
    "  /retry           answer the last message again\n"
    "  /quit            leave (also Ctrl-D)\n"
    "  A line that ends in \\ goes on in the next. Ctrl-C stops an answer, a second one leaves.\n";

struct ChatOptions {
  std::string model;
  std::string system;
  AnswerOptions answer;
  DeviceOptions device;
};

class Chat {
 public:
  Chat(const ChatOptions& options, Assistant& assistant)
      : answer_(options.answer), assistant_(assistant), system_(options.system) {
    reset();
  }

  Result<void> run() {
    const LoadedModel& model = assistant_.model();
    say("{} on {}, {} tokens of context. /help lists the commands.\n", model.folder.filename().string(),
        assistant_.engine().device().description, model.plan.context);
    for (;;) {
      std::string line;
      if (!read_message(line)) {
        return {};
      }
      if (line.empty()) {
        continue;
      }
      if (line[0] == '/') {
        if (!command(line)) {
          return {};
        }
        continue;
      }
      conversation_.messages.push_back(text_message("user", std::move(line)));
      answer();
    }
  }

 private:
  void reset() {
    conversation_ = {};
    if (!system_.empty()) {
      conversation_.messages.push_back(text_message("system", system_));
    }
  }

  // False at the end: end of input, or a second Ctrl-C.
  bool read_message(std::string& message) {
    message.clear();
    for (;;) {
      std::string line;
      switch (read_line(message.empty() ? "> " : ". ", line)) {
        case Read::end:
          return !message.empty();
        case Read::interrupted:
          if (interrupts_.count() > 1) {
            return false;
          }
          say("\n(Ctrl-C again or /quit leaves)\n");
          message.clear();
          continue;
        case Read::line:
          break;
      }
      const bool more = !line.empty() && line.back() == '\\';
      if (more) {
        line.back() = '\n';
      }
      message += line;
      if (!more) {
        interrupts_.reset();
        return true;
      }
    }
  }

  enum class Read { line, interrupted, end };
  Read read_line(const char* prompt, std::string& line) {
    if (interactive_) {
      std::fputs(prompt, stdout);
      std::fflush(stdout);
    }
    char* buffer = nullptr;
    size_t capacity = 0;
    errno = 0;
    const ssize_t length = ::getline(&buffer, &capacity, stdin);
    const bool interrupted = length < 0 && errno == EINTR;
    if (length > 0) {
      line.assign(buffer, static_cast<size_t>(length));
      if (line.back() == '\n') {
        line.pop_back();
      }
    }
    std::free(buffer);
    if (interrupted) {
      std::clearerr(stdin);
      return Read::interrupted;
    }
    if (length < 0 && interactive_) {
      std::fputc('\n', stdout);
    }
    return length < 0 ? Read::end : Read::line;
  }

  // False: leave.
  bool command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "/quit" || name == "/exit") {
      return false;
    }
    if (name == "/help") {
      std::fputs(kHelp, stderr);
    } else if (name == "/reset") {
      reset();
    } else if (name == "/system") {
      system_ = rest;
      reset();
    } else if (name == "/think" || name == "/nothink") {
      answer_.no_think = name == "/nothink";
    } else if (name == "/retry") {
      retry();
    } else {
      say("no command {}; /help lists them\n", name);
    }
    return true;
  }

  void retry() {
    auto& messages = conversation_.messages;
    while (!messages.empty() && (messages.back().role == "assistant" || messages.back().role == "tool")) {
      messages.pop_back();
    }
    if (messages.empty() || messages.back().role != "user") {
      say("there is nothing to answer again\n");
      return;
    }
    answer();
  }

  // The last message of the user, and what followed it.
  void take_back() {
    auto& messages = conversation_.messages;
    while (!messages.empty() && messages.back().role != "user") {
      messages.pop_back();
    }
    if (!messages.empty()) {
      messages.pop_back();
    }
  }

  // Answers the last message, and goes on while the model calls tools, whose results the user gives.
  void answer() {
    while (answer_once() && ask_for_results()) {
    }
  }

  // One line for each call of the last message; the end of input, or an interrupt, leaves the calls
  // unanswered and takes them back.
  bool ask_for_results() {
    const std::vector<ToolCall> calls = conversation_.messages.back().tool_calls;
    if (calls.empty()) {
      return false;
    }
    for (const ToolCall& call : calls) {
      std::string line;
      if (read_line((call.name + " -> ").c_str(), line) != Read::line) {
        say("(the question is taken back)\n");
        take_back();
        return false;
      }
      conversation_.messages.push_back(text_message("tool", std::move(line)));
    }
    interrupts_.reset();
    return true;
  }

  Result<GenerationRequest> prepare() const {
    ChatRequest request = answer_.request(conversation_);
    LILY_TRY_VOID(answer_.read_tools_into(request));
    return assistant_.prepare(request);
  }

  // One that could not be answered is taken back. Whether there is an answer.
  bool answer_once() {
    Result<GenerationRequest> request = prepare();
    AnswerWriter writer = AnswerWriter::for_stdout(answer_);
    Result<Answer> answer = request ? assistant_.ask(*std::move(request), interrupts_, &writer)
                                    : Result<Answer>(fail(std::move(request).error()));
    if (!answer) {
      say("lily: {}\n", answer.error().text());
      take_back();
      return false;
    }
    Message message = text_message("assistant", std::move(answer->content));
    if (!answer->reasoning.empty()) {
      message.reasoning = std::move(answer->reasoning);
    }
    for (const ParsedCall& call : answer->calls) {
      const Result<boost::json::value> arguments = parse_json(call.arguments);
      if (call.complete && arguments && arguments->is_object()) {
        message.tool_calls.push_back({.id = {}, .name = call.name, .arguments = arguments->get_object()});
      }
    }
    conversation_.messages.push_back(std::move(message));
    if (answer->finished) {
      say("[{}]\n", timing_line(*answer->finished));
    } else {
      say("[stopped]\n");
    }
    return answer->finished.has_value();
  }

  AnswerOptions answer_;
  Assistant& assistant_;
  std::string system_;
  Conversation conversation_;
  Interrupts interrupts_{Interrupts::Kind::counted};
  const bool interactive_ = ::isatty(STDIN_FILENO) == 1;
};

Result<void> chat(const ChatOptions& options) {
  LILY_TRY(const std::unique_ptr<Assistant> assistant, Assistant::load(options.model, options.device));
  return Chat(options, *assistant).run();
}

}  // namespace

void add_chat(CommandLine& line) {
  auto options = std::make_shared<ChatOptions>();
  options->device.plan.sequences = 1;
  CLI::App* app = line.app.add_subcommand("chat", "Talk to the model in the terminal");
  app->add_option("MODEL", options->model, kModelHelp);
  app->add_option("--system", options->system, "system message");
  add_answer_options(*app, options->answer);
  add_device_options(*app, options->device);
  add_context_option(*app, options->device);
  app->callback([&line, options] { line.chosen = [options] { return chat(*options); }; });
}

}  // namespace lily::app
