#include "apps/lily/bench_conversation.h"

#include <algorithm>
#include <chrono>
#include <future>

#include "apps/lily/assistant.h"
#include "engine/engine.h"
#include "server/jobs.h"
#include "text/json.h"
#include "text/output_parser.h"
#include "text/transcript.h"

namespace lily::app {
namespace {

constexpr uint32_t kTurnsOfQuery = 6;  // a question, five results of tools
constexpr uint32_t kSystemShare = 6;   // of the length: one part in so many is the system turn
constexpr uint32_t kAnswerTokens = 120;

// Words that depend on a seed alone.
class Words {
 public:
  explicit Words(uint64_t seed) : state_(seed) {}
  std::string take(uint32_t count) {
    static constexpr std::string_view kWords[] = {"file",  "line", "test",  "build", "error",
                                                  "value", "list", "index", "state", "open",
                                                  "close", "read", "write", "check"};
    std::string text;
    for (uint32_t i = 0; i < count; ++i) {
      state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
      if (i > 0) text += ' ';
      text += kWords[(state_ >> 33U) % std::size(kWords)];
    }
    return text;
  }

 private:
  uint64_t state_;
};

std::string tools_json() {
  std::string tools = "[";
  for (const char* name : {"read_file", "write_file", "search", "run"}) {
    tools += fmt::format(
        R"({}{{"type": "function", "function": {{"name": "{}", "description": "Works on the files of a project",
        "parameters": {{"type": "object", "properties": {{"path": {{"type": "string"}}, "line": {{"type": "integer"}}}}}}}}}})",
        tools.size() > 1 ? ", " : "", name);
  }
  return tools + "]";
}

// What became of one request.
struct Asked {
  Usage usage;
  double seconds = 0;  // from its submission to its first and only token
};

class Replay {
 public:
  Replay(std::unique_ptr<Engine> engine, const Tokenizer& tokenizer, const ConversationOptions& options)
      : engine_(std::move(engine)),
        tokenizer_(tokenizer),
        options_(options),
        tools_(*parse_json(tools_json())) {
    schemas_ = std::make_shared<ToolSchemas>(tools_.as_array());
    const double tokens = static_cast<double>(tokenizer_.encode(Words(1).take(1000)).size());
    words_per_token_ = 1000 / tokens;
  }

  Result<void> run(History history, const std::atomic<bool>& cancel,
                   FunctionRef<void(const ConversationTurn&)> sink) {
    history_ = history;
    messages_.clear();
    read_.clear();
    messages_.push_back(text_message(
        "system", fmt::format("Conversation {}. ", to_string(history)) + words(system_tokens())));
    for (uint32_t turn = 0; turn < options_.turns; ++turn) {
      if (cancel) return fail(ErrorKind::cancelled, "interrupted");
      LILY_TRY(const ConversationTurn figures, take(turn));
      sink(figures);
    }
    return {};
  }

 private:
  std::string words(double tokens) {
    return source_.take(std::max(1U, static_cast<uint32_t>(tokens * words_per_token_)));
  }

  uint32_t system_tokens() const { return options_.length / kSystemShare; }

  Result<ConversationTurn> take(uint32_t turn) {
    ConversationTurn figures{.history = history_, .turn = turn + 1, .query = turn % kTurnsOfQuery == 0};
    const double rest = options_.length - system_tokens();
    const double share = std::max(16.0, rest / options_.turns - kAnswerTokens);
    messages_.push_back(text_message(figures.query ? "user" : "tool", words(share)));
    LILY_TRY(GenerationRequest request, prepare(messages_));
    figures.prompt = static_cast<uint32_t>(request.prompt.size());
    figures.least = figures.prompt - shared(request.prompt);
    const std::vector<int32_t> prompt = request.prompt;
    LILY_TRY(const Asked warm, ask(std::move(request)));
    figures.reread = figures.prompt - warm.usage.cached_tokens;
    figures.warm = warm.seconds;
    LILY_TRY_VOID(answer(prompt, (turn + 1) % kTurnsOfQuery != 0));
    if (options_.cold_every > 0 && (turn + 1) % options_.cold_every == 0) {
      LILY_TRY(figures.cold, ask_cold());
    }
    return figures;
  }

  Result<GenerationRequest> prepare(const std::vector<Message>& messages) {
    ChatRequest request;
    request.conversation.messages = messages;
    request.conversation.tools = tools_.as_array();
    request.tools = schemas_;
    request.preserve_thinking = history_ == History::preserved;
    request.temperature = 0;
    request.max_tokens = 1;
    PromptRules rules;
    rules.context = engine_->plan().context;
    rules.vocab = engine_->plan().shape.vocab;
    rules.memory = engine_->memory();
    ApiResult<GenerationRequest> made = make_generation(request, tokenizer_, GenerationConfig{}, rules);
    if (!made) return fail(ErrorKind::invalid_input, "{}", made.error().message);
    return *std::move(made);
  }

