#include "server/text_tools.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <limits>

#include "server/jobs.h"
#include "server/json_fields.h"
#include "server/openai.h"
#include "text/detokenizer.h"

namespace lily {
namespace {

namespace json = boost::json;

json::array ids_json(const std::vector<int32_t>& ids) {
  json::array out;
  out.reserve(ids.size());
  for (const int32_t id : ids) {
    out.emplace_back(id);
  }
  return out;
}

// {"id", "piece"}: the piece is text where the token's bytes are, else the list of its bytes.
json::array pieces_json(const std::vector<int32_t>& ids, const Tokenizer& tokenizer) {
  json::array out;
  for (const int32_t id : ids) {
    const std::string_view bytes = tokenizer.bytes_of(id);
    Utf8Stream stream;
    std::string text = stream.push(bytes);
    text += stream.flush();
    json::object piece;
    piece["id"] = id;
    if (text == bytes) {
      piece["piece"] = text;
    } else {
      json::array values;
      for (const char byte : bytes) {
        values.emplace_back(static_cast<unsigned>(static_cast<unsigned char>(byte)));
      }
      piece["piece"] = std::move(values);
    }
    out.emplace_back(std::move(piece));
  }
  return out;
}

}  // namespace

ApiResult<std::string> tokenize_json(const json::value& body, const ServedModel& model) {
  const Tokenizer& tokenizer = *model.tokenizer;
  LILY_TRY(const json::object* given, body_object(body));
  Faults faults;
  const Fields fields(*given, "", faults);
  std::string content = fields.required_string("content");
  const bool special = fields.boolean("parse_special").value_or(true);
  const bool pieces = fields.boolean("with_pieces").value_or(false);
  LILY_TRY_VOID(faults.result());
  RenderedPrompt prompt;
  prompt.text = std::move(content);
  if (!special) {
    prompt.literal.push_back({0, prompt.text.size()});
  }
  const std::vector<int32_t> ids = tokenizer.encode(prompt);
  json::object out;
  out["tokens"] = pieces ? pieces_json(ids, tokenizer) : ids_json(ids);
  return json::serialize(out);
}

ApiResult<std::string> detokenize_json(const json::value& body, const ServedModel& model) {
  const Tokenizer& tokenizer = *model.tokenizer;
  LILY_TRY(const json::object* given, body_object(body));
  Faults faults;
  const Fields fields(*given, "", faults);
  const json::array* tokens = fields.array("tokens");
  if (tokens == nullptr) {
    fields.fault("tokens", "is missing; expected an array of token ids.");
  }
  std::vector<int32_t> ids;
  for (size_t i = 0; tokens != nullptr && i < tokens->size(); ++i) {
    const json::value& id = (*tokens)[i];
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= tokenizer.size()) {
      faults.about(at("tokens", i), "must be a token id below {}.", tokenizer.size());
      break;
    }
    ids.push_back(static_cast<int32_t>(id.get_int64()));
  }
  LILY_TRY_VOID(faults.result());
  json::object out;
  out["content"] = tokenizer.decode(ids, false);
  return json::serialize(out);
}

ApiResult<std::string> apply_template_json(const json::value& body, const ServedModel& model) {
  const Tokenizer& tokenizer = *model.tokenizer;
  LILY_TRY(const ChatRequest request, parse_chat_request(body));
  Faults faults;
  const Fields fields(body.get_object(), "", faults);
  const bool tokenize = fields.boolean("tokenize").value_or(false);
  LILY_TRY_VOID(faults.result());
  PromptRules rules;
  rules.enable_thinking = model.enable_thinking;
  rules.preserve_thinking = model.preserve_thinking;
  rules.parse_special = model.parse_special;
  LILY_TRY(const RenderedPrompt prompt, render_prompt(request, rules));
  json::object out;
  out["prompt"] = prompt.text;
  if (tokenize) {
    out["tokens"] = ids_json(tokenizer.encode(prompt));
  }
  return json::serialize(out);
}

}  // namespace lily
