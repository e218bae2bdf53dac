#include "apps/lily/bench_conversation.h"

#include <fcntl.h>
#include <unistd.h>

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

namespace fs = std::filesystem;

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

// A new folder in another one, removed with all that is in it at the end.
class ScratchFolder {
 public:
  static Result<std::unique_ptr<ScratchFolder>> make(const fs::path& parent) {
    std::string name = (parent / "lily-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) return fail_errno("cannot make a folder in", parent.string());
    return std::make_unique<ScratchFolder>(name);
  }
  explicit ScratchFolder(fs::path path) : path_(std::move(path)) {}
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }

  // Makes the system let go of what it has of the files in memory, where it can be told to.
  void forget() const {
#if defined(POSIX_FADV_DONTNEED)
    for (const auto& entry : fs::recursive_directory_iterator(path_)) {
      const int file = entry.is_regular_file() ? ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC) : -1;
      if (file < 0) continue;
      ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
      ::close(file);
    }
#endif
  }

 private:
  fs::path path_;
};

class Replay {
 public:
  Replay(std::shared_ptr<Backend> backend, const Plan& plan, const Tokenizer& tokenizer,
         const ConversationOptions& options)
      : backend_(std::move(backend)),
        plan_(plan),
        tokenizer_(tokenizer),
        options_(options),
        tools_(*parse_json(tools_json())) {
    schemas_ = std::make_shared<ToolSchemas>(tools_.as_array());
    const double tokens = static_cast<double>(tokenizer_.encode(Words(1).take(1000)).size());
    words_per_token_ = 1000 / tokens;
  }

  Result<void> run(History history, const std::atomic<bool>& cancel,
                   FunctionRef<void(const ConversationTurn&)> sink) {
    std::vector<ConversationTurn::FromDisk> from_disk(options_.turns);
    if (!options_.cache_folder.empty() && options_.cold_every > 0) {
      LILY_TRY_VOID(run_from_disk(history, cancel, from_disk));
    }
    LILY_TRY_VOID(begin(history, nullptr));
    for (uint32_t turn = 0; turn < options_.turns; ++turn) {
      if (cancel) return interrupted();
      LILY_TRY(ConversationTurn figures, take(turn));
      if (measured(turn)) {
        LILY_TRY(figures.cold, ask_cold());
      }
      figures.disk = from_disk[turn];
      sink(figures);
    }
    return {};
  }

 private:
  static Result<void> interrupted() { return fail(ErrorKind::cancelled, "interrupted"); }
  bool measured(uint32_t turn) const {
    return options_.cold_every > 0 && (turn + 1) % options_.cold_every == 0;
  }

  // Whatever is kept stays: what is measured is what must be read, not what had no room.
  Result<void> start_engine(const ScratchFolder* folder) {
    constexpr uint64_t kNoLimit = uint64_t{1} << 42U;
    engine_.reset();  // writes what is yet to be written
    EngineOptions keeping{.cache_bytes = kNoLimit};
    if (folder != nullptr) {
      folder->forget();
      keeping.disk = DiskOptions{.folder = folder->path(), .max_bytes = kNoLimit, .model = {}};
    }
    LILY_TRY(engine_, Engine::create(backend_, plan_, tokenizer_, keeping));
    return {};
  }

  Result<void> begin(History history, const ScratchFolder* folder) {
    LILY_TRY_VOID(start_engine(folder));
    history_ = history;
    messages_.clear();
    read_.clear();
    const char* where = folder == nullptr ? "" : " from disk";
    messages_.push_back(text_message(
        "system", fmt::format("Conversation {}{}. ", to_string(history), where) + words(system_tokens())));
    return {};
  }

  Result<void> run_from_disk(History history, const std::atomic<bool>& cancel,
                             std::vector<ConversationTurn::FromDisk>& turns) {
    LILY_TRY(const std::unique_ptr<ScratchFolder> folder, ScratchFolder::make(options_.cache_folder));
    LILY_TRY_VOID(begin(history, folder.get()));
    for (uint32_t turn = 0; turn < options_.turns; ++turn) {
      if (cancel) return interrupted();
      if (measured(turn)) LILY_TRY_VOID(start_engine(folder.get()));
      LILY_TRY(const ConversationTurn figures, take(turn));
      if (measured(turn)) turns[turn] = {figures.least, figures.reread, figures.warm};
    }
    engine_.reset();  // before its folder goes
    return {};
  }

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

  const std::shared_ptr<Backend> backend_;
  const Plan plan_;
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

Result<void> replay_conversations(std::shared_ptr<Backend> backend, const Plan& plan,
                                  const Tokenizer& tokenizer, const ConversationOptions& options,
                                  const std::atomic<bool>& cancel,
                                  FunctionRef<void(const ConversationTurn&)> sink) {
  Replay replay(std::move(backend), plan, tokenizer, options);
  for (const History history : {History::preserved, History::returned, History::dropped}) {
    LILY_TRY_VOID(replay.run(history, cancel, sink));
  }
  return {};
}

}  // namespace lily::app
