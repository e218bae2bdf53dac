#include "base/threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

namespace lily {
namespace {

// A worker looks for new work this often before it sleeps: phases of a pass follow each other within
// microseconds, and an idle server must not burn a core.
constexpr int kSpins = 20'000;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

unsigned usable_cores() {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    return static_cast<unsigned>(std::max(1, CPU_COUNT(&set)));
  }
#endif
  return std::max(1U, std::thread::hardware_concurrency());
}

// The pieces [begin, end) that a worker has before it, in one word.
class alignas(64) Range {
 public:
  static constexpr uint64_t kMost = (uint64_t{1} << 32) - 1;
  Range() = default;
  Range(const Range&) {}  // for a vector of them, before they are used

  void set(uint64_t begin, uint64_t end) { word_.store(begin << 32 | end, std::memory_order_relaxed); }

  std::optional<uint64_t> take_first() {
    uint64_t word = word_.load(std::memory_order_relaxed);
    while (begin(word) < end(word)) {
      if (word_.compare_exchange_weak(word, word + (uint64_t{1} << 32), std::memory_order_relaxed)) {
        return begin(word);
      }
    }
    return std::nullopt;
  }

  // Of an empty range: takes the back half of another's.
  bool take_half(Range& from) {
    uint64_t word = from.word_.load(std::memory_order_relaxed);
    while (begin(word) < end(word)) {
      const uint64_t middle = begin(word) + (end(word) - begin(word)) / 2;
      if (from.word_.compare_exchange_weak(word, begin(word) << 32 | middle, std::memory_order_relaxed)) {
        set(middle, end(word));
        return true;
      }
    }
    return false;
  }

 private:
  static uint64_t begin(uint64_t word) { return word >> 32; }
  static uint64_t end(uint64_t word) { return word & kMost; }
  std::atomic<uint64_t> word_{0};
};

// Jobs follow each other within microseconds, so all that a job needs is one word:
//   number of the job | closed | workers inside.
// A worker that sees a new number enters while the job is open. The caller closes the job when no work is
// left and waits for those inside only: a worker that was asleep or not scheduled (a busy machine, more
// threads than cores) then costs nothing.
struct ThreadPool::Impl {
  static constexpr uint64_t kClosed = uint64_t{1} << 16;
  static constexpr uint64_t kInside = kClosed - 1;
  static constexpr uint64_t kNextJob = uint64_t{1} << 17;

  std::vector<std::thread> threads;
  std::vector<Range> ranges;  // of for_each, one per worker
  std::atomic<uint64_t> gate{kClosed};
  std::atomic<unsigned> missing{0};  // workers that have not run the current job, where all must
  std::atomic<unsigned> sleepers{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable wake;
  const FunctionRef<void(unsigned)>* job = nullptr;
  std::mutex error_mutex;
  std::exception_ptr error;

  static uint64_t number(uint64_t word) { return word / kNextJob; }

  void call(unsigned worker) {
    try {
      (*job)(worker);
    } catch (...) {
      const std::lock_guard lock(error_mutex);
      if (!error) {
        error = std::current_exception();
      }
    }
  }

  // Returns when a job other than number `seen` was published.
  void wait_for_next(uint64_t seen) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (number(gate.load(std::memory_order_acquire)) != seen) {
        return;
      }
      pause_cpu();
    }
    std::unique_lock lock(mutex);
    sleepers.fetch_add(1);  // sequentially consistent with publish(): one of the two sees the other
    wake.wait(lock, [&] { return number(gate.load()) != seen; });
    sleepers.fetch_sub(1);
  }

  bool enter(uint64_t& word) {
    while ((word & kClosed) == 0) {
      if (gate.compare_exchange_weak(word, word + 1, std::memory_order_acquire)) {
        return true;
      }
    }
    return false;
  }

  void work(unsigned worker) {
    for (uint64_t seen = 0;;) {
      wait_for_next(seen);
      if (stop.load(std::memory_order_acquire)) {
        return;
      }
      uint64_t word = gate.load(std::memory_order_acquire);
      const bool inside = enter(word);
      seen = number(word);
      if (inside) {
        call(worker);
        missing.fetch_sub(1, std::memory_order_release);
        gate.fetch_sub(1, std::memory_order_release);
      }
    }
  }

  void publish() {
    gate.store((number(gate.load(std::memory_order_relaxed)) + 1) * kNextJob);
    if (sleepers.load() != 0) {
      { const std::lock_guard lock(mutex); }  // a worker between its last look and its sleep is past it now
      wake.notify_all();
    }
  }

  template <class Done>
  static void wait_until(Done done) {
    for (int spin = 0; !done(); ++spin) {
      if (spin < kSpins) {
        pause_cpu();
      } else {
        std::this_thread::yield();  // more workers than cores: let them finish
      }
    }
  }

  // Runs `with` on the caller and on the workers that come in time; on all where `all`.
  void run(const FunctionRef<void(unsigned)>& with, bool all) {
    job = &with;
    error = nullptr;
    missing.store(static_cast<unsigned>(threads.size()), std::memory_order_relaxed);
    if (!threads.empty()) {
      publish();
    }
    call(0);
    if (all) {
      wait_until([&] { return missing.load(std::memory_order_acquire) == 0; });
    }
    gate.fetch_or(kClosed, std::memory_order_acquire);
    wait_until([&] { return (gate.load(std::memory_order_acquire) & kInside) == 0; });
    if (error) {
      std::rethrow_exception(error);
    }
  }
};

ThreadPool::ThreadPool(unsigned threads) : impl_(std::make_unique<Impl>()) {
  const unsigned count = threads == 0 ? usable_cores() : threads;
  try {
    for (unsigned worker = 1; worker < count; ++worker) {
      impl_->threads.emplace_back([impl = impl_.get(), worker] { impl->work(worker); });
    }
  } catch (const std::system_error&) {
    // The system refuses more threads: the team is those it gave. size() tells.
  }
  impl_->ranges.resize(size());
}

ThreadPool::~ThreadPool() {
  impl_->stop.store(true, std::memory_order_release);
  impl_->publish();
  for (std::thread& thread : impl_->threads) {
    thread.join();
  }
}

unsigned ThreadPool::size() const { return static_cast<unsigned>(impl_->threads.size()) + 1; }

void ThreadPool::run(FunctionRef<void(unsigned)> job) { impl_->run(job, true); }

// Each worker begins with a range of its own and goes through it in order, so that it reads memory in one
// stream; one that has none left takes the back half of another's.
void ThreadPool::for_each(size_t count, size_t grain, FunctionRef<void(size_t, size_t)> body) {
  grain = std::max<size_t>(grain, 1);
  const size_t pieces = count / grain + (count % grain != 0 ? 1 : 0);
  if (size() == 1 || pieces <= 1 || pieces > Range::kMost) {
    if (count > 0) {
      body(0, count);
    }
    return;
  }
  const std::span<Range> ranges(impl_->ranges);
  for (size_t worker = 0; worker < ranges.size(); ++worker) {
    ranges[worker].set(pieces * worker / ranges.size(), pieces * (worker + 1) / ranges.size());
  }
  const auto job = [&](unsigned worker) {
    Range& own = ranges[worker];
    for (;;) {
      for (auto piece = own.take_first(); piece; piece = own.take_first()) {
        body(*piece * grain, std::min(count, (*piece + 1) * grain));
      }
      size_t victim = 1;
      while (victim < ranges.size() && !own.take_half(ranges[(worker + victim) % ranges.size()])) {
        ++victim;
      }
      if (victim == ranges.size()) {
        return;
      }
    }
  };
  impl_->run(job, false);
}

}  // namespace lily
