// The text of an answer taken apart: reasoning, content, tool calls. Streaming: the pieces, joined, do not
// depend on how the text is cut, and no text makes it fail.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_piece.h"
#include "text/reasoning.h"
#include "text/tool_call_parser.h"

namespace lily {

class OutputParser {
 public:
  struct Start {  // both from the rendered prompt
    bool in_think = false;
    bool continues_text = false;
  };
  // Without tools nothing is a call. Tool syntax in the reasoning is reasoning, with one exception: calls of
  // declared tools with which the reasoning ends, when no content comes after it, are calls.
  OutputParser(Start start, std::shared_ptr<const ToolSchemas> tools);

  std::vector<OutputPiece> push(std::string_view text);
  // The end of the answer; see ToolCallParser::finish().
  std::vector<OutputPiece> finish(bool cut);

  bool in_think() const { return splitter_.in_think(); }
  // Whether what was reasoning so far would be calls if the answer ended here.
  bool reasoning_ends_with_calls() const;
  // See ToolCallParser.
  bool in_call() const { return calls_ && calls_->in_call(); }
  bool in_value() const { return calls_ && calls_->in_value(); }

 private:
  void take(const ReasoningSplitter::Delta& delta, std::vector<OutputPiece>& out);
  void take_reasoning(const ReasoningSplitter::Delta& delta, std::vector<OutputPiece>& out);
  void send_reasoning(size_t bytes, std::vector<OutputPiece>& out);
  struct CallsAtEnd {
    size_t begin;  // in held_
    std::vector<OutputPiece> pieces;
  };
  std::optional<CallsAtEnd> calls_at_end() const;
  bool promote(std::vector<OutputPiece>& out);
  // Pieces of the content's own parser, whose input is the content alone.
  void append(std::vector<OutputPiece> pieces, std::vector<OutputPiece>& out) const;

  ReasoningSplitter splitter_;
  std::shared_ptr<const ToolSchemas> tools_;  // null: none
  std::optional<ToolCallParser> calls_;
  bool has_content_ = false;
  size_t content_begin_ = 0;  // in the input

  std::string held_;        // reasoning that may turn out to be a call, with the blanks before it
  size_t held_begin_ = 0;   // in the input
  size_t scan_ = 0;         // in held_: where to look for the next '<'
  bool may_call_ = false;   // a call begins at scan_
  bool line_start_ = true;  // of held_
  JsonScan json_;
};

}  // namespace lily
