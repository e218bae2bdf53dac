// Ctrl-C and SIGTERM as a flag, for long operations that clean up after themselves.
#pragma once

#include <atomic>

namespace lily::app {

// While one exists, the first SIGINT or SIGTERM sets the flag and the second ends the process. One at a time.
class CancelOnSignal {
 public:
  CancelOnSignal();
  ~CancelOnSignal();
  CancelOnSignal(const CancelOnSignal&) = delete;
  CancelOnSignal& operator=(const CancelOnSignal&) = delete;
  const std::atomic<bool>& flag() const;
};

}  // namespace lily::app
