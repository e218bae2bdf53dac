// Answers of the model in a client's history, put back as the model wrote them. A client returns what it was
// told as text and JSON; rendered again that need not be the tokens that were generated (spaces, the order of
// arguments, where a word is cut, reasoning that was not returned), and what follows would have to be read
// again. Where a remembered answer says the same, its tokens take the place of the rendered ones.
#pragma once

#include <memory>
#include <vector>

#include "text/chat_template.h"
#include "text/prompt_tokens.h"
#include "text/token_memory.h"
#include "text/tokenizer.h"
#include "text/tool_schemas.h"
#include "text/transcript.h"

namespace lily {

// Whether an answer that the model gave is what `message` says: the same text and reasoning but for blanks
// around them, the same calls in the same order with equal arguments, whatever the order of their keys and
// the form of their numbers. The reasoning of a message that has none is not compared.
bool says_the_same(const Message& message, const ParsedOutput& answer);

struct RecallSources {
  const TokenMemory& memory;
  const Tokenizer& tokenizer;
  std::shared_ptr<const ToolSchemas> tools;  // of the request; null: none
};

// Goes along `prompt` as far as it is known; where it parts from that within an answer which the template
// writes with its reasoning, looks for a remembered one that says the same. Lengths, marks and places in
// `prompt` follow. `messages` are those that were rendered. Gives the number of answers put back.
size_t recall_answers(PromptTokens& prompt, const std::vector<Message>& messages,
                      const RecallSources& sources);

}  // namespace lily
