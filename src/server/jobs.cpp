#include "server/jobs.h"

#include <algorithm>
#include <limits>
#include <random>

#include "text/chat_template.h"
#include "text/prompt_tokens.h"
#include "text/recall.h"

namespace lily {
namespace {

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

TemplateOptions template_options(const ChatRequest& request, const PromptRules& rules) {
  TemplateOptions options;
  options.add_generation_prompt = request.add_generation_prompt;
  options.enable_thinking = request.enable_thinking.value_or(rules.enable_thinking);
  options.preserve_thinking = request.preserve_thinking.value_or(rules.preserve_thinking);
  options.add_vision_id = request.add_vision_id;
  options.tolerant = true;
  options.continue_final_message = request.continue_final_message;
  return options;
}

// A prompt as text, and the messages that it was rendered from.
struct WrittenPrompt {
  std::vector<Message> messages;
  RenderedPrompt rendered;
};

ApiResult<WrittenPrompt> write_prompt(const ChatRequest& request, const PromptRules& rules) {
  Conversation conversation = normalize(request.conversation);
  Result<RenderedPrompt> rendered = render(conversation, template_options(request, rules));
  if (!rendered) {
    return fail(bad_field("messages", rendered.error().message));
  }
  if (rules.parse_special) {
    rendered->literal.clear();
  }
  return WrittenPrompt{std::move(conversation.messages), std::move(*rendered)};
}

// The tokens of `prompt`, with the answers that are remembered put back as they were generated: unless that
// makes it too long, since what the client sent is not.
PromptTokens tokens_of(const WrittenPrompt& prompt, const ChatRequest& request, const Tokenizer& tokenizer,
                       const PromptRules& rules, uint32_t& recalled) {
  PromptTokens tokens = tokenize(prompt.rendered, tokenizer, rules.context);
  recalled = 0;
  if (rules.memory == nullptr || !tokens.whole || tokens.answers.empty()) {
    return tokens;
  }
  PromptTokens with = tokens;
  recalled =
      static_cast<uint32_t>(recall_answers(with, prompt.messages, {*rules.memory, tokenizer, request.tools}));
  if (recalled == 0 || (with.ids.size() >= rules.context && tokens.ids.size() < rules.context)) {
    recalled = 0;
    return tokens;
  }
  return with;
}

}  // namespace

ApiResult<void> check_bias(const std::vector<LogitBias>& biases, uint32_t vocab) {
  for (const LogitBias& bias : biases) {
    if (static_cast<uint32_t>(bias.token) >= vocab) {
      return fail(bad_field(
          fmt::format("logit_bias.{}", bias.token),
          fmt::format("'logit_bias' has the token id {}; the vocabulary has {}.", bias.token, vocab)));
    }
  }
  return {};
}

Sampling resolve_sampling(const ChatRequest& request, const GenerationConfig& defaults) {
  Sampling sampling;
  const float temperature = request.temperature.value_or(defaults.temperature.value_or(1.0F));
  // A model that is greedy by default samples once the request names a temperature.
  const bool greedy = temperature <= 0.0F || (!defaults.do_sample && !request.temperature);
  sampling.mode = greedy ? Sampling::Mode::greedy : Sampling::Mode::random;
  sampling.temperature = greedy ? 1.0F : temperature;
  sampling.top_k = request.top_k.value_or(defaults.top_k.value_or(0));
  sampling.top_p = request.top_p.value_or(defaults.top_p.value_or(1.0F));
  sampling.min_p = request.min_p.value_or(defaults.min_p.value_or(0.0F));
  sampling.presence_penalty = request.presence_penalty.value_or(defaults.presence_penalty.value_or(0.0F));
  sampling.frequency_penalty = request.frequency_penalty.value_or(0.0F);
  sampling.repetition_penalty =
      request.repetition_penalty.value_or(defaults.repetition_penalty.value_or(1.0F));
  sampling.seed = request.seed ? *request.seed : random_seed();
  return sampling;
}

ApiResult<RenderedPrompt> render_prompt(const ChatRequest& request, const PromptRules& rules) {
  LILY_TRY(WrittenPrompt prompt, write_prompt(request, rules));
  return std::move(prompt.rendered);
}

PromptRules rules_of(const ServedModel& model) {
  const Plan& plan = model.engine->plan();
  return {.context = plan.context,
          .vocab = plan.shape.vocab,
          .max_answer = model.max_answer,
          .max_seconds = model.max_seconds,
          .parse_special = model.parse_special,
          .close_thinking = model.close_thinking,
          .enable_thinking = model.enable_thinking,
          .preserve_thinking = model.preserve_thinking,
          .memory = model.recall ? model.engine->memory() : nullptr};
}

ApiResult<GenerationRequest> make_generation(const ChatRequest& request, const ServedModel& model) {
  return make_generation(request, *model.tokenizer, model.generation, rules_of(model));
}

ApiResult<GenerationRequest> make_generation(const ChatRequest& request, const Tokenizer& tokenizer,
                                             const GenerationConfig& defaults, const PromptRules& rules) {
  LILY_TRY_VOID(check_bias(request.logit_bias, rules.vocab));
  LILY_TRY(const WrittenPrompt written, write_prompt(request, rules));
  GenerationRequest out;
  PromptTokens tokens = tokens_of(written, request, tokenizer, rules, out.recalled);
  if (tokens.at_least >= rules.context) {
    return fail(context_exceeded(tokens.at_least, rules.context, tokens.whole));
  }
  out.prompt = std::move(tokens.ids);
  out.marks = std::move(tokens.marks);
  out.turns = std::move(tokens.turns);
  if (out.prompt.empty()) {
    return fail(bad_field("messages", "The prompt of this request is empty."));
  }
  uint32_t room = rules.context - static_cast<uint32_t>(out.prompt.size());
  if (rules.max_answer > 0) {
    room = std::min(room, rules.max_answer);
  }
  out.starts_in_think = written.rendered.starts_in_think;
  out.continues_text = written.rendered.continues_text;
  out.max_tokens = std::min(request.max_tokens.value_or(room), room);
  out.max_seconds = rules.max_seconds;
  if (const std::optional<int32_t> close = tokenizer.id_of("</think>")) {
    out.think_end = *close;
    out.thinking_budget = request.thinking_budget;
    out.close_thinking = rules.close_thinking;
  }
  out.sampling = resolve_sampling(request, defaults);
  out.logit_bias = request.logit_bias;
  out.stop_ids = defaults.stop_ids;
  out.stop = request.stop;
  out.logprobs = request.logprobs;
  out.tools = request.tools;
  out.calls = request.calls;
  return out;
}

ApiResult<size_t> count_prompt(const ChatRequest& request, const ServedModel& model) {
  PromptRules rules = rules_of(model);
  rules.context = std::numeric_limits<uint32_t>::max();  // however many
  LILY_TRY(const WrittenPrompt written, write_prompt(request, rules));
  uint32_t recalled = 0;
  return tokens_of(written, request, *model.tokenizer, rules, recalled).ids.size();
}

}  // namespace lily
