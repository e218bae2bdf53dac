// From sampled ids to the deltas of one answer:
//   id -> bytes -> UTF-8 -> reasoning | content -> (tool calls) -> stop strings -> Delta
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
#include "text/reasoning.h"
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

  uint32_t tokens() const { return tokens_; }
  uint32_t reasoning_tokens() const { return reasoning_tokens_; }
  const std::string& stop_string() const { return stop_string_; }

 private:
  // Text positions count bytes of the UTF-8 text before it is split.
  struct PendingInfo {
    TokenInfo info;
    size_t begin;
    size_t end;
  };
  TokenInfo describe(int32_t token, std::span<const float> logits) const;
  void route(std::string_view text, std::vector<Delta>& deltas);
  void flush(std::vector<Delta>& deltas);
  void take(const ReasoningSplitter::Delta& piece, std::vector<Delta>& deltas);
  void take_content(std::string_view content, std::vector<Delta>& deltas);
  void send_content(std::string text, std::vector<Delta>& deltas);
  std::vector<TokenInfo> infos_until(size_t begin, size_t end);

  const Tokenizer& tokenizer_;
  const GenerationRequest& request_;
  const uint32_t max_tokens_;
  Detokenizer detokenizer_;
  ReasoningSplitter splitter_;
  StopStrings stops_;
  uint32_t tokens_ = 0;
  uint32_t reasoning_tokens_ = 0;
  bool stopped_ = false;
  std::string stop_string_;

  // Alignment of logprobs with text, used only when asked for. Reasoning and content are each one contiguous
  // part of the text: a start, and how much of it was sent.
  std::deque<PendingInfo> pending_;
  size_t text_bytes_ = 0;   // that entered the splitter
  size_t split_bytes_ = 0;  // that left it, or were dropped there
  std::optional<size_t> reasoning_begin_;
  size_t reasoning_sent_ = 0;
  std::optional<size_t> content_begin_;
  size_t content_sent_ = 0;
};

}  // namespace lily
