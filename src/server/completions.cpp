#include "server/completions.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include "server/jobs.h"
#include "server/sse.h"
#include "server/translation.h"

namespace lily {
namespace {

namespace json = boost::json;

constexpr uint32_t kDefaultTokens = 16;  // OpenAI's

struct CompletionRequest {
  std::string text;  // of the prompt, when it is text
  std::vector<int32_t> ids;
  bool is_text = true;
  bool echo = false;
  ChatRequest fields;  // what a completion has in common with a chat
};

void parse_ids(const json::array& array, const std::string& path, CompletionRequest& request,
               Faults& faults) {
  request.is_text = false;
  request.ids.reserve(array.size());
  for (size_t i = 0; i < array.size(); ++i) {
    if (!array[i].is_int64() || array[i].get_int64() < 0 || array[i].get_int64() > INT32_MAX) {
      faults.about(at(path, i), "must be a token id.");
      return;
    }
    request.ids.push_back(static_cast<int32_t>(array[i].get_int64()));
  }
}

// A string, token ids, or an array of one of these.
void parse_prompt(const json::value* prompt, const std::string& path, CompletionRequest& request,
                  Faults& faults) {
  if (prompt == nullptr) {
    faults.about(path, "is missing; expected a string or an array of token ids.");
  } else if (prompt->is_string()) {
    request.text.assign(prompt->get_string().data(), prompt->get_string().size());
  } else if (!prompt->is_array()) {
    faults.about(path, "must be a string or an array of token ids, not {}.", json_kind(*prompt));
  } else if (const json::array& array = prompt->get_array(); array.empty()) {
    faults.about(path, "is empty.");
  } else if (array[0].is_number()) {
    parse_ids(array, path, request, faults);
  } else if (array.size() > 1 || path != "prompt") {
    faults.about(path, "has {} prompts; this server takes one.", array.size());
  } else {
    parse_prompt(&array[0], "prompt[0]", request, faults);
  }
}

// `logprobs` is a number here, and a truth in a chat.
void parse_logprobs(const Fields& fields, json::object& chat) {
  const std::optional<int64_t> logprobs = fields.integer("logprobs", {0, Limits::kMaxTopLogprobs});
  if (logprobs) {
    chat["logprobs"] = true;
    chat["top_logprobs"] = *logprobs;
  }
}

ApiResult<CompletionRequest> parse_completion(const json::value& body) {
  LILY_TRY(const json::object* given, body_object(body));
  Faults faults;
  const Fields fields(*given, "", faults);
  CompletionRequest request;
  parse_prompt(fields.find("prompt"), "prompt", request, faults);
  request.echo = fields.boolean("echo").value_or(false);
  json::object chat;
  copy_shared_fields(*given, chat);
  copy_fields(*given, {"max_tokens", "stop", "stream_options", "n", "response_format"}, chat);
  parse_logprobs(fields, chat);
  const std::optional<int64_t> best_of = fields.integer("best_of", {0, 1e9});
  if (best_of && *best_of > 1) {
    faults.about("best_of", "must be 1: one answer to a request, not {}.", *best_of);
  }
  if (!fields.string("suffix").value_or("").empty()) {
    faults.about("suffix", "is not supported: text is only continued.");
  }
  if (request.echo && chat.contains("logprobs")) {
    faults.about("echo", "together with 'logprobs' is not supported: the prompt is not scored.");
  }
  LILY_TRY_VOID(faults.result());
  json::array messages;
  messages.emplace_back(chat_message("user", json::string()));  // a chat needs one; it is not looked at
  chat["messages"] = std::move(messages);
  LILY_TRY(request.fields, parse_chat_request(json::value(std::move(chat))));
  return request;
}

ApiResult<GenerationRequest> make_completion(const CompletionRequest& request, const ServedModel& model) {
  const Plan& plan = model.engine->plan();
  const ChatRequest& fields = request.fields;
  GenerationRequest out;
  Tokenizer::Bounded tokens{request.ids, request.ids.size(), true};
  if (request.is_text) {
    RenderedPrompt prompt;
    prompt.text = request.text;
    tokens = model.tokenizer->encode(prompt, plan.context);
  }
  out.prompt = std::move(tokens.ids);
  if (tokens.at_least == 0) {
    return fail(bad_field("prompt", "'prompt' is empty: there is nothing to go on from."));
  }
  if (tokens.at_least >= plan.context) {
    ApiError error = context_exceeded(tokens.at_least, plan.context, tokens.whole);
    error.param = "prompt";
    return fail(std::move(error));
  }
  for (size_t i = 0; i < out.prompt.size(); ++i) {
    if (static_cast<uint32_t>(out.prompt[i]) >= plan.shape.vocab) {
      return fail(bad_field(at("prompt", i), fmt::format("'prompt[{}]' must be a token id below {}, not {}.",
                                                         i, plan.shape.vocab, out.prompt[i])));
    }
  }
  LILY_TRY_VOID(check_bias(fields.logit_bias, plan.shape.vocab));
  uint32_t room = plan.context - static_cast<uint32_t>(out.prompt.size());
  if (model.max_answer > 0) {
    room = std::min(room, model.max_answer);
  }
  out.continues_text = true;  // nothing in it is reasoning
  out.max_tokens = std::min(fields.max_tokens.value_or(kDefaultTokens), room);
  out.max_seconds = model.max_seconds;
  out.sampling = resolve_sampling(fields, model.generation);
  out.logit_bias = fields.logit_bias;
  out.stop_ids = model.generation.stop_ids;
  out.stop = fields.stop;
  out.logprobs = fields.logprobs;
  return out;
}

class CompletionsDoor final : public Door {
 public:
  void begin(const std::string& id, int64_t created) override {
    id_ = "cmpl-" + id;
    created_ = created;
  }
  const std::string& id() const override { return id_; }

