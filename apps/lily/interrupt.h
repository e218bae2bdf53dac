// Ctrl-C and SIGTERM as something a command looks at, instead of the end of the process.
#pragma once

#include <atomic>
#include <cstdint>

namespace lily::app {

// Listens while it lives; one at a time. A blocking read of the terminal returns with EINTR.
class Interrupts {
 public:
  enum class Kind : uint8_t {
    counted,  // SIGINT never ends the process: what it means is up to the command
    once,     // the first SIGINT or SIGTERM asks to clean up and stop, the second ends the process
  };

  explicit Interrupts(Kind kind);
  ~Interrupts();  // the default again
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  int count() const;  // since the last reset()
  void reset();
  const std::atomic<bool>& flag() const;  // set by the first; not by reset()
};

}  // namespace lily::app
