#include "text/tool_call_parser.h"

#include <algorithm>
#include <utility>

namespace lily {

namespace {

constexpr std::string_view kBlank = " \t\r\n";

void add(OutputPiece piece, std::vector<OutputPiece>& out) {
  using Kind = OutputPiece::Kind;
  if (!out.empty() && out.back().kind == piece.kind && out.back().call == piece.call &&
      (piece.kind == Kind::arguments ||
       (piece.kind == Kind::content && out.back().begin + out.back().text.size() == piece.begin))) {
    out.back().text += piece.text;
    return;
  }
  out.push_back(std::move(piece));
}

bool is_blank(std::string_view text) { return text.find_first_not_of(kBlank) == std::string_view::npos; }

}  // namespace

ToolCallParser::ToolCallParser(std::shared_ptr<const ToolSchemas> tools) : tools_(std::move(tools)) {}

void ToolCallParser::push(std::string_view text, std::vector<OutputPiece>& out) {
  buffer_ += text;
  while (step(false, out)) {
  }
  buffer_.erase(0, at_);
  offset_ += at_;
  scan_ -= std::min(scan_, at_);
  at_ = 0;
}

void ToolCallParser::finish(bool cut, std::vector<OutputPiece>& out) {
  if (cut && state_ == State::text) {
    const size_t open = buffer_.find('<', std::max(at_, scan_));
    if (open != std::string::npos && begins_call(open)) {
      send_text(open, false, out);
      return;
    }
  }
  if (cut && state_ == State::after && in_json_list_) {  // the beginning of the next call, if anything
    at_ = buffer_.size();
    return;
  }
  while (step(true, out)) {
  }
  if (cut) return;
  if (state_ == State::value) {
    take_value(before_line_break(buffer_.size()), out);
    end_value(out);
  }
  if (state_ == State::value || state_ == State::parameters) end_call(out);
}

bool ToolCallParser::in_call() const { return state_ == State::parameters || in_value(); }

bool ToolCallParser::in_value() const {
  if (state_ == State::value) {  // it is complete when only its closing marker may not be one yet
    MarkerReader reader(rest(scan_), true);
    bool closed = false;
    while (reader.marker(kParameterClose)) {
      closed = depth_ == 0;
      reader.blanks();
    }
    return !closed || !reader.at_text_end();
  }
  return state_ == State::text && begins_call(std::max(at_, scan_));
}

// Whether the beginning of a call stands there. One that is closed and no call yet is none.
bool ToolCallParser::begins_call(size_t at) const {
  return rest(at).starts_with(kCallOpen) && buffer_.find(kCallClose, at) == std::string::npos;
}

bool ToolCallParser::step(bool last, std::vector<OutputPiece>& out) {
  switch (state_) {
    case State::text:
      return text(last, out);
    case State::parameters:
      return parameters(last, out);
    case State::value:
      return value(last, out);
    case State::after:
      return after(last, out);
  }
  return false;
}

bool ToolCallParser::line_starts_at(size_t at) const {
  const size_t blank = buffer_.find_last_not_of(" \t\r", at == 0 ? 0 : at - 1);
  if (at == at_ || blank == std::string::npos || blank < at_) return !has_text_ || after_call_;
  return buffer_[blank] == '\n';
}

CallOpening ToolCallParser::opening_at(size_t at, bool last) {
  const CallOpeningContext context{*tools_, line_starts_at(at), last};
  return match_call_opening(rest(at), offset_ + at, context, json_);
}

// Content up to `end`. Blanks at its end wait for what follows: before a call they are dropped.
void ToolCallParser::send_text(size_t end, bool blanks_too, std::vector<OutputPiece>& out) {
  const std::string_view whole = std::string_view(buffer_).substr(at_, end - at_);
  const size_t known = blanks_;  // the held blanks are looked at once
  blanks_ = whole.size();
  if (is_blank(whole.substr(std::min(known, whole.size())))) {
    if (blanks_too && !after_call_ && !whole.empty()) {
      add({OutputPiece::Kind::content, std::string(whole), 0, offset_ + at_}, out);
      at_ = end;
    }
    return;
  }
  if (after_call_ && !has_text_) at_ += whole.find_first_not_of(kBlank);
  const size_t stop = blanks_too ? end : buffer_.find_last_not_of(kBlank, end - 1) + 1;
  add({OutputPiece::Kind::content, buffer_.substr(at_, stop - at_), 0, offset_ + at_}, out);
  at_ = stop;
  blanks_ = end - stop;
  has_text_ = true;
  after_call_ = false;
}

bool ToolCallParser::text(bool last, std::vector<OutputPiece>& out) {
  scan_ = std::max(scan_, at_);
  for (;;) {
    const size_t open = buffer_.find('<', scan_);
    if (open == std::string::npos) {
      scan_ = buffer_.size();
      send_text(buffer_.size(), last, out);
      return false;
    }
    CallOpening opening = opening_at(open, last);
    scan_ = open;
    if (opening.match == Match::no) {
      ++scan_;
      continue;
    }
    send_text(open, false, out);
    if (opening.match == Match::more) return false;
    at_ = open + opening.length;
    begin_call(std::move(opening), out);
    return true;
  }
}

void ToolCallParser::begin_call(CallOpening opening, std::vector<OutputPiece>& out) {
  name_ = std::move(opening.name);
  blanks_ = 0;
  given_.clear();
  out.push_back({OutputPiece::Kind::call, name_, calls_, 0});
  ++calls_;
  if (opening.json) {
    send_arguments(opening.arguments, out);
    out.push_back({OutputPiece::Kind::call_end, {}, calls_ - 1, 0});
    state_ = State::after;
    after_call_ = in_json_list_ = true;
    return;
  }
  state_ = State::parameters;
}

void ToolCallParser::end_call(std::vector<OutputPiece>& out) {
  send_arguments(given_.empty() ? "{}" : "}", out);
  out.push_back({OutputPiece::Kind::call_end, {}, calls_ - 1, 0});
  state_ = State::after;
  after_call_ = true;
}

void ToolCallParser::send_arguments(std::string_view json, std::vector<OutputPiece>& out) const {
  if (!json.empty()) add({OutputPiece::Kind::arguments, std::string(json), calls_ - 1, 0}, out);
}

bool ToolCallParser::parameters(bool last, std::vector<OutputPiece>& out) {
  MarkerReader reader(rest(at_), last);
  reader.blanks();
  const size_t here = at_ + reader.at();
  if (reader.marker(kParameterClose)) {  // doubled
    at_ += reader.at();
    return true;
  }
  if (reader.follows(kFunctionClose) || reader.follows(kCallClose) || reader.follows(kFunctionOpen) ||
      reader.follows(kCallOpen)) {
    at_ = here;
    end_call(out);
    return true;
  }
  bool next = false;
  if (reader.marker(kParameterOpen)) {
    const std::string name(
        reader.name([&](std::string_view known) { return tools_->has_parameter(name_, known); }));
    next = !name.empty();
    if (next) {
      at_ += reader.at();
      begin_value(name, out);
    }
  }
  if (next) return true;
  if (reader.missed() == Match::more || here == buffer_.size()) return false;
  // Something else between two parameters: dropped up to the next marker.
  at_ = std::min(buffer_.find('<', here + 1), buffer_.size());
  return true;
}

void ToolCallParser::begin_value(std::string_view name, std::vector<OutputPiece>& out) {
  state_ = State::value;
  scan_ = at_;
  depth_ = functions_ = 0;
  value_begins_ = value_line_ = true;
  collected_.clear();
  skip_ = given_.contains(std::string(name));
  string_ = false;
  if (skip_) return;
  std::string key(given_.empty() ? "{\"" : ", \"");
  append_json_escaped(key, name);
  key.append("\": ");
  send_arguments(key, out);
  given_.emplace(name);
  types_ = tools_->types(name_, name);
}

// The last line break of a value belongs to the closing marker.
size_t ToolCallParser::before_line_break(size_t end) const {
  if (end == at_ || buffer_[end - 1] != '\n') return end;
  --end;
  return end > at_ && buffer_[end - 1] == '\r' ? end - 1 : end;
}

// What of the value is certain while more comes: a line break may begin with the last byte.
size_t ToolCallParser::certain_until(size_t end) const {
  return end > at_ && buffer_[end - 1] == '\r' ? end - 1 : before_line_break(end);
}

bool ToolCallParser::value(bool last, std::vector<OutputPiece>& out) {
  if (value_begins_) {
    const std::string_view head = rest(at_);
    if (!last && (head.empty() || head == "\r")) return false;
    at_ += head.starts_with("\r\n") ? 2 : head.starts_with('\n') ? 1 : 0;
    scan_ = at_;
    value_begins_ = false;
  }
  for (;;) {
    const size_t open = buffer_.find('<', scan_);
    if (open == std::string::npos) {
      scan_ = buffer_.size();
      take_value(certain_until(buffer_.size()), out);
      return false;
    }
    scan_ = open;
    const Match match = closing(open, last);
    if (match == Match::no) {
      ++scan_;
      continue;
    }
    take_value(before_line_break(open), out);
    if (match == Match::more) return false;
    at_ = open;
    end_value(out);
    state_ = State::parameters;
    return true;
  }
}

// Whether the marker at `at` ends the value. Values are any text, also text about tool calls: a marker counts
// only where what follows it can follow there.
Match ToolCallParser::closing(size_t at, bool last) {
  const bool line = at == at_ ? value_line_ : buffer_[at - 1] == '\n';
  MarkerReader reader(rest(at), last);
  if (reader.marker(kParameterClose)) {
    reader.blanks();
    if (depth_ == 0) {
      while (reader.marker(kParameterClose)) reader.blanks();
      for (const std::string_view next :
           {kParameterOpen, kFunctionClose, kCallClose, kCallOpen, kFunctionOpen})
        if (reader.follows(next)) return Match::yes;
      return reader.at_end() ? Match::yes : reader.missed();
    }
    // Inside an example: it ends the example's parameter, unless the whole call ends here.
    if (reader.marker(kFunctionClose)) {
      reader.blanks();
      if (reader.marker(kCallClose)) {
        reader.blanks();
        if (reader.follows(kCallOpen) || reader.at_end()) return Match::yes;
      }
    }
    if (reader.missed() == Match::no) --depth_;
    return reader.missed();
  }
  return line ? closing_at_line_start(reader) : reader.missed();
}

Match ToolCallParser::closing_at_line_start(MarkerReader& reader) {
  if (reader.marker(kFunctionClose)) {
    reader.blanks();
    if (functions_ > 0) {  // of an example, unless everything ends here
      if (reader.marker(kCallClose)) {
        reader.blanks();
        if (reader.at_end()) return Match::yes;
      }
      if (reader.missed() == Match::no) --functions_;
      return reader.missed();
    }
    if (reader.follows(kCallClose) || reader.follows(kCallOpen) || reader.at_end()) return Match::yes;
  } else if (reader.marker(kFunctionOpen)) {
    if (reader.name().empty()) return reader.missed();
    if (reader.follows("\n")) ++functions_;
  } else if (reader.marker(kCallClose)) {
    reader.blanks();
    if (reader.follows(kCallOpen) || reader.at_end()) return Match::yes;
  } else if (reader.marker(kParameterOpen)) {
    const std::string name(reader.name());
    if (name.empty()) return reader.missed();
    if (depth_ == 0 && tools_->has_parameter(name_, name) && !given_.contains(name)) return Match::yes;
    if (reader.follows("\n")) ++depth_;
  }
  return reader.missed();
}

void ToolCallParser::take_value(size_t end, std::vector<OutputPiece>& out) {
  if (end <= at_) return;
  const std::string_view text = std::string_view(buffer_).substr(at_, end - at_);
  at_ = end;
  value_line_ = false;  // a line break at the end would not have been taken
  if (skip_) return;
  std::string json;
  if (string_) {
    append_json_escaped(json, text);
  } else {
    collected_ += text;
    if (may_not_be_string(collected_, types_)) return;
    string_ = true;
    json.push_back('"');
    append_json_escaped(json, collected_);
    collected_.clear();
  }
  send_arguments(json, out);
}

void ToolCallParser::end_value(std::vector<OutputPiece>& out) {
  if (skip_) return;
  send_arguments(string_ ? "\"" : argument_json(collected_, types_), out);
}

bool ToolCallParser::after(bool last, std::vector<OutputPiece>& out) {
  MarkerReader reader(rest(at_), last);
  reader.blanks();
  if (reader.marker(kCallClose) || reader.marker(kFunctionClose) || reader.marker(kParameterClose)) {
    in_json_list_ = false;
    at_ += reader.at();
    return true;
  }
  Match next = reader.missed();
  if (in_json_list_ && next == Match::no) next = after_json(last, out);
  if (next == Match::more) return false;
  if (next == Match::yes) return true;
  in_json_list_ = false;
  state_ = State::text;
  scan_ = at_;
  return true;
}

// Behind a call written as JSON another one may follow, or braces too many before the end of all.
Match ToolCallParser::after_json(bool last, std::vector<OutputPiece>& out) {
  MarkerReader reader(rest(at_), last);
  reader.blanks();
  while (reader.marker("}") || reader.marker("]") || reader.marker(",")) reader.blanks();
  if (reader.follows(kCallClose)) {
    at_ += reader.at();
    return Match::yes;
  }
  if (!reader.follows("{")) return reader.missed();
  const size_t open = at_ + reader.at();
  CallOpening opening = match_json_call(rest(open), offset_ + open, last, json_);
  if (opening.match != Match::yes) return opening.match;
  at_ = open + opening.length;
  begin_call(std::move(opening), out);
  return Match::yes;
}

}  // namespace lily
