#include "base/threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
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

struct ThreadPool::Impl {
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<uint64_t> generation{0};  // counts jobs; a worker runs each once
  std::atomic<unsigned> running{0};     // workers that have not finished the current job
  std::atomic<bool> stop{false};
  const FunctionRef<void(unsigned)>* job = nullptr;
  std::mutex error_mutex;
  std::exception_ptr error;

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

  // Returns false when the pool is stopping.
  bool wait_for(uint64_t seen) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (generation.load(std::memory_order_acquire) != seen) {
        return !stop.load(std::memory_order_acquire);
      }
      pause_cpu();
    }
    std::unique_lock lock(mutex);
    wake.wait(lock, [&] { return generation.load(std::memory_order_acquire) != seen; });
    return !stop.load(std::memory_order_acquire);
  }

  void work(unsigned worker) {
    for (uint64_t seen = 0; wait_for(seen);) {
      ++seen;  // a new job is published only after every worker finished the last, so none is missed
      call(worker);
      running.fetch_sub(1, std::memory_order_release);
    }
  }

  void publish() {
    {
      const std::lock_guard lock(mutex);
      generation.fetch_add(1, std::memory_order_release);
    }
    wake.notify_all();
  }
};

ThreadPool::ThreadPool(unsigned threads) : impl_(std::make_unique<Impl>()) {
  const unsigned count = threads == 0 ? usable_cores() : threads;
  for (unsigned worker = 1; worker < count; ++worker) {
    impl_->threads.emplace_back([impl = impl_.get(), worker] { impl->work(worker); });
  }
}

ThreadPool::~ThreadPool() {
  impl_->stop.store(true, std::memory_order_release);
  impl_->publish();
  for (std::thread& thread : impl_->threads) {
    thread.join();
  }
}

unsigned ThreadPool::size() const { return static_cast<unsigned>(impl_->threads.size()) + 1; }

void ThreadPool::run(FunctionRef<void(unsigned)> job) {
  impl_->job = &job;
  impl_->error = nullptr;
  impl_->running.store(static_cast<unsigned>(impl_->threads.size()), std::memory_order_relaxed);
  if (!impl_->threads.empty()) {
    impl_->publish();
  }
  impl_->call(0);
  for (int spin = 0; impl_->running.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < kSpins) {
      pause_cpu();
    } else {
      std::this_thread::yield();  // more workers than cores: let them finish
    }
  }
  if (impl_->error) {
    std::rethrow_exception(impl_->error);
  }
}

void ThreadPool::for_each(size_t count, size_t grain, FunctionRef<void(size_t, size_t)> body) {
  grain = std::max<size_t>(grain, 1);
  if (size() == 1 || count <= grain) {
    if (count > 0) {
      body(0, count);
    }
    return;
  }
  std::atomic<size_t> next{0};
  run([&](unsigned) {
    for (size_t begin = next.fetch_add(grain); begin < count; begin = next.fetch_add(grain)) {
      body(begin, std::min(count, begin + grain));
    }
  });
}

}  // namespace lily
