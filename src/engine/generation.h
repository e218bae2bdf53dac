// From sampled ids to the deltas of one answer:
//   id -> bytes -> UTF-8 -> reasoning | content | tool calls -> stop strings of the content -> Delta
// and the decision when the answer ends. At the end what is held back goes through the same chain.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "text/detokenizer.h"
#include "text/output_parser.h"
#include "text/stop_strings.h"

namespace lily {

class Generation {
 public:
  // Both must outlive it. `max_tokens` >= 1: sampled tokens after which the answer ends with `length`.
  Generation(const Tokenizer& tokenizer, const GenerationRequest& request, uint32_t max_tokens);

  struct Step {
    std::vector<Delta> deltas;
    std::optional<FinishReason> end;  // set: push() must not be called again
  };
  // The next token of the answer. `logits`: the row it was sampled from, when the request asks for logprobs.
  Step push(int32_t token, std::span<const float> logits);

  // The end of an answer that is cut off here: what is held back, and why it ends.
  Step cut();

  uint32_t tokens() const { return tokens_; }
  bool in_think() const { return parser_.in_think(); }
  bool thinking_ends_with_calls() const { return parser_.reasoning_ends_with_calls(); }
  uint32_t reasoning_tokens() const { return reasoning_tokens_; }
  const std::string& stop_string() const { return stop_string_; }

 private:
  struct TextRange {  // bytes of the UTF-8 text before it is parsed
    size_t begin, end;
  };
  struct PendingInfo {
    TokenInfo info;
    TextRange range;
  };
  TokenInfo describe(int32_t token, std::span<const float> logits) const;
  void flush(bool cut, std::vector<Delta>& deltas);
  void take(std::vector<OutputPiece> pieces, std::vector<Delta>& deltas);
  void take_reasoning(OutputPiece piece, std::vector<Delta>& deltas);
  void take_content(const OutputPiece& piece, std::vector<Delta>& deltas);
  void take_call(OutputPiece piece, std::vector<Delta>& deltas);
  void send_content(std::string text, std::vector<Delta>& deltas);
  void add_infos(TextRange range, std::vector<TokenInfo>& infos);
  FinishReason reason_to_stop() const;

  const Tokenizer& tokenizer_;
  const GenerationRequest& request_;
  const uint32_t max_tokens_;
  Detokenizer detokenizer_;
  OutputParser parser_;
  StopStrings stops_;
  uint32_t tokens_ = 0;
  uint32_t reasoning_tokens_ = 0;
  bool stopped_ = false;
  std::string stop_string_;

  uint32_t whole_calls_ = 0;

  // Alignment of logprobs with text, used only when asked for.
  std::deque<PendingInfo> pending_;
  size_t text_bytes_ = 0;         // that entered the parser
  std::deque<TextRange> unsent_;  // of the content that the stop strings hold back
};

}  // namespace lily
