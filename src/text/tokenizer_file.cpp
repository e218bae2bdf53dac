#include "text/tokenizer_file.h"

#include <algorithm>
#include <boost/json.hpp>
#include <unordered_map>

#include "text/pretokenizer.h"
#include "text/unicode.h"

namespace lily {

namespace {

namespace json = boost::json;

tl::unexpected<Error> differs(std::string_view where, std::string_view expected, const json::value* found) {
  std::string text = found != nullptr ? json::serialize(*found) : "nothing";
  if (text.size() > 200) text = text.substr(0, 200) + "...";
  return fail(ErrorKind::unsupported, "tokenizer: {}: expected {}, found {}", where, expected, text);
}

const json::value* member(const json::value* object, std::string_view key) {
  return object != nullptr && object->is_object() ? object->get_object().if_contains(key) : nullptr;
}

// The value is absent, null, or equal to what it means to leave it out.
bool is_default(const json::value* found, const json::value& normal) {
  return found == nullptr || found->is_null() || *found == normal;
}

Result<void> expect(const json::value* parent, std::string_view path, std::string_view key,
                    const json::value& wanted) {
  const json::value* found = member(parent, key);
  if (found == nullptr || *found != wanted)
    return differs(fmt::format("{}.{}", path, key), json::serialize(wanted), found);
  return {};
}

Result<void> expect_default(const json::value* parent, std::string_view path, std::string_view key,
                            const json::value& normal) {
  const json::value* found = member(parent, key);
  if (!is_default(found, normal))
    return differs(fmt::format("{}.{}", path, key), json::serialize(normal), found);
  return {};
}

// normalizer, pre_tokenizer, post_processor, decoder: the pipeline around the model.
Result<void> check_pipeline(const json::value& root) {
  const json::value* normalizer = member(&root, "normalizer");
  LILY_TRY_VOID(expect(normalizer, "normalizer", "type", "NFC"));
  const json::value* pre = member(&root, "pre_tokenizer");
  LILY_TRY_VOID(expect(pre, "pre_tokenizer", "type", "Sequence"));
  const json::value* steps = member(pre, "pretokenizers");
  if (steps == nullptr || !steps->is_array() || steps->get_array().size() != 2)
    return differs("pre_tokenizer.pretokenizers", "Split, then ByteLevel", steps);
  const json::value* split = &steps->get_array()[0];
  const std::string at = "pre_tokenizer.pretokenizers[0]";
  LILY_TRY_VOID(expect(split, at, "type", "Split"));
  LILY_TRY_VOID(
      expect(member(split, "pattern"), at + ".pattern", "Regex", json::string_view(kPretokenizerRegex)));
  LILY_TRY_VOID(expect(split, at, "behavior", "Isolated"));
  LILY_TRY_VOID(expect_default(split, at, "invert", false));
  const json::value* bytes = &steps->get_array()[1];
  const std::string next = "pre_tokenizer.pretokenizers[1]";
  LILY_TRY_VOID(expect(bytes, next, "type", "ByteLevel"));
  LILY_TRY_VOID(expect(bytes, next, "add_prefix_space", false));
  LILY_TRY_VOID(expect(bytes, next, "use_regex", false));
  const json::value* post = member(&root, "post_processor");
  if (post != nullptr && !post->is_null()) LILY_TRY_VOID(expect(post, "post_processor", "type", "ByteLevel"));
  LILY_TRY_VOID(expect(member(&root, "decoder"), "decoder", "type", "ByteLevel"));
  return {};
}

Result<void> check_model(const json::value* model) {
  LILY_TRY_VOID(expect(model, "model", "type", "BPE"));
  LILY_TRY_VOID(expect_default(model, "model", "dropout", 0.0));
  LILY_TRY_VOID(expect_default(model, "model", "unk_token", nullptr));
  LILY_TRY_VOID(expect_default(model, "model", "continuing_subword_prefix", ""));
  LILY_TRY_VOID(expect_default(model, "model", "end_of_word_suffix", ""));
  LILY_TRY_VOID(expect_default(model, "model", "byte_fallback", false));
  LILY_TRY_VOID(expect_default(model, "model", "ignore_merges", false));
  return {};
}

// GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and up in their order.
struct ByteAlphabet {
  std::array<uint32_t, 256> code_point{};
  std::array<int16_t, 512> byte{};  // -1: not in the alphabet
  ByteAlphabet() {
    byte.fill(-1);
    uint32_t extra = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      code_point[b] = printable ? b : extra++;
      byte[code_point[b]] = static_cast<int16_t>(b);
    }
  }
  // The bytes that `symbols` stands for; false when a character is not of the alphabet. JSON strings are
  // valid UTF-8.
  bool decode(std::string_view symbols, std::string& out) const {
    out.clear();
    for (size_t at = 0; at < symbols.size();) {
      const CodePoint c = decode_valid(symbols, at);
      if (c.value >= byte.size() || byte[c.value] < 0) return false;
      out.push_back(static_cast<char>(byte[c.value]));
      at += c.length;
    }
    return true;
  }
};

class Reader {
 public:
  explicit Reader(TokenizerFile& file) : file_(file) {}

