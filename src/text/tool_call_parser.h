// Takes the tool calls out of the content of an answer: the XML dialect of the chat template,
//   <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>
// and how models deviate from it: no <tool_call>, a missing or doubled closing marker, no line breaks, JSON
// inside. What is no call is text. Streaming: the pieces, joined, do not depend on how the text is cut.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_piece.h"
#include "text/tool_call_syntax.h"
#include "text/tool_schemas.h"

namespace lily {

class ToolCallParser {
 public:
  explicit ToolCallParser(std::shared_ptr<const ToolSchemas> tools);

  void push(std::string_view text, std::vector<OutputPiece>& out);
  // The end of the answer. `cut`: it was stopped from outside (a limit), so that a call which is not closed
  // stays without its end; otherwise the model said that it is done, and what is open is closed.
  void finish(bool cut, std::vector<OutputPiece>& out);
  bool in_call() const;   // a call has begun and not ended
  bool in_value() const;  // and text of it is missing, not only closing markers

 private:
  enum class State { text, parameters, value, after };

  bool step(bool last, std::vector<OutputPiece>& out);
  bool text(bool last, std::vector<OutputPiece>& out);
  bool parameters(bool last, std::vector<OutputPiece>& out);
  bool value(bool last, std::vector<OutputPiece>& out);
  bool after(bool last, std::vector<OutputPiece>& out);
  Match after_json(bool last, std::vector<OutputPiece>& out);
  Match closing(size_t at, bool last);
  Match closing_at_line_start(MarkerReader& reader);

  void send_text(size_t end, bool blanks_too, std::vector<OutputPiece>& out);
  void begin_call(CallOpening opening, std::vector<OutputPiece>& out);
  void end_call(std::vector<OutputPiece>& out);
  void begin_value(std::string_view name, std::vector<OutputPiece>& out);
  void take_value(size_t end, std::vector<OutputPiece>& out);
  void end_value(std::vector<OutputPiece>& out);
  void send_arguments(std::string_view json, std::vector<OutputPiece>& out) const;
  CallOpening opening_at(size_t at, bool last);
  bool line_starts_at(size_t at) const;
  bool begins_call(size_t at) const;
  size_t before_line_break(size_t end) const;
  size_t certain_until(size_t end) const;
  std::string_view rest(size_t at) const { return std::string_view(buffer_).substr(at); }

  std::shared_ptr<const ToolSchemas> tools_;
  State state_ = State::text;
  std::string buffer_;  // [at_, end) is not decided yet; the part before is dropped after each push
  size_t at_ = 0;
  size_t scan_ = 0;    // where to look for the next '<', >= at_
  size_t blanks_ = 0;  // of content: so many bytes from at_ are known to be blank
  size_t offset_ = 0;  // of buffer_ in the whole input
  JsonScan json_;

  bool after_call_ = false;    // nothing but blanks since a call ended
  bool in_json_list_ = false;  // that call was written as JSON, and </tool_call> has not come
  bool has_text_ = false;      // content was sent

  uint32_t calls_ = 0;           // begun
  std::string name_;             // of the function called now
  std::set<std::string> given_;  // its parameters so far
  bool value_begins_ = false;    // a line break that opens the value is not looked for yet
  bool value_line_ = false;      // at_ is the start of a line of the value
  int depth_ = 0;                // open <parameter=...> lines inside the value
  int functions_ = 0;            // open <function=...> lines inside it
  bool skip_ = false;            // a parameter given twice: the first counts
  bool string_ = false;          // the value is known to be a string and sent as it comes
  std::string collected_;        // the value, while it may be something else
  std::vector<JsonType> types_;
};

}  // namespace lily
