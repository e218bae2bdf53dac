#include "server/text_tools.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <exception>
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

tl::unexpected<ApiError> not_an_object(const json::value& body) {
  return tl::unexpected<ApiError>(
      bad_field("", fmt::format("The body of the request must be a JSON object, not {}.", json_kind(body))));
}

}  // namespace

ApiResult<std::string> tokenize_json(const json::value& body, const ServedModel& model) {
  const Tokenizer& tokenizer = *model.tokenizer;
  if (!body.is_object()) {
    return not_an_object(body);
  }
  Faults faults;
  const Fields fields(body.get_object(), "", faults);
  std::optional<std::string> content = fields.string("content");
  const bool special = fields.boolean("parse_special").value_or(true);
  const bool pieces = fields.boolean("with_pieces").value_or(false);
  if (!content) {
    faults.add("content", "'content' is missing; expected a string.");
  }
  if (faults.any()) {
    return tl::unexpected<ApiError>(faults.first());
  }
  RenderedPrompt prompt;
  prompt.text = std::move(*content);
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
  if (!body.is_object()) {
    return not_an_object(body);
  }
  Faults faults;
  const Fields fields(body.get_object(), "", faults);
  const json::array* tokens = fields.array("tokens");
  if (tokens == nullptr) {
    faults.add("tokens", "'tokens' is missing; expected an array of token ids.");
    return tl::unexpected<ApiError>(faults.first());
  }
  std::vector<int32_t> ids;
  ids.reserve(tokens->size());
  for (size_t i = 0; i < tokens->size(); ++i) {
    const json::value& id = (*tokens)[i];
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= tokenizer.size()) {
      return tl::unexpected<ApiError>(
          bad_field(fmt::format("tokens[{}]", i),
                    fmt::format("'tokens[{}]' must be a token id below {}.", i, tokenizer.size())));
    }
    ids.push_back(static_cast<int32_t>(id.get_int64()));
  }
  json::object out;
  out["content"] = tokenizer.decode(ids, false);
  return json::serialize(out);
}

ApiResult<std::string> apply_template_json(const json::value& body, const ServedModel& model) {
  const Tokenizer& tokenizer = *model.tokenizer;
  const ApiResult<ChatRequest> request = parse_chat_request(body);
  if (!request) {
    return tl::unexpected<ApiError>(request.error());
  }
  Faults faults;
  const Fields fields(body.get_object(), "", faults);
  const bool tokenize = fields.boolean("tokenize").value_or(false);
  if (faults.any()) {
    return tl::unexpected<ApiError>(faults.first());
  }
  PromptRules rules;
  rules.enable_thinking = model.enable_thinking;
  rules.preserve_thinking = model.preserve_thinking;
  rules.parse_special = model.parse_special;
  const ApiResult<RenderedPrompt> prompt = render_prompt(*request, rules);
  if (!prompt) {
    return tl::unexpected<ApiError>(prompt.error());
  }
  json::object out;
  out["prompt"] = prompt->text;
  if (tokenize) {
    out["tokens"] = ids_json(tokenizer.encode(*prompt));
  }
  return json::serialize(out);
}

Connection::Awaitable<void> serve_text_tool(Connection& connection, Route route) {
  struct Work {
    std::string body;
    std::shared_ptr<const ServedModel> model;
    HttpResponse response;
  };
  const auto work = std::make_shared<Work>();
  work->model = connection.core().model();
  if (!work->model) {
    const HttpResponse response = error_response(loading());
    co_await connection.respond(response);
    co_return;
  }
  work->body = connection.take_body();
  const auto tool = route == Route::tokenize     ? tokenize_json
                    : route == Route::detokenize ? detokenize_json
                                                 : apply_template_json;
  std::function<void()> run = [work, tool] {
    try {
      const ApiResult<json::value> body = parse_body(work->body);
      const ApiResult<std::string> answer =
          body ? tool(*body, *work->model) : tl::unexpected<ApiError>(body.error());
      work->response = answer ? json_response(*answer) : error_response(answer.error());
    } catch (const std::exception& fault) {
      work->response = error_response(from_error(Error{ErrorKind::internal, fault.what(), {}}));
    }
  };
  const bool done = co_await connection.on_worker(std::move(run));
  if (done) {
    co_await connection.respond(work->response);
  }
}

}  // namespace lily
