#include "text/detokenizer.h"

#include "text/unicode.h"

namespace lily {

std::string Utf8Stream::push(std::string_view bytes) {
  tail_ += bytes;
  std::string out;
  size_t at = 0;
  while (at < tail_.size()) {
    const std::string_view rest = std::string_view(tail_).substr(at);
    const size_t valid = first_invalid(rest);
    out += rest.substr(0, valid);
    at += valid;
    if (at == tail_.size()) break;
    const Utf8Step step = utf8_step(tail_, at);
    if (step.incomplete) break;
    out += kReplacement;
    at += step.maximal;
  }
  tail_.erase(0, at);
  return out;
}

std::string Utf8Stream::flush() {
  std::string out;
  if (!tail_.empty()) out = kReplacement;  // an incomplete sequence is one maximal subpart
  tail_.clear();
  return out;
}

std::string Detokenizer::push(int32_t id) {
  const AddedToken* token = skip_special_ ? tokenizer_.added(id) : nullptr;
  if (token != nullptr && token->special) return {};
  return stream_.push(tokenizer_.bytes_of(id));
}

std::string Detokenizer::flush() { return stream_.flush(); }

}  // namespace lily
