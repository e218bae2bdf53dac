// From a typed request to what the engine runs: the conversation normalised, rendered and tokenised, the
// fields resolved against the model's defaults. Takes no lock and touches no socket: any thread may call it.
#pragma once

#include "engine/engine.h"
#include "server/api_error.h"
#include "server/openai.h"
#include "server/server.h"
#include "weights/config.h"

namespace lily {

// What requests are resolved against.
struct PromptRules {
  uint32_t context = 0;        // tokens of prompt and answer
  uint32_t vocab = 0;          // ids below it may be biased
  uint32_t max_answer = 0;     // tokens; 0 = what the context leaves
  double max_seconds = 0;      // of a request, waiting included; 0 = no limit
  bool parse_special = false;  // the text of messages may hold control tokens
  bool close_thinking = false;
  bool enable_thinking = true;
  bool preserve_thinking = false;
  const TokenMemory* memory = nullptr;  // where answers of the history are looked for; null: nowhere
};

// Fails with context_length_exceeded when the prompt leaves no room for an answer; a max_tokens that does not
// fit is cut to what does.
ApiResult<GenerationRequest> make_generation(const ChatRequest& request, const Tokenizer& tokenizer,
                                             const GenerationConfig& defaults, const PromptRules& rules);
ApiResult<GenerationRequest> make_generation(const ChatRequest& request, const ServedModel& model);
// The tokens of its prompt, however many.
ApiResult<size_t> count_prompt(const ChatRequest& request, const ServedModel& model);

// The prompt of `request` as text: normalised, then rendered with the template's tolerant rules.
ApiResult<RenderedPrompt> render_prompt(const ChatRequest& request, const PromptRules& rules = {});
PromptRules rules_of(const ServedModel& model);

// Fails where a biased token is not in the vocabulary.
ApiResult<void> check_bias(const std::vector<LogitBias>& biases, uint32_t vocab);

// Sampling of `request`, each absent field from `defaults`, the seed from the system's random source.
Sampling resolve_sampling(const ChatRequest& request, const GenerationConfig& defaults);

}  // namespace lily
