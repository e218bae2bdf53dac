// Progress of a long operation, on stderr: a line that is redrawn on a terminal, a line per quarter
// elsewhere. Silent for what is done within half a second.
#pragma once

#include <chrono>
#include <string>

namespace lily::app {

class ProgressBar {
 public:
  explicit ProgressBar(std::string what);
  void update(double done);  // 0 to 1
  void finish();

 private:
  std::string what_;
  bool terminal_;
  bool shown_ = false;
  int last_ = -1;  // percent last drawn
  std::chrono::steady_clock::time_point start_;
};

}  // namespace lily::app
