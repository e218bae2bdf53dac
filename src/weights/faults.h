// A list of faults, gathered so that the user sees all of them at once and a hostile file cannot make the
// list itself large.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace lily {

// Text from a file, for a message: in quotes, control characters and invalid bytes escaped, cut when long.
std::string in_quotes(std::string_view text);

class Faults {
 public:
  static constexpr size_t kMaxKept = 200;

  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    if (++count_ <= kMaxKept) {
      lines_.push_back(fmt::format(format, std::forward<Args>(args)...));
    }
  }
  // The faults of another error, each preceded by `prefix`.
  void add_all(const Error& error, std::string_view prefix = "");

  bool empty() const { return count_ == 0; }
  size_t count() const { return count_; }

  // One fault: "<thing>: <fault>". Several: "<thing>: <n> faults", and each as a detail.
  Error error(ErrorKind kind, std::string_view thing) const;

 private:
  std::vector<std::string> lines_;
  size_t count_ = 0;
};

}  // namespace lily
