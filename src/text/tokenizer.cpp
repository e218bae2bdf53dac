#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <limits>
#include <unordered_map>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/token_table.h"
#include "text/tokenizer_file.h"
#include "text/unicode.h"

namespace lily {

namespace {

using Ranges = std::span<const RenderedPrompt::Range>;

Result<std::string> read_file(const std::filesystem::path& path) {
  // A folder opens, and says that it has 2^63 - 1 bytes; a named pipe waits for somebody who writes into it.
  std::error_code ignored;
  if (const auto status = std::filesystem::status(path, ignored);
      std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return fail(ErrorKind::io, "cannot read '{}': not a regular file", path.string());
  }
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return fail_errno("cannot open", path.string());
  const auto size = static_cast<std::streamoff>(file.tellg());
  std::string text(size > 0 ? static_cast<size_t>(size) : 0, '\0');
  file.seekg(0);
  if (size < 0 || !file.read(text.data(), size)) return fail_errno("cannot read", path.string());
  return text;
}

// Valid UTF-8, and the literal ranges moved along.
RenderedPrompt repaired(std::string_view text, Ranges literal) {
  RenderedPrompt out;
  size_t done = 0;
  const auto copy_to = [&](size_t end) {
    out.text += replace_invalid(text.substr(done, end - done));
    done = end;
  };
  for (const auto& range : literal) {
    copy_to(range.begin);
    const size_t begin = out.text.size();
    copy_to(range.end);
    out.literal.push_back({begin, out.text.size()});
  }
  copy_to(text.size());
  return out;
}

// Ranges as they should be: inside the text, ascending, not empty, joined where they touch.
std::vector<RenderedPrompt::Range> tidy(const std::vector<RenderedPrompt::Range>& ranges, size_t size) {
  std::vector<RenderedPrompt::Range> out;
  for (auto range : ranges) {
    range.end = std::min(range.end, size);
    if (!out.empty()) range.begin = std::max(range.begin, out.back().end);
    if (range.begin < range.end) out.push_back(range);
  }
  return out;
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerFile file)
      : tokens(std::move(file.tokens)),
        added(std::move(file.added)),
        bpe(file.byte_ids, file.merges),
        whole(tokens, mergeable(file)),
        merges_to_itself(std::make_unique<std::atomic<Whole>[]>(tokens.size())) {
    for (size_t i = 0; i < added.size(); ++i) {
      matcher.insert(added[i].text, static_cast<uint32_t>(i));
      added_by_text.emplace(added[i].text, added[i].id);
      added_by_id.emplace(added[i].id, i);
    }
    for (const uint32_t id : mergeable(file)) {
      const std::string& text = tokens[id];
      if (text.empty()) continue;
      uint32_t& reach = longest[static_cast<unsigned char>(text.front())];
      reach = std::max(reach, static_cast<uint32_t>(text.size()));
    }
  }

  // What merging can give.
  static std::vector<uint32_t> mergeable(const TokenizerFile& file) {
    std::vector<uint32_t> ids(file.byte_ids.begin(), file.byte_ids.end());
    for (const Bpe::Merge& merge : file.merges) ids.push_back(merge.result);
    return ids;
  }

  void encode_piece(std::string_view piece, Bpe::Scratch& scratch, std::vector<int32_t>& out) const {
    const auto found = whole.find(piece);
    if (!found) return bpe.encode(piece, scratch, out);
    // A token's own bytes need not merge into it: the first caller finds out. Any thread finds the same, so
    // relaxed order will do.
    std::atomic<Whole>& state = merges_to_itself[*found];
    if (state.load(std::memory_order_relaxed) == Whole::yes) {
      out.push_back(static_cast<int32_t>(*found));
      return;
    }
    const size_t before = out.size();
    bpe.encode(piece, scratch, out);
    if (out.size() == before + 1 && out.back() == static_cast<int32_t>(*found))
      state.store(Whole::yes, std::memory_order_relaxed);
  }

  // No tokenisation of `piece` has fewer tokens: how few jumps reach its end when each goes as far as the
  // longest token that begins with the byte it starts at.
  size_t fewest_tokens(std::string_view piece) const {
    size_t jumps = 0, end = 0, farthest = 0;
    for (size_t i = 0; i < piece.size() && end < piece.size(); ++i) {
      farthest = std::max(farthest, i + std::max(longest[static_cast<unsigned char>(piece[i])], 1U));
      if (i == end) {
        ++jumps;
        end = farthest;
      }
    }
    return jumps;
  }

