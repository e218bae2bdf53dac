#include "text/recall.h"

#include <algorithm>
#include <optional>

#include "text/json.h"
#include "text/output_parser.h"
#include "text/unicode.h"

namespace lily {
namespace {

namespace json = boost::json;

std::optional<double> number_of(const json::value& value) {
  if (value.is_double()) return value.get_double();
  if (value.is_int64()) return static_cast<double>(value.get_int64());
  if (value.is_uint64()) return static_cast<double>(value.get_uint64());
  return std::nullopt;
}

bool same_json(const json::value& a, const json::value& b);

bool same_object(const json::object& a, const json::object& b) {
  if (a.size() != b.size()) return false;
  return std::ranges::all_of(a, [&](const auto& entry) {
    const json::value* other = b.if_contains(entry.key());
    return other != nullptr && same_json(entry.value(), *other);
  });
}

// Numbers are equal by value: clients read 1.0 and write 1. Of integers every digit counts.
bool same_json(const json::value& a, const json::value& b) {
  if (a.is_double() != b.is_double()) {
    const auto left = number_of(a), right = number_of(b);
    return left && right && *left == *right;
  }
  if (a.is_object() && b.is_object()) return same_object(a.get_object(), b.get_object());
  if (a.is_array() && b.is_array()) {
    return std::ranges::equal(a.get_array(), b.get_array(),
                              [](const auto& x, const auto& y) { return same_json(x, y); });
  }
  return a == b;
}

bool same_call(const ToolCall& call, const ParsedCall& said) {
  if (!said.complete || call.name != said.name) return false;
  const Result<json::value> arguments = parse_json(said.arguments);
  return arguments && arguments->is_object() && same_object(call.arguments, arguments->get_object());
}

// Reads `ids` as the answer that they are; nothing where they hold control tokens or end inside a part.
std::optional<ParsedOutput> read_answer(std::span<const int32_t> ids, const RecallSources& sources) {
  for (const int32_t id : ids) {
    const AddedToken* added = sources.tokenizer.added(id);
    if (added != nullptr && added->special) return std::nullopt;
  }
  OutputParser parser({}, sources.tools);
  ParsedOutput answer;
  for (const OutputPiece& piece : parser.push(sources.tokenizer.decode(ids, true))) answer.add(piece);
  if (parser.in_think() || parser.in_call()) return std::nullopt;
  for (const OutputPiece& piece : parser.finish(/*cut=*/false)) answer.add(piece);
  return answer;
}

bool same_reasoning(const AnswerParts& parts, const ParsedOutput& answer) {
  return parts.reasoning == python_strip(answer.reasoning);
}

std::optional<std::string> text_of(const Message& message) {
  std::string text;
  for (const ContentPart& part : message.content) {
    if (part.kind != ContentPart::Kind::text) return std::nullopt;
    text += part.text;
  }
  return text;
}

// The remembered answer that says what `message` says, or none. One with the same reasoning goes first. What
// begins otherwise than the rendered answer is none: the template writes an answer that is over without its
// think block, and no answer was ever given so.
std::optional<std::vector<int32_t>> remembered(std::span<const int32_t> prompt,
                                               const PromptTokens::Answer& place, const Message& message,
                                               int32_t end, const RecallSources& sources) {
  const std::optional<std::string> text = text_of(message);
  if (!text) return std::nullopt;
  const AnswerParts parts = answer_parts(message, python_strip(*text));
  std::optional<std::vector<int32_t>> other;
  for (std::vector<int32_t>& ids : sources.memory.continuations(prompt.first(place.begin), end)) {
    if (ids.empty() || ids.front() != prompt[place.begin]) continue;
    const std::optional<ParsedOutput> answer = read_answer(ids, sources);
    if (!answer || !says_the_same(message, *answer)) continue;
    if (same_reasoning(parts, *answer)) return std::move(ids);
    if (!other) other = std::move(ids);
  }
  return other;
}

void replace(PromptTokens& prompt, size_t which, std::span<const int32_t> ids) {
  const PromptTokens::Answer place = prompt.answers[which];
  const auto begin = prompt.ids.begin() + place.begin;
  const auto at = prompt.ids.erase(begin, prompt.ids.begin() + place.end);
  prompt.ids.insert(at, ids.begin(), ids.end());
  const auto moved = [&](uint32_t& position) {
    if (position >= place.end)
      position = position - (place.end - place.begin) + static_cast<uint32_t>(ids.size());
  };
  for (uint32_t& mark : prompt.marks) moved(mark);
  for (PromptTokens::Turn& turn : prompt.turns) moved(turn.begin);
  for (size_t i = which; i < prompt.answers.size(); ++i) {
    if (i > which) moved(prompt.answers[i].begin);
    moved(prompt.answers[i].end);
  }
  prompt.at_least = prompt.ids.size();
}

}  // namespace

bool says_the_same(const Message& message, const ParsedOutput& answer) {
  const std::optional<std::string> text = text_of(message);
  if (!text) return false;
  const AnswerParts parts = answer_parts(message, python_strip(*text));
  if (!parts.reasoning.empty() && !same_reasoning(parts, answer)) return false;
  return python_strip(parts.text) == python_strip(answer.content) &&
         std::ranges::equal(message.tool_calls, answer.calls, same_call);
}

size_t recall_answers(PromptTokens& prompt, const std::vector<Message>& messages,
                      const RecallSources& sources) {
  const std::optional<int32_t> end = sources.tokenizer.id_of("<|im_end|>");
  if (!prompt.whole || !end) return 0;
  size_t put_back = 0;
  for (size_t next = 0; next < prompt.answers.size();) {
    const size_t known = sources.memory.known(prompt.ids);
    while (next < prompt.answers.size() && prompt.answers[next].end < known) ++next;
    if (next == prompt.answers.size() || known < prompt.answers[next].begin) break;
    const PromptTokens::Answer& place = prompt.answers[next];
    const std::span<const int32_t> ids = prompt.ids;
    const auto found = remembered(ids, place, messages[place.message], *end, sources);
    if (!found || std::ranges::equal(*found, ids.subspan(place.begin, place.end - place.begin))) break;
    replace(prompt, next++, *found);
    ++put_back;
  }
  return put_back;
}

}  // namespace lily
