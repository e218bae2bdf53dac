// Hands the events of one job from the engine's thread to a connection. push() never blocks: what the reader
// has not taken yet is kept, joined where it is text of the same kind, up to a bound; beyond it the channel
// is overflowed and the reader is expected to cancel the job.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/engine.h"

namespace lily {

class EventChannel {
 public:
  // `notify` is called from push(), once between two calls of take() and once more, with true, when the
  // channel overflows; never after close().
  EventChannel(std::function<void(bool overflowed)> notify, size_t max_bytes)
      : notify_(std::move(notify)), max_bytes_(max_bytes) {}

  void push(Event event);

  struct Batch {
    bool started = false;
    PromptReuse reuse;                       // once started
    std::optional<PromptProgress> progress;  // the latest
    std::vector<Delta> deltas;               // in order; two neighbours are of different kinds
    std::optional<Finished> finished;        // after every delta
    std::optional<Error> failed;             // after every delta
    bool overflowed = false;                 // deltas were dropped
  };
  Batch take();
  // Nothing is kept and nobody is told from now on.
  void close();

 private:
  void keep(Event event);
  void add(Delta delta);

  std::mutex mutex_;
  std::function<void(bool)> notify_;
  const size_t max_bytes_;
  Batch pending_;
  size_t bytes_ = 0;
  bool told_ = false;
  bool closed_ = false;
};

}  // namespace lily
