// Token ids to text, one at a time, never half a UTF-8 character.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace lily {

// Bytes in, valid UTF-8 out. Holds back an incomplete tail (at most 3 bytes); each maximal invalid sequence
// becomes one U+FFFD.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  std::string flush();  // the tail, as U+FFFD when incomplete

 private:
  std::string tail_;
};

class Detokenizer {
 public:
  // `tokenizer` must outlive it. With skip_special, special added tokens give no text.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}
  std::string push(int32_t id);
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  Utf8Stream stream_;
};

}  // namespace lily
