// Where a tool call begins in text that is still growing. Every answer depends on the text alone, never on
// how it was cut: as long as more text could change it, it is `more`.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/function_ref.h"
#include "text/tool_schemas.h"

namespace lily {

inline constexpr std::string_view kCallOpen = "<tool_call>", kCallClose = "</tool_call>";
inline constexpr std::string_view kFunctionOpen = "<function=", kFunctionClose = "</function>";
inline constexpr std::string_view kParameterOpen = "<parameter=", kParameterClose = "</parameter>";

enum class Match : uint8_t { no, more, yes };

// Reads markers from the front of a text. An attempt that only fails because the text ends leaves `more`
// behind, unless the text is the last.
class MarkerReader {
 public:
  // Markers further away than this are not looked for, so that what is held back stays small.
  static constexpr size_t kReach = 1024;

  MarkerReader(std::string_view text, bool last)
      : text_(text.substr(0, kReach)),
        last_(last || text.size() > kReach),
        end_(last && text.size() <= kReach) {}

  size_t at() const { return at_; }
  std::string_view rest() const { return text_.substr(at_); }
  void blanks();
  bool marker(std::string_view marker);   // takes it
  bool follows(std::string_view marker);  // only looks
  // Up to the next '>', which is taken too; blanks and quotes around it are dropped. Empty: none.
  std::string_view name();
  // The same; up to the end of the line if there is no '>' and `known` knows what stands there. The line
  // break is left.
  std::string_view name(FunctionRef<bool(std::string_view)> known);
  bool at_text_end() const { return at_ == text_.size(); }
  bool at_end();  // of the last text
  // What the attempts so far come to when none succeeded.
  Match missed() const { return more_ ? Match::more : Match::no; }

 private:
  std::string_view text_;
  size_t at_ = 0;
  bool last_;  // nothing can be added to text_
  bool end_;   // and the answer ends there
  bool more_ = false;
};

// Finds the end of a JSON object, going on where it stopped.
class JsonScan {
 public:
  // Bytes of the object that `text` begins with; 0 as long as it has not ended. `begin` identifies the
  // object: another value starts anew.
  size_t end(std::string_view text, size_t begin);
  // So much was looked through in vain that nothing more is to be read as JSON: the work stays linear.
  bool exhausted() const { return spent_ > kMostSpent; }

 private:
  static constexpr size_t kMostSpent = 4U << 20;
  size_t spent_ = 0;
  size_t begin_ = std::string_view::npos;
  size_t at_ = 0;
  int depth_ = 0;
  bool string_ = false, escape_ = false;
};

struct CallOpening {
  Match match = Match::no;
  size_t length = 0;        // bytes up to where the parameters begin, or behind the JSON
  std::string name{};       // of the function
  bool json = false;        // written as JSON: complete, with
  std::string arguments{};  // the JSON text of its arguments
};

// Whether a call begins at the '<' that `text` starts with:
//   <tool_call> <function=NAME> and a parameter or an end, NAME any;
//   <function=NAME> and the same at the start of a line, NAME declared;
//   <tool_call> {"name": NAME, "arguments": {...}}, or <function=NAME> {...} of a declared NAME;
// or such an object in a list, which then goes on with match_json_call().
// `begin`: where it stands, for `scan`.
struct CallOpeningContext {
  const ToolSchemas& tools;
  bool line_start;
  bool last;  // no more text comes
};
CallOpening match_call_opening(std::string_view text, size_t begin, const CallOpeningContext& context,
                               JsonScan& scan);

// Whether a call written as JSON begins at the '{' that `text` starts with: an object with a name (`name`,
// `function`, `tool`) and its arguments (`arguments`, `parameters`, `args`, `input`), perhaps inside
// `function`. Braces that are missing before </tool_call> are added once no more text can bring them.
CallOpening match_json_call(std::string_view text, size_t begin, bool last, JsonScan& scan);

}  // namespace lily
