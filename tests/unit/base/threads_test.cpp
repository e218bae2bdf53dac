#include "base/threads.h"

#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace lily {
namespace {

TEST(ThreadPool, RunsEachWorkerOnceForManyJobs) {
  for (const unsigned threads : {1U, 2U, 5U}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.size(), threads);
    std::vector<std::atomic<int>> calls(threads);
    for (int job = 0; job < 300; ++job) {
      pool.run([&](unsigned worker) { calls[worker].fetch_add(1, std::memory_order_relaxed); });
    }
    for (const auto& count : calls) {
      EXPECT_EQ(count.load(), 300);
    }
  }
}

TEST(ThreadPool, WakesAfterSleeping) {
  ThreadPool pool(3);
  std::atomic<int> calls{0};
  for (int job = 0; job < 5; ++job) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    pool.run([&](unsigned) { ++calls; });
  }
  EXPECT_EQ(calls.load(), 15);
}

TEST(ThreadPool, ForEachCoversTheRangeOnce) {
  ThreadPool pool(4);
  for (const size_t count : {0UL, 1UL, 7UL, 64UL, 1001UL}) {
    std::vector<std::atomic<int>> seen(count);
    pool.for_each(count, 8, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        seen[i].fetch_add(1);
      }
    });
    for (const auto& times : seen) {
      EXPECT_EQ(times.load(), 1);
    }
  }
}

// Workers that are done take from those that are not: the first pieces are slow, and all of one worker's.
TEST(ThreadPool, ForEachSharesUnevenWork) {
  ThreadPool pool(3);
  for (int job = 0; job < 50; ++job) {
    std::vector<std::atomic<int>> seen(300);
    pool.for_each(seen.size(), 1, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        if (i < 20) {
          std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
        seen[i].fetch_add(1);
      }
    });
    for (const auto& times : seen) {
      ASSERT_EQ(times.load(), 1);
    }
  }
}

TEST(ThreadPool, RethrowsAndStaysUsable) {
  ThreadPool pool(3);
  EXPECT_THROW(pool.run([](unsigned worker) {
    if (worker == 2) {
      throw std::runtime_error("planted");
    }
  }),
               std::runtime_error);
  std::atomic<int> calls{0};
  pool.run([&](unsigned) { ++calls; });
  EXPECT_EQ(calls.load(), 3);
}

double process_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

TEST(ThreadPool, UsesNoCpuWhenIdle) {
  ThreadPool pool(2);
  pool.run([](unsigned) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // let it fall asleep
  const double before = process_cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(process_cpu_seconds() - before, 0.1);  // a spinning worker would use 0.2
}

}  // namespace
}  // namespace lily
