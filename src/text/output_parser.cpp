#include "text/output_parser.h"

#include <algorithm>
#include <utility>

namespace lily {

namespace {

constexpr std::string_view kBlank = " \t\r\n";

bool starts_line(std::string_view text, size_t at, bool line_start) {
  const size_t before = at == 0 ? std::string_view::npos : text.find_last_not_of(" \t\r", at - 1);
  return before == std::string_view::npos ? line_start : text[before] == '\n';
}

// Only whole calls of declared tools, and blanks.
bool is_only_calls(const std::vector<OutputPiece>& pieces, const ToolSchemas& tools) {
  size_t begun = 0, ended = 0;
  for (const OutputPiece& piece : pieces) {
    begun += piece.kind == OutputPiece::Kind::call ? 1 : 0;
    ended += piece.kind == OutputPiece::Kind::call_end ? 1 : 0;
    if (piece.kind == OutputPiece::Kind::content) return false;
    if (piece.kind == OutputPiece::Kind::call && !tools.declares(piece.text)) return false;
  }
  return begun > 0 && begun == ended;
}

}  // namespace

OutputParser::OutputParser(Start start, std::shared_ptr<const ToolSchemas> tools)
    : splitter_(start.in_think, start.continues_text), tools_(std::move(tools)) {
  if (tools_) calls_.emplace(tools_);
}

std::vector<OutputPiece> OutputParser::push(std::string_view text) {
  std::vector<OutputPiece> out;
  take(splitter_.push(text), out);
  return out;
}

std::vector<OutputPiece> OutputParser::finish(bool cut) {
  std::vector<OutputPiece> out;
  take(splitter_.flush(), out);
  if (!has_content_ && !held_.empty() && promote(out)) return out;
  send_reasoning(held_.size(), out);
  if (calls_) {
    std::vector<OutputPiece> pieces;
    calls_->finish(cut, pieces);
    append(std::move(pieces), out);
  }
  return out;
}

void OutputParser::append(std::vector<OutputPiece> pieces, std::vector<OutputPiece>& out) const {
  for (OutputPiece& piece : pieces) {
    if (piece.kind == OutputPiece::Kind::content) piece.begin += content_begin_;
    out.push_back(std::move(piece));
  }
}

void OutputParser::take(const ReasoningSplitter::Delta& delta, std::vector<OutputPiece>& out) {
  if (!delta.reasoning.empty()) take_reasoning(delta, out);
  if (delta.content.empty()) return;
  if (!has_content_) content_begin_ = delta.content_begin;
  has_content_ = true;
  send_reasoning(held_.size(), out);
  if (!calls_) {
    out.push_back({OutputPiece::Kind::content, delta.content, 0, delta.content_begin});
    return;
  }
  std::vector<OutputPiece> pieces;
  calls_->push(delta.content, pieces);
  append(std::move(pieces), out);
}

void OutputParser::send_reasoning(size_t bytes, std::vector<OutputPiece>& out) {
  if (bytes == 0) return;
  const std::string_view text = std::string_view(held_).substr(0, bytes);
  line_start_ = text.back() == '\n';
  if (!out.empty() && out.back().kind == OutputPiece::Kind::reasoning)
    out.back().text += text;
  else
    out.push_back({OutputPiece::Kind::reasoning, std::string(text), 0, held_begin_});
  held_.erase(0, bytes);
  held_begin_ += bytes;
  scan_ -= std::min(scan_, bytes);
}

void OutputParser::take_reasoning(const ReasoningSplitter::Delta& delta, std::vector<OutputPiece>& out) {
  if (held_.empty()) held_begin_ = delta.reasoning_begin;
  held_ += delta.reasoning;
  if (!tools_) return send_reasoning(held_.size(), out);
  while (!may_call_) {
    const size_t open = held_.find('<', scan_);
    if (open == std::string::npos) {
      scan_ = held_.size();
      break;
    }
    scan_ = open;
    const CallOpeningContext context{*tools_, starts_line(held_, open, line_start_), false};
    const CallOpening opening =
        match_call_opening(std::string_view(held_).substr(open), held_begin_ + open, context, json_);
    if (opening.match == Match::more) break;
    may_call_ = opening.match == Match::yes && tools_->declares(opening.name);
    if (!may_call_) ++scan_;
  }
  if (!may_call_ && scan_ == held_.size()) return send_reasoning(scan_, out);
  const size_t text = scan_ == 0 ? std::string::npos : held_.find_last_not_of(kBlank, scan_ - 1);
  if (text != std::string::npos) send_reasoning(text + 1, out);
}

bool OutputParser::reasoning_ends_with_calls() const {
  return tools_ && !has_content_ && !held_.empty() && calls_at_end().has_value();
}

std::optional<OutputParser::CallsAtEnd> OutputParser::calls_at_end() const {
  constexpr int kMostTries = 8;
  size_t from = scan_;
  for (int tries = 0; tries < kMostTries; ++tries) {
    const size_t open = held_.find('<', from);
    if (open == std::string::npos) return std::nullopt;
    from = open + 1;
    const std::string_view text = std::string_view(held_).substr(open);
    if (!text.starts_with(kCallOpen) && !text.starts_with(kFunctionOpen)) {
      --tries;
      continue;
    }
    if (!starts_line(held_, open, line_start_) && !text.starts_with(kCallOpen)) continue;
    ToolCallParser parser(tools_);
    std::vector<OutputPiece> pieces;
    parser.push(text, pieces);
    parser.finish(/*cut=*/true, pieces);
    if (is_only_calls(pieces, *tools_)) return CallsAtEnd{open, std::move(pieces)};
  }
  return std::nullopt;
}

// Sends the calls with which the reasoning ends, and the rest of it as reasoning.
bool OutputParser::promote(std::vector<OutputPiece>& out) {
  std::optional<CallsAtEnd> calls = calls_at_end();
  if (!calls) return false;
  if (calls->begin > 0) send_reasoning(held_.find_last_not_of(kBlank, calls->begin - 1) + 1, out);
  append(std::move(calls->pieces), out);
  held_.clear();
  return true;
}

}  // namespace lily
