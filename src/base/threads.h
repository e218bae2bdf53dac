// A fixed team of threads for data-parallel work. One caller at a time; the caller is worker 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/function_ref.h"

namespace lily {

// Cores this process may use (its affinity mask), at least 1.
unsigned usable_cores();

class ThreadPool {
 public:
  // `threads` counts the caller: 1 starts none. 0 means usable_cores().
  explicit ThreadPool(unsigned threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  unsigned size() const;

  // Calls job(worker) once for each worker in [0, size()) and returns when all are done. Not reentrant.
  // An exception of any worker is rethrown in the caller after all have finished.
  void run(FunctionRef<void(unsigned worker)> job);

  // Splits [0, count) into pieces of `grain`, handed out so that a worker gets neighbouring ones as long as
  // all have work. Use it only where a piece's result does
  // not depend on which worker computes it (no shared sums): then the result is the same for any number of
  // threads.
  void for_each(size_t count, size_t grain, FunctionRef<void(size_t begin, size_t end)> body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lily