  ApiResult<PreparedRequest> prepare(const json::value& body, const ServedModel& model) override {
    LILY_TRY(const CompletionRequest request, parse_completion(body));
    LILY_TRY(GenerationRequest made, make_completion(request, model));
    const ChatRequest& fields = request.fields;
    model_ = fields.model.empty() ? model.name : fields.model;
    usage_ = fields.include_usage;
    logprobs_ = fields.logprobs.has_value();
    if (request.echo) {
      echo_ = request.is_text ? request.text : model.tokenizer->decode(made.prompt, false);
    }
    return PreparedRequest{std::move(made), fields.stream};
  }

  std::string whole(const Answer& answer, const Finished& finished) override {
    json::object out = head();
    out["choices"] =
        choices(echo_ + answer.content, answer.content_logprobs, json::value(word(finished.reason)));
    out["usage"] = usage_json(finished.usage);
    return json::serialize(out);
  }
  std::string stream_begin() override { return echo_.empty() ? std::string() : chunk(echo_, {}, nullptr); }
  std::string stream_delta(const Delta& delta) override {
    return chunk(delta.content, delta.logprobs, nullptr);
  }
  std::string stream_end(const Finished& finished) override {
    std::string events = chunk("", {}, json::value(word(finished.reason)));
    if (usage_) {
      json::object out = head();
      out["choices"] = json::array();
      out["usage"] = usage_json(finished.usage);
      events += sse_data(json::serialize(out));
    }
    return events + sse_done();
  }
  std::string stream_failure(const ApiError& error) override { return sse_data(to_json(error)); }
  std::string stream_keep_alive() override { return sse_comment("keep-alive"); }

 private:
  static json::string word(FinishReason reason) { return json_text(to_string(reason)); }
  json::object head() const {
    json::object out;
    out["id"] = id_;
    out["object"] = "text_completion";
    out["created"] = created_;
    out["model"] = model_;
    out["system_fingerprint"] = "lily";
    return out;
  }
  json::object logprobs_json(const std::vector<TokenInfo>& tokens);
  json::array choices(const std::string& text, const std::vector<TokenInfo>& tokens, json::value finish) {
    json::object choice;
    choice["text"] = text;
    choice["index"] = 0;
    choice["logprobs"] = logprobs_ ? json::value(logprobs_json(tokens)) : json::value(nullptr);
    choice["finish_reason"] = std::move(finish);
    json::array out;
    out.emplace_back(std::move(choice));
    return out;
  }
  std::string chunk(const std::string& text, const std::vector<TokenInfo>& tokens, json::value finish) {
    json::object out = head();
    out["choices"] = choices(text, tokens, std::move(finish));
    if (usage_) {
      out["usage"] = nullptr;
    }
    return sse_data(json::serialize(out));
  }

  std::string id_, model_, echo_;
  int64_t created_ = 0;
  bool usage_ = false;
  bool logprobs_ = false;
  size_t offset_ = 0;  // of the next token in the text
};

// The first form of logprobs: lists beside each other.
json::object CompletionsDoor::logprobs_json(const std::vector<TokenInfo>& tokens) {
  json::array words, chosen, tops, offsets;
  for (const TokenInfo& token : tokens) {
    const std::string text = token_text(token.chosen);
    words.emplace_back(text);
    chosen.emplace_back(json_logprob(token.chosen));
    json::object top;
    for (const TokenInfo::Choice& choice : token.top) {
      top[token_text(choice)] = json_logprob(choice);
    }
    tops.emplace_back(std::move(top));
    offsets.emplace_back(offset_);
    offset_ += text.size();
  }
  json::object out;
  out["tokens"] = std::move(words);
  out["token_logprobs"] = std::move(chosen);
  out["top_logprobs"] = std::move(tops);
  out["text_offset"] = std::move(offsets);
  return out;
}

}  // namespace

std::shared_ptr<Door> make_completions_door() { return std::make_shared<CompletionsDoor>(); }

}  // namespace lily