  // Whether the work goes on. Far beyond the limit it is no more of interest how far; a long piece, whose
  // merging takes memory, is looked at before.
  bool within(size_t limit, std::string_view piece, Bounded& out) const {
    constexpr size_t kFar = 4, kLongPiece = 64U << 10;
    out.at_least = out.ids.size();
    if (piece.size() > kLongPiece) out.at_least += fewest_tokens(piece);
    const bool far = out.ids.size() / kFar >= limit;
    out.whole = !far && (out.at_least == out.ids.size() || out.at_least < limit);
    return out.whole;
  }

  void encode_segment(std::string_view segment, size_t limit, Bpe::Scratch& scratch, Bounded& out) const {
    std::string storage;
    const std::string_view text = nfc(segment, storage);
    for (size_t at = 0; at < text.size();) {
      const size_t end = piece_end(text, at);
      const std::string_view piece = text.substr(at, end - at);
      if (!within(limit, piece, out)) return;
      encode_piece(piece, scratch, out.ids);
      at = end;
    }
  }

  Bounded encode(std::string_view text, Ranges literal, size_t limit = kUnlimited) const {
    if (first_invalid(text) != text.size()) {
      const RenderedPrompt valid = repaired(text, literal);
      return encode(valid.text, valid.literal, limit);
    }
    Bounded bounded;
    std::vector<int32_t>& out = bounded.ids;
    out.reserve(std::min(text.size() / 4, limit) + 8);
    Bpe::Scratch scratch;
    for (size_t at = 0; at < text.size();) {
      const auto match = matcher.find(text, at, literal);
      const size_t end = match ? match->begin : text.size();
      encode_segment(text.substr(at, end - at), limit, scratch, bounded);
      if (!bounded.whole) return bounded;
      at = end;
      if (match) {
        out.push_back(added[match->index].id);
        at = match->end;
      }
    }
    bounded.at_least = out.size();
    return bounded;
  }

  static constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();
  enum class Whole : uint8_t { unknown, yes };

  std::vector<std::string> tokens;
  std::array<uint32_t, 256> longest{};  // bytes of the longest token that begins with a byte
  std::vector<AddedToken> added;
  std::unordered_map<int32_t, size_t> added_by_id;
  std::unordered_map<std::string_view, int32_t> added_by_text;
  AddedTokenMatcher matcher;
  Bpe bpe;
  TokenTable whole;
  std::unique_ptr<std::atomic<Whole>[]> merges_to_itself;  // by id
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::filesystem::path& folder) {
  LILY_TRY(const std::string tokenizer, read_file(folder / "tokenizer.json"));
  std::string config;
  std::error_code ignored;
  if (std::filesystem::exists(folder / "tokenizer_config.json", ignored)) {
    LILY_TRY(config, read_file(folder / "tokenizer_config.json"));
  }
  auto loaded = from_json(tokenizer, config);
  if (!loaded) {
    Error& error = loaded.error();
    error.message = fmt::format("'{}': {}", (folder / "tokenizer.json").string(), error.message);
  }
  return loaded;
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_json(std::string_view tokenizer_json,
                                                        std::string_view tokenizer_config_json) {
  LILY_TRY(TokenizerFile file, parse_tokenizer_file(tokenizer_json, tokenizer_config_json));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::make_unique<Impl>(std::move(file))));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const { return impl_->encode(text, {}).ids; }

std::vector<int32_t> Tokenizer::encode(const RenderedPrompt& prompt) const {
  return impl_->encode(prompt.text, tidy(prompt.literal, prompt.text.size())).ids;
}

Tokenizer::Bounded Tokenizer::encode(const RenderedPrompt& prompt, size_t limit) const {
  return impl_->encode(prompt.text, tidy(prompt.literal, prompt.text.size()), limit);
}

std::string_view Tokenizer::bytes_of(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= impl_->tokens.size()) return {};
  return impl_->tokens[static_cast<size_t>(id)];
}

const AddedToken* Tokenizer::added(int32_t id) const {
  const auto found = impl_->added_by_id.find(id);
  return found == impl_->added_by_id.end() ? nullptr : &impl_->added[found->second];
}

std::optional<int32_t> Tokenizer::id_of(std::string_view added) const {
  const auto found = impl_->added_by_text.find(added);
  if (found == impl_->added_by_text.end()) return std::nullopt;
  return found->second;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    const AddedToken* token = skip_special ? added(id) : nullptr;
    if (token == nullptr || !token->special) bytes += bytes_of(id);
  }
  return replace_invalid(bytes);
}

uint32_t Tokenizer::size() const { return static_cast<uint32_t>(impl_->tokens.size()); }

}  // namespace lily
