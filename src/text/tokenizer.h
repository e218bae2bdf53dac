// Byte-level BPE of the Qwen 3.5/3.6 family: NFC, the family's pre-tokeniser regex, merges in rank order,
// added tokens matched on raw text first. Immutable after loading: any number of threads may encode at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/rendered_prompt.h"

namespace lily {

struct AddedToken {
  int32_t id;
  std::string text;
  bool special;  // left out by decoders that skip special tokens
};

class Tokenizer {
 public:
  // Reads tokenizer.json, and tokenizer_config.json beside it for added tokens that only stand there. A
  // tokenizer of another kind (normaliser, pre-tokeniser, model) is refused with the difference named.
  static Result<std::unique_ptr<Tokenizer>> load(const std::filesystem::path& folder);
  static Result<std::unique_ptr<Tokenizer>> from_json(std::string_view tokenizer_json,
                                                      std::string_view tokenizer_config_json = "");
  ~Tokenizer();

  // Text as the `tokenizers` library encodes it: added tokens are recognised everywhere. Invalid UTF-8 is
  // read as U+FFFD, one per maximal invalid sequence. Linear in the length of the text.
  std::vector<int32_t> encode(std::string_view text) const;
  // A rendered prompt: added tokens are recognised only outside its literal ranges, so that text of a user or
  // of a tool never becomes a control token.
  std::vector<int32_t> encode(const RenderedPrompt& prompt) const;
  // The same for a prompt that is of no use from `limit` tokens on: far beyond it, or in front of a long
  // piece that alone reaches it, the work ends, and takes neither time nor memory for the rest.
  struct Bounded {
    std::vector<int32_t> ids;
    size_t at_least = 0;  // tokens of the prompt; exact when whole
    bool whole = true;    // `ids` are all
  };
  Bounded encode(const RenderedPrompt& prompt, size_t limit) const;

  // The bytes of a token (an added token's own text); empty for an id that has none.
  std::string_view bytes_of(int32_t id) const;
  const AddedToken* added(int32_t id) const;                   // nullptr for an ordinary token
  std::optional<int32_t> id_of(std::string_view added) const;  // of an added token's text
  std::string decode(std::span<const int32_t> ids,
                     bool skip_special) const;  // invalid UTF-8 replaced by U+FFFD
  uint32_t size() const;                        // highest id + 1

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lily