  // The same prompt under another beginning, so that nothing of it is known.
  Result<double> ask_cold() {
    std::vector<Message> messages = messages_;
    messages.pop_back();  // the answer
    messages[0].content[0].text = fmt::format("{} cold. ", ++cold_) + messages[0].content[0].text;
    LILY_TRY(GenerationRequest request, prepare(messages));
    request.marks.clear();
    LILY_TRY(const Asked asked, ask(std::move(request)));
    return asked.seconds;
  }

  uint32_t shared(const std::vector<int32_t>& prompt) const {
    size_t most = 0;
    for (const std::vector<int32_t>& one : read_) {
      const auto parted = std::mismatch(one.begin(), one.end(), prompt.begin(), prompt.end());
      most = std::max(most, static_cast<size_t>(parted.first - one.begin()));
    }
    return static_cast<uint32_t>(most);
  }

  Result<Asked> ask(GenerationRequest request) {
    std::promise<Result<Asked>> promise;
    const auto start = std::chrono::steady_clock::now();
    LILY_TRY(const std::unique_ptr<Job> job, engine_->submit(std::move(request), [&](Event event) {
      if (auto* failed = std::get_if<Failed>(&event)) promise.set_value(fail(std::move(failed->error)));
      if (const auto* finished = std::get_if<Finished>(&event)) {
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        promise.set_value(Asked{finished->usage, seconds.count()});
      }
    }));
    return promise.get_future().get();
  }

  // Lets the model "say" an answer after `prompt`: it is read, and its end with it. The client gets what a
  // parser makes of it.
  Result<void> answer(std::vector<int32_t> prompt, bool calls) {
    std::string text = words(kAnswerTokens / 2.0) + "\n\n</think>\n\n";
    text +=
        calls ? "\n<tool_call>\n<function=read_file>\n<parameter=line>\n7\n</parameter>\n<parameter=path>\n" +
                    words(4) + "\n</parameter>\n\n</function>\n</tool_call>"
              : words(kAnswerTokens / 4.0) + " \n";
    OutputParser parser({.in_think = true, .continues_text = false}, schemas_);
    ParsedOutput parsed;
    for (const OutputPiece& piece : parser.push(text)) parsed.add(piece);
    for (const OutputPiece& piece : parser.finish(false)) parsed.add(piece);
    Message message = text_message("assistant", parsed.content);
    if (history_ != History::dropped) message.reasoning = parsed.reasoning;
    for (const ParsedCall& call : parsed.calls) {
      LILY_TRY(const boost::json::value arguments, parse_json(call.arguments));
      message.tool_calls.push_back({"", call.name, arguments.as_object()});
    }
    messages_.push_back(std::move(message));

    const std::vector<int32_t> ids = tokenizer_.encode(text + "<|im_end|>");
    prompt.insert(prompt.end(), ids.begin(), ids.end());
    GenerationRequest request;
    request.prompt = prompt;
    request.max_tokens = 1;
    request.sampling.mode = Sampling::Mode::greedy;
    LILY_TRY_VOID(ask(std::move(request)));
    read_.push_back(std::move(prompt));
    return {};
  }

  std::unique_ptr<Engine> engine_;
  const Tokenizer& tokenizer_;
  const ConversationOptions options_;
  const boost::json::value tools_;
  std::shared_ptr<const ToolSchemas> schemas_;
  double words_per_token_ = 1;
  Words source_{7};
  History history_ = History::returned;
  std::vector<Message> messages_;
  std::vector<std::vector<int32_t>> read_;  // prompts with their answers
  uint32_t cold_ = 0;
};

}  // namespace

std::string_view to_string(History history) {
  switch (history) {
    case History::preserved:
      return "preserved";
    case History::returned:
      return "returned";
    case History::dropped:
      return "dropped";
  }
  return "unknown";
}

Result<void> replay_conversations(std::unique_ptr<Backend> backend, const Plan& plan,
                                  const Tokenizer& tokenizer, const ConversationOptions& options,
                                  const std::atomic<bool>& cancel,
                                  FunctionRef<void(const ConversationTurn&)> sink) {
  // Whatever is kept stays: what is measured is what must be read, not what had no room.
  const EngineOptions keeping{.cache_bytes = uint64_t{1} << 50U};
  LILY_TRY(std::unique_ptr<Engine> engine, Engine::create(std::move(backend), plan, tokenizer, keeping));
  Replay replay(std::move(engine), tokenizer, options);
  for (const History history : {History::preserved, History::returned, History::dropped}) {
    LILY_TRY_VOID(replay.run(history, cancel, sink));
  }
  return {};
}

}  // namespace lily::app
