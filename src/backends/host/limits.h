// The limits of a machine that computes in host memory, measured with the threads of the pool that will
// compute.
#pragma once

#include <cstdint>

#include "base/function_ref.h"
#include "base/result.h"
#include "base/threads.h"

namespace lily::host {

// Bytes per second of reading a block of at least 1 GiB and four times the last-level cache: the best of
// several readings. The block is allocated for it and given back.
Result<double> measure_read_bandwidth(ThreadPool& pool);

// Multiply-adds per second when every thread of the pool does nothing else: the best of several runs.
// `work(rounds)` does an amount of work proportional to `rounds` on the calling thread and returns how many
// multiply-adds it was.
double measure_multiply_adds(ThreadPool& pool, FunctionRef<uint64_t(uint64_t rounds)> work);

}  // namespace lily::host
