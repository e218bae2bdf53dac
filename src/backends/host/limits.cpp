#include "backends/host/limits.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/aligned.h"

namespace lily::host {
namespace {

constexpr int kRuns = 8;
constexpr size_t kLeastBytes = size_t{1} << 30;
constexpr size_t kGrainWords = size_t{1} << 17;  // 1 MiB: handed out like the pieces of a product
constexpr double kLeastSeconds = 0.02;           // of one run of multiply-adds

double seconds_of(FunctionRef<void()> work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

size_t block_bytes() {
#if defined(_SC_LEVEL3_CACHE_SIZE)
  const long cache = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  return std::max(kLeastBytes, cache > 0 ? 4 * static_cast<size_t>(cache) : 0);
#else
  return kLeastBytes;
#endif
}

// Eight independent sums: plain enough for a compiler to make full-width loads of, on any target.
uint64_t sum_of(const uint64_t* words, size_t count) {
  uint64_t sum[8] = {};
  for (size_t i = 0; i < count; i += 8) {
    for (size_t j = 0; j < 8; ++j) {
      sum[j] += words[i + j];
    }
  }
  return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

}  // namespace

Result<double> measure_read_bandwidth(ThreadPool& pool) {
  const size_t words = block_bytes() / sizeof(uint64_t) / kGrainWords * kGrainWords;
  LILY_TRY(auto block, AlignedArray<uint64_t>::allocate(words));
  // Written by the threads that will read: pages of their own, and near them.
  pool.for_each(words, kGrainWords, [&](size_t begin, size_t end) {
    std::fill(block.data() + begin, block.data() + end, uint64_t{1});
  });
  double best = 0;
  std::atomic<uint64_t> total{0};
  for (int run = 0; run < kRuns; ++run) {
    const double seconds = seconds_of([&] {
      pool.for_each(words, kGrainWords, [&](size_t begin, size_t end) {
        total.fetch_add(sum_of(block.data() + begin, end - begin), std::memory_order_relaxed);
      });
    });
    best = std::max(best, static_cast<double>(words * sizeof(uint64_t)) / seconds);
  }
  if (total != kRuns * words) {
    return fail(ErrorKind::internal, "measuring the read bandwidth: expected a sum of {}, found {}",
                kRuns * words, total.load());
  }
  return best;
}

double measure_multiply_adds(ThreadPool& pool, FunctionRef<uint64_t(uint64_t)> work) {
  double best = 0;
  uint64_t rounds = uint64_t{1} << 12;
  for (int runs = 0; runs < kRuns;) {
    std::atomic<uint64_t> done{0};
    const double seconds = seconds_of(
        [&] { pool.run([&](unsigned) { done.fetch_add(work(rounds), std::memory_order_relaxed); }); });
    if (seconds < kLeastSeconds) {
      rounds *= 2;
    } else {
      best = std::max(best, static_cast<double>(done.load()) / seconds);
      ++runs;
    }
  }
  return best;
}

}  // namespace lily::host
