#include "apps/lily/assistant.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>

#include "apps/lily/commands.h"
#include "apps/lily/progress.h"
#include "apps/lily/tools_file.h"
#include "server/jobs.h"

namespace lily::app {
namespace {

// How soon an interrupt is seen while the model computes.
constexpr std::chrono::milliseconds kInterruptCheck{50};

// From the engine's thread to the one that writes.
class EventQueue {
 public:
  void push(Event event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_one();
  }
  // None when nothing came within `wait`.
  std::optional<Event> pop(std::chrono::milliseconds wait) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, wait, [&] { return !events_.empty(); })) {
      return std::nullopt;
    }
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
};

Error to_error(const ApiError& error) { return {ErrorKind::invalid_input, error.message, {}}; }

}  // namespace

Message text_message(std::string role, std::string text) {
  Message message;
  message.role = std::move(role);
  if (!text.empty()) {
    message.content.push_back({.kind = ContentPart::Kind::text, .text = std::move(text)});
  }
  return message;
}

ChatRequest AnswerOptions::request(Conversation conversation) const {
  ChatRequest request;
  request.conversation = std::move(conversation);
  request.max_tokens = max_tokens;
  request.temperature = temperature;
  request.top_p = top_p;
  request.min_p = min_p;
  request.presence_penalty = presence_penalty;
  request.frequency_penalty = frequency_penalty;
  request.repetition_penalty = repetition_penalty;
  request.top_k = top_k;
  request.seed = seed;
  request.stop = stop;
  request.enable_thinking = !no_think;
  request.thinking_budget = thinking_budget;
  return request;
}

Result<void> AnswerOptions::read_tools_into(ChatRequest& request) const {
  if (tools.empty()) {
    return {};
  }
  LILY_TRY(request.conversation.tools, read_tools(tools));
  request.tools = std::make_shared<const ToolSchemas>(request.conversation.tools);
  return {};
}

void Answer::add(const Delta& delta) {
  reasoning += delta.reasoning;
  content += delta.content;
  if (!delta.call) {
    return;
  }
  if (!delta.call->name.empty()) {
    calls.push_back({delta.call->name, {}, false});
  }
  calls.back().arguments += delta.call->arguments;
  calls.back().complete = delta.call->complete;
}

void add_answer_options(CLI::App& app, AnswerOptions& options) {
  app.add_flag("--no-think", options.no_think, "answer without thinking first");
  app.add_flag("--show-thinking", options.show_thinking,
               "write the thinking too when stdout is not a terminal");
  app.add_flag("--hide-thinking", options.hide_thinking, "never write the thinking");
  app.add_option("--max-tokens", options.max_tokens, "most tokens of an answer, thinking included")
      ->check(CLI::Range(1U, Limits::kMaxContext));
  app.add_option("--temperature", options.temperature, "0 = always the likeliest token")
      ->check(number_from(0.0, 100.0));
  app.add_option("--top-k", options.top_k, "sample from the k likeliest tokens; 0 = all");
  app.add_option("--top-p", options.top_p, "sample from the likeliest tokens that hold this share")
      ->check(number_from(1e-6, 1.0));
  app.add_option("--min-p", options.min_p, "leave out tokens below this share of the likeliest")
      ->check(number_from(0.0, 1.0));
  app.add_option("--presence-penalty", options.presence_penalty, "taken from tokens that the answer has")
      ->check(number_from(-2.0, 2.0));
  app.add_option("--frequency-penalty", options.frequency_penalty, "the same, each time it has them")
      ->check(number_from(-2.0, 2.0));
  app.add_option("--repetition-penalty", options.repetition_penalty, "divides tokens of prompt and answer")
      ->check(number_from(0.01, 100.0));
  app.add_option("--seed", options.seed, "the same seed gives the same answer; absent = random")
      ->check(CLI::Validator(
          [](const std::string& text) {
            return text.find('-') == std::string::npos ? "" : "a seed is at least 0";
          },
          "UINT"));
  app.add_option("--thinking-budget", options.thinking_budget, "tokens after which the thinking is ended");
  app.add_option("--tools", options.tools,
                 "JSON file with tools that the model may call, as the API's field 'tools'");
  app.add_option("--stop", options.stop, "ends the answer where this text would come; may be repeated")
      ->expected(1)
      ->take_all();
}

AnswerWriter AnswerWriter::for_stdout(const AnswerOptions& options) {
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  return {terminal, (terminal || options.show_thinking) && !options.hide_thinking};
}

void AnswerWriter::put(std::string_view text) {
  if (!terminal_) {
    std::fwrite(text.data(), 1, text.size(), stdout);
  } else {
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      const bool control = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F;
      std::fputc(control ? '?' : c, stdout);
    }
  }
  wrote_ = wrote_ || !text.empty();
  line_open_ = text.empty() ? line_open_ : text.back() != '\n';
}