  Result<void> read_vocabulary(const json::value* vocab) {
    if (vocab == nullptr || !vocab->is_object()) return differs("model.vocab", "an object", vocab);
    ids_.reserve(vocab->get_object().size());
    for (const auto& entry : vocab->get_object()) {
      const std::string_view symbols(entry.key().data(), entry.key().size());
      LILY_TRY(const uint32_t id, token_id(entry.value(), "model.vocab", symbols));
      std::string bytes;
      // A trainer may list its special tokens in the vocabulary too: they have no spelling in bytes.
      if (!alphabet_.decode(symbols, bytes)) bytes = symbols;
      LILY_TRY_VOID(place(id, std::move(bytes), symbols));
      ids_.emplace(symbols, id);
    }
    std::string symbol;
    for (size_t byte = 0; byte < 256; ++byte) {
      symbol.clear();
      append_utf8(symbol, alphabet_.code_point[byte]);
      const auto found = ids_.find(symbol);
      if (found == ids_.end())
        return fail(ErrorKind::unsupported,
                    "tokenizer: model.vocab: expected all 256 bytes, byte {} ('{}') is absent", byte, symbol);
      file_.byte_ids[byte] = found->second;
    }
    return {};
  }

  Result<void> read_merges(const json::value* merges) {
    if (merges == nullptr || !merges->is_array()) return differs("model.merges", "an array", merges);
    const json::array& list = merges->get_array();
    if (list.size() >= Bpe::kMaxMerges)
      return fail(ErrorKind::limit, "tokenizer: model.merges: {} merges, at most {} are supported",
                  list.size(), Bpe::kMaxMerges - 1);
    file_.merges.reserve(list.size());
    for (size_t rank = 0; rank < list.size(); ++rank) {
      std::string_view left, right;
      if (!split_merge(list[rank], left, right))
        return differs(fmt::format("model.merges[{}]", rank), "two tokens (\"a b\" or [\"a\", \"b\"])",
                       &list[rank]);
      LILY_TRY(const uint32_t a, known(left, rank));
      LILY_TRY(const uint32_t b, known(right, rank));
      joined_.assign(left).append(right);
      LILY_TRY(const uint32_t result, known(joined_, rank));
      file_.merges.push_back({a, b, result});
    }
    return {};
  }

  Result<void> read_added(const json::value* list) {
    if (list == nullptr) return {};
    if (!list->is_array()) return differs("added_tokens", "an array", list);
    for (size_t i = 0; i < list->get_array().size(); ++i) {
      const json::value* entry = &list->get_array()[i];
      const std::string where = fmt::format("added_tokens[{}]", i);
      const json::value* id = member(entry, "id");
      if (id == nullptr) return differs(where + ".id", "a token id", id);
      LILY_TRY_VOID(add(*id, entry, where));
    }
    return {};
  }

  // {"248070": {"content": ...}, ...}
  Result<void> read_added_decoder(const json::value* table) {
    if (table == nullptr || table->is_null()) return {};
    if (!table->is_object()) return differs("added_tokens_decoder", "an object", table);
    for (const auto& entry : table->get_object()) {
      const std::string where = fmt::format("tokenizer_config.json added_tokens_decoder[\"{}\"]",
                                            std::string_view(entry.key().data(), entry.key().size()));
      boost::system::error_code error;
      const json::value id = json::parse(entry.key(), error);
      if (error) return fail(ErrorKind::invalid_input, "tokenizer: {}: the key is not a token id", where);
      LILY_TRY_VOID(add(id, &entry.value(), where));
    }
    return {};
  }

