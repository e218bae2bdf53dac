// Asking the model from the command line: what `lily run` and `lily chat` share.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "apps/lily/interrupt.h"
#include "apps/lily/model_source.h"
#include "engine/engine.h"
#include "server/openai.h"

namespace lily::app {

// A message of nothing but text.
Message text_message(std::string role, std::string text);

// Options of an answer; what is absent is the model's default.
struct AnswerOptions {
  std::optional<uint32_t> max_tokens;
  std::optional<float> temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
  std::optional<uint32_t> top_k;
  std::optional<uint64_t> seed;
  std::optional<uint32_t> thinking_budget;
  std::vector<std::string> stop;
  std::string tools;  // file; empty = none
  bool no_think = false;
  bool show_thinking = false;
  bool hide_thinking = false;

  ChatRequest request(Conversation conversation) const;
  Result<void> read_tools_into(ChatRequest& request) const;
};
void add_answer_options(CLI::App& app, AnswerOptions& options);

struct Answer {
  std::string reasoning;
  std::string content;
  std::vector<ParsedCall> calls;
  std::optional<Finished> finished;  // absent: interrupted
  void add(const Delta& delta);
};

// What is written while an answer comes. `terminal`: dims the thinking, and keeps the model from sending
// control sequences to the terminal.
class AnswerWriter {
 public:
  AnswerWriter(bool terminal, bool thinking) : terminal_(terminal), thinking_(thinking) {}
  static AnswerWriter for_stdout(const AnswerOptions& options);
  void write(const Delta& delta);
  void end();  // leaves the cursor at the start of a line

 private:
  void put(std::string_view text);
  void write_call(const ToolCallDelta& call);
  void end_thinking();
  bool terminal_;
  bool thinking_;
  bool dim_ = false;
  bool wrote_ = false;
  bool line_open_ = false;
};

// A loaded model with its engine.
class Assistant {
 public:
  static Result<std::unique_ptr<Assistant>> load(const std::string& model, const DeviceOptions& options);

  Result<GenerationRequest> prepare(const ChatRequest& request) const;
  // Text as it is, without the template.
  Result<GenerationRequest> prepare_raw(const ChatRequest& request, std::string_view text) const;
  // Blocks until the answer has ended or an interrupt came. With `writer`, writes to stdout as it comes.
  Result<Answer> ask(GenerationRequest request, const Interrupts& interrupts, AnswerWriter* writer);

  const LoadedModel& model() const { return model_; }
  const Engine& engine() const { return *engine_; }

 private:
  explicit Assistant(LoadedModel model) : model_(std::move(model)) {}
  LoadedModel model_;  // outlives the engine
  std::unique_ptr<Engine> engine_;
};

// "prompt 31 tokens, 0.21 s (148/s); answer 52 tokens (20 thinking), 1.90 s (27.4/s); stop"
std::string timing_line(const Finished& finished);

}  // namespace lily::app
