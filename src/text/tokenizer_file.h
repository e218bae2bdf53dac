// tokenizer.json and tokenizer_config.json, checked and reduced to what the tokenizer needs.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/bpe.h"
#include "text/tokenizer.h"

namespace lily {

struct TokenizerFile {
  std::vector<std::string>
      tokens;  // by id: raw bytes of vocabulary entries, text of added tokens; may be empty
  std::array<uint32_t, 256> byte_ids;  // ids of the single bytes
  std::vector<Bpe::Merge> merges;      // in rank order
  std::vector<AddedToken> added;       // ascending by id
};

// Refuses what is not the byte-level BPE of the Qwen 3.5/3.6 family, the difference named.
Result<TokenizerFile> parse_tokenizer_file(std::string_view tokenizer_json,
                                           std::string_view tokenizer_config_json);

}  // namespace lily