  void finish() {
    std::sort(file_.added.begin(), file_.added.end(),
              [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  }

 private:
  static Result<uint32_t> token_id(const json::value& value, std::string_view where, std::string_view token) {
    boost::system::error_code error;
    const auto id = value.to_number<int64_t>(error);
    if (error || id < 0 || id > int64_t{Bpe::kMaxId})
      return differs(fmt::format("{} '{}'", where, token), fmt::format("an id of 0 to {}", Bpe::kMaxId),
                     &value);
    return static_cast<uint32_t>(id);
  }

  Result<void> place(uint32_t id, std::string bytes, std::string_view name) {
    if (id >= file_.tokens.size()) {
      file_.tokens.resize(id + 1);
      used_.resize(id + 1, false);
    }
    if (used_[id])
      return fail(ErrorKind::invalid_input, "tokenizer: id {} is given to '{}' and to another token", id,
                  name);
    used_[id] = true;
    file_.tokens[id] = std::move(bytes);
    return {};
  }

  static bool split_merge(const json::value& merge, std::string_view& left, std::string_view& right) {
    if (const json::string* text = merge.if_string()) {
      const std::string_view both(text->data(), text->size());
      const size_t space = both.find(' ');
      if (space == std::string_view::npos || both.find(' ', space + 1) != std::string_view::npos)
        return false;
      left = both.substr(0, space);
      right = both.substr(space + 1);
    } else if (const json::array* pair = merge.if_array();
               pair != nullptr && pair->size() == 2 && (*pair)[0].is_string() && (*pair)[1].is_string()) {
      left = {(*pair)[0].get_string().data(), (*pair)[0].get_string().size()};
      right = {(*pair)[1].get_string().data(), (*pair)[1].get_string().size()};
    } else {
      return false;
    }
    return !left.empty() && !right.empty();
  }

  Result<uint32_t> known(std::string_view token, size_t rank) {
    const auto found = ids_.find(token);
    if (found == ids_.end())
      return fail(ErrorKind::invalid_input, "tokenizer: model.merges[{}]: '{}' is not in model.vocab", rank,
                  token);
    return found->second;
  }

  Result<void> add(const json::value& id_value, const json::value* entry, const std::string& where) {
    const json::value* content = member(entry, "content");
    if (content == nullptr || !content->is_string()) return differs(where + ".content", "a string", content);
    const std::string text(content->get_string().data(), content->get_string().size());
    LILY_TRY(const uint32_t id, token_id(id_value, where, text));
    for (const std::string_view flag : {"single_word", "lstrip", "rstrip", "normalized"})
      LILY_TRY_VOID(expect_default(entry, where, flag, false));
    const json::value* special = member(entry, "special");
    if (!is_default(special, true) && !is_default(special, false))
      return differs(where + ".special", "true or false", special);
    if (text.empty()) return {};
    const auto known_as = added_ids_.find(text);
    if (known_as != added_ids_.end()) {
      if (known_as->second == id) return {};  // tokenizer_config.json repeats what tokenizer.json says
      return fail(ErrorKind::invalid_input, "tokenizer: {}: '{}' has id {}, and {} elsewhere", where, text,
                  id, known_as->second);
    }
    const auto word = ids_.find(text);
    if (word != ids_.end() && word->second != id)
      return fail(ErrorKind::invalid_input, "tokenizer: {}: '{}' has id {}, and {} in model.vocab", where,
                  text, id, word->second);
    if (word == ids_.end()) LILY_TRY_VOID(place(id, text, text));
    file_.tokens[id] = text;
    added_ids_.emplace(text, id);
    file_.added.push_back({static_cast<int32_t>(id), text, special != nullptr && *special == true});
    return {};
  }

  TokenizerFile& file_;
  ByteAlphabet alphabet_;
  std::unordered_map<std::string_view, uint32_t> ids_;  // keys live in the JSON document
  std::unordered_map<std::string, uint32_t> added_ids_;
  std::vector<bool> used_;
  std::string joined_;
};

Result<json::value> parse(std::string_view text, std::string_view name, json::storage_ptr storage) {
  boost::system::error_code error;
  json::value value = json::parse(json::string_view(text), error, std::move(storage));
  if (error) return fail(ErrorKind::invalid_input, "{}: not valid JSON: {}", name, error.message());
  return value;
}

}  // namespace

Result<TokenizerFile> parse_tokenizer_file(std::string_view tokenizer_json,
                                           std::string_view tokenizer_config_json) {
  // Half a million small strings: one arena, freed at once.
  json::monotonic_resource arena;
  LILY_TRY(const json::value root, parse(tokenizer_json, "tokenizer.json", &arena));
  LILY_TRY_VOID(check_pipeline(root));
  const json::value* model = member(&root, "model");
  LILY_TRY_VOID(check_model(model));
  TokenizerFile file;
  Reader reader(file);
  LILY_TRY_VOID(reader.read_vocabulary(member(model, "vocab")));
  LILY_TRY_VOID(reader.read_merges(member(model, "merges")));
  LILY_TRY_VOID(reader.read_added(member(&root, "added_tokens")));
  if (!tokenizer_config_json.empty()) {
    LILY_TRY(const json::value config, parse(tokenizer_config_json, "tokenizer_config.json", &arena));
    LILY_TRY_VOID(reader.read_added_decoder(member(&config, "added_tokens_decoder")));
  }
  reader.finish();
  return file;
}

}  // namespace lily
