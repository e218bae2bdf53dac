// Ctrl-C, counted: what it means is up to the command. While an object lives, SIGINT no longer ends the
// process, and a blocking read of the terminal returns with EINTR.
#pragma once

namespace lily::app {

class Interrupts {
 public:
  Interrupts();
  ~Interrupts();  // the default again
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  int count() const;  // since the last reset()
  void reset();
};

}  // namespace lily::app
