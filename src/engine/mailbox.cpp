#include "engine/mailbox.h"

#include <algorithm>
#include <iterator>

namespace lily {

Result<void> Mailbox::submit(std::shared_ptr<JobRecord> job) {
  const std::lock_guard lock(mutex_);
  if (closed_) return fail(ErrorKind::cancelled, "the engine is shutting down and takes no new requests");
  // Counted together: jobs are taken between two passes only, so one that waits may have a place already.
  if (waiting_.size() + metrics_.running >= capacity_) {
    return fail(ErrorKind::limit, "the queue is full: {} requests run and {} wait", metrics_.running,
                waiting_.size());
  }
  waiting_.push_back(std::move(job));
  metrics_.waiting = static_cast<uint32_t>(waiting_.size());
  work_.notify_one();
  return {};
}

bool Mailbox::cancel(JobRecord& job) {
  EventSink dropped;  // destroyed without the lock: what it captured may own other jobs
  const std::lock_guard lock(mutex_);
  if (!job.cancel()) return job.cancelled();
  const auto found = std::ranges::find_if(
      waiting_, [&](const std::shared_ptr<JobRecord>& other) { return other.get() == &job; });
  if (found != waiting_.end()) {
    dropped = job.take_sink();
    waiting_.erase(found);
    metrics_.waiting = static_cast<uint32_t>(waiting_.size());
    ++metrics_.jobs_cancelled;
    idle_.notify_all();
    return true;
  }
  cancel_unwanted_passes();
  woken_ = true;  // it may wait for the disk, with nothing on the device
  work_.notify_one();
  return true;
}

// A cancelled pass fails the states of all its slices, and a later pass on the same states fails with it:
// only when nobody wants anything that is on the device may it be dropped. The state of a job that has ended
// is wanted: it is going to be kept.
void Mailbox::cancel_unwanted_passes() {
  for (const PassWatch* pass : passes_) {
    for (const auto& job : pass->jobs) {
      if (!job->cancelled() && !orders_.abort) return;
    }
  }
  for (PassWatch* pass : passes_) pass->cancel = true;
}

EngineMetrics Mailbox::metrics() const {
  const std::lock_guard lock(mutex_);
  return metrics_;
}

void Mailbox::refuse_new_jobs() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

bool Mailbox::wait_until_idle(double seconds) {
  std::unique_lock lock(mutex_);
  const auto idle = [&] { return metrics_.running == 0 && waiting_.empty(); };
  // Bounded, so that "for ever" does not overflow the clock.
  const std::chrono::duration<double> wait(std::clamp(seconds, 0.0, 1e6));
  return idle_.wait_for(lock, wait, idle);
}

void Mailbox::end_all() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  orders_.abort = true;
  woken_ = true;
  cancel_unwanted_passes();
  work_.notify_one();
}

void Mailbox::stop() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  orders_ = {.stop = true, .abort = true};
  cancel_unwanted_passes();
  work_.notify_one();
}

Mailbox::Orders Mailbox::wait(bool busy, bool full, bool loading) {
  constexpr auto kLook = std::chrono::milliseconds(100);
  std::unique_lock lock(mutex_);
  const auto work = [&] { return orders_.stop || woken_ || (!full && !waiting_.empty()); };
  if (loading && !busy) work_.wait_for(lock, kLook, work);
  if (!loading && !busy) work_.wait(lock, work);
  woken_ = false;
  return orders_;
}

void Mailbox::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  work_.notify_one();
}

std::shared_ptr<JobRecord> Mailbox::next() {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return nullptr;
  const auto last = [&](const std::shared_ptr<JobRecord>& one) {
    const auto found = served_.find(one->request.client);
    return found == served_.end() ? 0 : found->second;
  };
  const auto first = std::ranges::min_element(waiting_, {}, last);  // of equals the oldest
  std::shared_ptr<JobRecord> job = std::move(*first);
  waiting_.erase(first);
  served_[job->request.client] = ++turn_;
  if (waiting_.empty()) served_.clear();
  metrics_.waiting = static_cast<uint32_t>(waiting_.size());
  ++metrics_.running;
  return job;
}

std::vector<std::shared_ptr<JobRecord>> Mailbox::take_overdue(EngineClock::time_point now) {
  std::vector<std::shared_ptr<JobRecord>> overdue;
  const std::lock_guard lock(mutex_);
  const auto late = [now](const std::shared_ptr<JobRecord>& job) { return job->overdue(now); };
  std::ranges::copy_if(waiting_, std::back_inserter(overdue), late);
  std::erase_if(waiting_, late);
  metrics_.waiting = static_cast<uint32_t>(waiting_.size());
  metrics_.running += static_cast<uint32_t>(overdue.size());
  return overdue;
}

bool Mailbox::watch(PassWatch& pass) {
  const std::lock_guard lock(mutex_);
  // An earlier pass of a cancelled job may have been dropped, and its state with it.
  if (!std::ranges::all_of(pass.jobs, [](const auto& job) { return job->wanted(); })) return false;
  passes_.push_back(&pass);
  if (orders_.abort) pass.cancel = true;
  return true;
}

void Mailbox::unwatch(PassWatch& pass) {
  const std::lock_guard lock(mutex_);
  std::erase(passes_, &pass);
}

void Mailbox::count(JobEnd end) {
  const std::lock_guard lock(mutex_);
  --metrics_.running;
  switch (end) {
    case JobEnd::finished:
      ++metrics_.jobs_finished;
      break;
    case JobEnd::failed:
      ++metrics_.jobs_failed;
      break;
    case JobEnd::cancelled:
      ++metrics_.jobs_cancelled;
      break;
  }
  idle_.notify_all();
}

void Mailbox::count_tokens(uint64_t prompt, uint64_t completion) {
  const std::lock_guard lock(mutex_);
  metrics_.prompt_tokens += prompt;
  metrics_.completion_tokens += completion;
}

void Mailbox::count_closed_thinking() {
  const std::lock_guard lock(mutex_);
  ++metrics_.thinking_closed;
}

void Mailbox::count_pass(const Output& output) {
  const std::lock_guard lock(mutex_);
  ++metrics_.passes;
  metrics_.bytes_read += output.bytes_read;
  metrics_.device_seconds += output.seconds;
}

void Mailbox::report(const CacheMetrics& cache, std::vector<SequenceMetrics> sequences) {
  const std::lock_guard lock(mutex_);
  metrics_.cache = cache;
  metrics_.sequences = std::move(sequences);
}

}  // namespace lily
