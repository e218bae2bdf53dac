#include "text/tool_call_syntax.h"

#include <optional>
#include <utility>

#include "text/json.h"

namespace lily {

namespace {

namespace json = boost::json;

constexpr size_t kMostName = 256;

std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

const json::value* first_of(const json::object& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const json::value* value = object.if_contains(key)) return value;
  return nullptr;
}

// The object of arguments in a call that is written as JSON; text is read once more, as some models quote it.
std::optional<std::string> arguments_text(const json::object& call) {
  const json::value* arguments = first_of(call, {"arguments", "parameters", "args", "input"});
  if (arguments == nullptr || arguments->is_null()) return "{}";
  if (big_integer(*arguments)) return std::nullopt;
  if (arguments->is_object()) return to_python_json(*arguments);
  if (!arguments->is_string()) return std::nullopt;
  const Result<json::value> inner = parse_json(view(arguments->get_string()));
  if (!inner || !inner->is_object() || big_integer(*inner)) return std::nullopt;
  return to_python_json(*inner);
}

bool read_json_call(std::string_view text, CallOpening& opening) {
  const Result<json::value> value = parse_json(text);
  if (!value || !value->is_object()) return false;
  const json::object* call = &value->get_object();
  if (const json::value* inner = call->if_contains("function"); inner != nullptr && inner->is_object())
    call = &inner->get_object();
  const json::value* name = first_of(*call, {"name", "function", "tool"});
  if (name == nullptr || !name->is_string() || name->get_string().empty()) return false;
  std::optional<std::string> arguments = arguments_text(*call);
  if (!arguments) return false;
  opening.name = view(name->get_string());
  opening.arguments = *std::move(arguments);
  return true;
}

// The object that `text` begins with, when only closing braces are missing before </tool_call>.
bool read_unclosed_json_call(std::string_view text, CallOpening& opening) {
  constexpr int kMostMissing = 3;
  const size_t close = text.find(kCallClose);
  if (close == std::string_view::npos) return false;
  std::string object(text.substr(0, close));
  for (int i = 0; i < kMostMissing; ++i) {
    object += '}';
    if (!read_json_call(object, opening)) continue;
    opening.length = close;
    return true;
  }
  return false;
}

}  // namespace

void MarkerReader::blanks() {
  const size_t next = text_.find_first_not_of(" \t\r\n", at_);
  at_ = next == std::string_view::npos ? text_.size() : next;
}

bool MarkerReader::follows(std::string_view marker) {
  if (rest().starts_with(marker)) return true;
  if (!last_ && marker.starts_with(rest())) more_ = true;
  return false;
}

bool MarkerReader::marker(std::string_view marker) {
  if (!follows(marker)) return false;
  at_ += marker.size();
  return true;
}

std::string_view MarkerReader::name() {
  return name([](std::string_view) { return false; });
}

std::string_view MarkerReader::name(FunctionRef<bool(std::string_view)> known) {
  const std::string_view line = rest().substr(0, kMostName);
  const size_t end = line.find_first_of(">\n<");
  if (end == std::string_view::npos) {
    if (line.size() < kMostName && !last_) more_ = true;
    return {};
  }
  constexpr std::string_view kAround = " \t\r\"'";
  std::string_view name = line.substr(0, end);
  const size_t begin = name.find_first_not_of(kAround);
  if (begin == std::string_view::npos) return {};
  name = name.substr(begin, name.find_last_not_of(kAround) - begin + 1);
  const bool closed = line[end] == '>';
  if (!closed && (line[end] != '\n' || !known(name))) return {};
  at_ += end + (closed ? 1 : 0);
  return name;
}

bool MarkerReader::at_end() {
  if (!at_text_end()) return false;
  if (!last_) more_ = true;
  return end_;
}

size_t JsonScan::end(std::string_view text, size_t begin) {
  if (begin != begin_) {
    const size_t spent = spent_ + at_;
    *this = JsonScan{};
    begin_ = begin;
    spent_ = spent;
  }
  for (; at_ < text.size(); ++at_) {
    const char c = text[at_];
    if (escape_) {
      escape_ = false;
    } else if (string_) {
      escape_ = c == '\\';
      string_ = c != '"';
    } else if (c == '"') {
      string_ = true;
    } else if (c == '{') {
      ++depth_;
    } else if (c == '}' && --depth_ == 0) {
      return at_ + 1;
    }
  }
  return 0;
}

namespace {

// <function=NAME> {...}: the object, which begins at `json_at`, is the arguments.
CallOpening match_json_arguments(std::string_view text, size_t begin, size_t json_at, bool last,
                                 JsonScan& scan, CallOpening opening) {
  if (scan.exhausted()) return opening;
  const size_t length = scan.end(text.substr(json_at), begin + json_at);
  if (length == 0) {
    opening.match = last ? Match::no : Match::more;
    return opening;
  }
  const Result<json::value> value = parse_json(text.substr(json_at, length));
  if (!value) return opening;
  opening.arguments = to_python_json(*value);
  opening.json = true;
  opening.length = json_at + length;
  opening.match = Match::yes;
  return opening;
}

}  // namespace

CallOpening match_json_call(std::string_view text, size_t begin, bool last, JsonScan& scan) {
  CallOpening opening;
  if (scan.exhausted()) return opening;
  opening.length = scan.end(text, begin);
  if (opening.length == 0 && !last) {
    opening.match = Match::more;
    return opening;
  }
  const std::string_view object = text.substr(0, opening.length == 0 ? text.size() : opening.length);
  if ((opening.length > 0 && read_json_call(object, opening)) || read_unclosed_json_call(object, opening)) {
    opening.json = true;
    opening.match = Match::yes;
  }
  return opening;
}

CallOpening match_call_opening(std::string_view text, size_t begin, const CallOpeningContext& context,
                               JsonScan& scan) {
  CallOpening opening;
  MarkerReader reader(text, context.last);
  bool envelope = false;
  while (reader.marker(kCallOpen)) {
    envelope = true;
    reader.blanks();
  }
  const auto missed = [&] {
    opening.match = reader.missed();
    return opening;
  };
  const bool list = envelope && reader.marker("[");
  if (list) reader.blanks();
  if (envelope && reader.follows("{")) {
    const size_t json_at = reader.at();
    opening = match_json_call(text.substr(json_at), begin + json_at, context.last, scan);
    opening.length += json_at;
    return opening;
  }
  if (list || !reader.marker(kFunctionOpen)) return missed();
  if (!envelope && !context.line_start) return opening;
  const auto is_declared = [&](std::string_view name) { return context.tools.declares(name); };
  opening.name = envelope ? reader.name(is_declared) : reader.name();
  if (opening.name.empty()) return missed();
  const bool declared = is_declared(opening.name);
  if (!envelope && !declared) return opening;
  opening.length = reader.at();
  reader.blanks();
  if (reader.follows(kParameterOpen) || reader.follows(kFunctionClose) ||
      (envelope && reader.follows(kCallClose)) || (reader.at_end() && declared)) {
    opening.match = Match::yes;
    return opening;
  }
  if (!declared || !reader.rest().starts_with('{')) return missed();
  return match_json_arguments(text, begin, reader.at(), context.last, scan, std::move(opening));
}

}  // namespace lily
