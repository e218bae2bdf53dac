// What the device thread shares with everybody else: the waiting jobs, which passes are on the device, the
// counters. The only part of the engine with a lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/backend.h"
#include "engine/engine.h"
#include "engine/job.h"

namespace lily {

// The jobs of one pass on the device, and the switch that makes the device drop it.
struct PassWatch {
  std::vector<std::shared_ptr<JobRecord>> jobs;
  std::atomic<bool> cancel{false};
};

enum class JobEnd : uint8_t { finished, failed, cancelled };

class Mailbox {
 public:
  // `capacity`: jobs that may run or wait at once.
  explicit Mailbox(uint32_t capacity) : capacity_(capacity) {}

  // For callers of the engine.
  Result<void> submit(std::shared_ptr<JobRecord> job);
  bool cancel(JobRecord& job);  // see Job::cancel()
  EngineMetrics metrics() const;
  void refuse_new_jobs();
  // True when no job is left before `seconds` have passed.
  bool wait_until_idle(double seconds);
  void end_all();  // the device thread ends all jobs with ErrorKind::cancelled
  void stop();     // and then itself

  // For the device thread.
  struct Orders {
    bool stop = false;
    bool abort = false;
  };
  // Blocks while there is nothing to do, which is when `busy` is false, nobody called wake() and no job waits
  // that could be taken (`full`: none can). Not for long where jobs wait for the disk (`loading`), for their
  // time may be over.
  Orders wait(bool busy, bool full, bool loading);
  void wake();  // any thread: there is something to do, or to look at
  // The oldest waiting job of the client that was served longest ago, counted as running from now; or none.
  std::shared_ptr<JobRecord> next();
  // Waiting jobs whose time is over, counted as running from now.
  std::vector<std::shared_ptr<JobRecord>> take_overdue(EngineClock::time_point now);
  // Before a pass is submitted. False: one of its jobs was cancelled since it was planned; plan again.
  [[nodiscard]] bool watch(PassWatch& pass);
  void unwatch(PassWatch& pass);
  void count(JobEnd end);
  void count_tokens(uint64_t prompt, uint64_t completion);
  void count_closed_thinking();
  void count_pass(const Output& output);
  void report(const CacheMetrics& cache, std::vector<SequenceMetrics> sequences);

 private:
  void cancel_unwanted_passes();

  const uint32_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable idle_;
  std::deque<std::shared_ptr<JobRecord>> waiting_;
  // Of each client when it was served last, while anybody waits.
  std::map<uint64_t, uint64_t> served_;
  uint64_t turn_ = 0;
  std::vector<PassWatch*> passes_;
  EngineMetrics metrics_;
  bool closed_ = false;
  bool woken_ = false;
  Orders orders_;
};

}  // namespace lily