// A call is written as one reads it: name and the JSON of its arguments, on a line of its own.
void AnswerWriter::write_call(const ToolCallDelta& call) {
  if (!call.name.empty()) {
    end_thinking();
    if (line_open_) {
      put("\n");
    }
    put(call.name);
    put("(");
  }
  put(call.arguments);
  if (call.complete) {
    put(")\n");
  }
}

void AnswerWriter::end_thinking() {
  if (dim_) {
    std::fputs(terminal_ ? "\033[0m\n\n" : "\n\n", stdout);
    dim_ = line_open_ = false;
  }
}

void AnswerWriter::write(const Delta& delta) {
  if (!delta.reasoning.empty() && thinking_) {
    if (terminal_ && !dim_) {
      std::fputs("\033[2m", stdout);
    }
    dim_ = true;
    put(delta.reasoning);
  }
  if (!delta.content.empty()) {
    end_thinking();
    put(delta.content);
  }
  if (delta.call) {
    write_call(*delta.call);
  }
  std::fflush(stdout);
}

void AnswerWriter::end() {
  if (dim_ && terminal_) {
    std::fputs("\033[0m", stdout);
  }
  if (line_open_) {
    std::fputc('\n', stdout);
  }
  dim_ = wrote_ = line_open_ = false;
  std::fflush(stdout);
}

Result<std::unique_ptr<Assistant>> Assistant::load(const std::string& model, const DeviceOptions& options) {
  LILY_TRY(LoadedModel loaded, load_model(model, options, /*with_tokenizer=*/true));
  std::unique_ptr<Assistant> assistant(new Assistant(std::move(loaded)));
  LoadedModel& own = assistant->model_;
  const EngineOptions keeping{.cache_bytes = default_cache_bytes(own)};
  LILY_TRY(assistant->engine_, Engine::create(std::move(own.backend), own.plan, *own.tokenizer, keeping));
  return assistant;
}

Result<GenerationRequest> Assistant::prepare(const ChatRequest& request) const {
  PromptRules rules;
  rules.context = model_.plan.context;
  rules.vocab = model_.plan.shape.vocab;
  rules.memory = engine_->memory();
  auto made = make_generation(request, *model_.tokenizer, model_.generation, rules);
  if (!made) {
    return fail(to_error(made.error()));
  }
  return *std::move(made);
}

Result<GenerationRequest> Assistant::prepare_raw(const ChatRequest& request, std::string_view text) const {
  GenerationRequest generation;
  generation.prompt = model_.tokenizer->encode(text);
  generation.max_tokens = request.max_tokens.value_or(0);
  generation.sampling = resolve_sampling(request, model_.generation);
  generation.stop_ids = model_.generation.stop_ids;
  generation.stop = request.stop;
  return generation;
}

Result<Answer> Assistant::ask(GenerationRequest request, const Interrupts& interrupts, AnswerWriter* writer) {
  const auto queue = std::make_shared<EventQueue>();
  Answer answer;
  ProgressBar progress("reading the prompt");
  bool reading = true;
  LILY_TRY(const std::unique_ptr<Job> job,
           engine_->submit(std::move(request), [queue](Event event) { queue->push(std::move(event)); }));
  while (interrupts.count() == 0) {
    std::optional<Event> event = queue->pop(kInterruptCheck);
    if (!event) {
      continue;
    }
    if (const auto* read = std::get_if<PromptProgress>(&*event)) {
      progress.update(static_cast<double>(read->done) / read->total);
      continue;
    }
    if (reading && !std::holds_alternative<Started>(*event)) {
      progress.finish();
      reading = false;
    }
    if (const auto* delta = std::get_if<Delta>(&*event)) {
      answer.add(*delta);
      if (writer != nullptr) {
        writer->write(*delta);
        if (std::ferror(stdout) != 0) {  // nobody reads the rest
          return fail(ErrorKind::io, "cannot write to standard output");
        }
      }
    } else if (auto* failed = std::get_if<Failed>(&*event)) {
      if (writer != nullptr) {
        writer->end();
      }
      return fail(std::move(failed->error));
    } else if (auto* finished = std::get_if<Finished>(&*event)) {
      answer.finished = std::move(*finished);
      break;
    }
  }
  if (writer != nullptr) {
    writer->end();
  }
  return answer;
}

std::string timing_line(const Finished& finished) {
  const Usage& usage = finished.usage;
  const auto rate = [](double count, double seconds) { return seconds > 0 ? count / seconds : 0.0; };
  const std::string thinking =
      usage.reasoning_tokens > 0 ? fmt::format(" ({} thinking)", usage.reasoning_tokens) : "";
  // The first token comes with the prompt.
  const uint32_t decoded = usage.completion_tokens - 1;
  return fmt::format("prompt {} tokens, {:.2f} s ({:.1f}/s); answer {} tokens{}, {:.2f} s ({:.1f}/s); {}",
                     usage.prompt_tokens, usage.prefill_seconds,
                     rate(usage.prompt_tokens - usage.cached_tokens, usage.prefill_seconds),
                     usage.completion_tokens, thinking, usage.decode_seconds,
                     rate(decoded, usage.decode_seconds), to_string(finished.reason));
}

}  // namespace lily::app
