#include "apps/lily/progress.h"
#include "apps/lily/say.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace lily::app {

ProgressBar::ProgressBar(std::string what)
    : what_(std::move(what)),
      terminal_(isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()) {}

void ProgressBar::update(double done) {
  const int percent = static_cast<int>(done * 100);
  const int step = terminal_ ? 1 : 25;
  if (percent / step == last_ / step && last_ >= 0) {
    return;
  }
  if (std::chrono::steady_clock::now() - start_ < std::chrono::milliseconds(500)) {
    return;
  }
  last_ = percent;
  shown_ = true;
  say("{}{} {:3d} %{}", terminal_ ? "\r" : "", what_, percent, terminal_ ? "" : "\n");
}

void ProgressBar::finish() {
  if (shown_ && terminal_) {
    say("\r{} 100 %\n", what_);
  }
}

}  // namespace lily::app
