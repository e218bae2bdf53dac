// The sampler of sampling/sampler.h. adjust_kernel changes the logits and finds the largest of every slice of
// a row; choose_kernel, one block a row, decides. Candidates are looked at in descending order, a block of
// them at a time: a radix selection finds the next few hundred, shared memory sorts them.
#include "backends/cuda/kernels/common.cuh"
#include "backends/cuda/kernels/sample.h"

namespace lily::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kChooseThreads = 1024;
constexpr uint32_t kBlock = 2048;       // most candidates of a block
constexpr uint32_t kFirstPrefix = 256;  // least of a block where top_k does not say
constexpr uint32_t kNone = 0xffffffffu;

__device__ __forceinline__ bool in_bits(const uint32_t* bits, uint32_t token) {
  return (bits[token / 32] >> (token % 32) & 1) != 0;
}

struct Best {
  float value;
  int32_t id;
  uint32_t usable;
};
__device__ __forceinline__ Best better(Best a, Best b) {
  const bool second = b.id >= 0 && (a.id < 0 || b.value > a.value || (b.value == a.value && b.id < a.id));
  return {second ? b.value : a.value, second ? b.id : a.id, a.usable & b.usable};
}
// The best of all threads, in thread 0.
__device__ Best best_of_block(Best mine, Best* scratch) {
  const auto reduce = [](Best b) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      b = better(b, {__shfl_xor_sync(kAll, b.value, offset), __shfl_xor_sync(kAll, b.id, offset),
                     __shfl_xor_sync(kAll, b.usable, offset)});
    }
    return b;
  };
  mine = reduce(mine);
  if (threadIdx.x % 32 == 0) {
    scratch[threadIdx.x / 32] = mine;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    mine = reduce(threadIdx.x < blockDim.x / 32 ? scratch[threadIdx.x] : Best{-INFINITY, -1, 1});
  }
  return mine;
}

// Bias, penalties and mask of one token, in the order of the specification.
__device__ __forceinline__ float adjusted_logit(const SampleRow& row, const SampleArgs& a, uint32_t token,
                                                float x) {
  if (row.repetition != 1.0f && (in_bits(row.prompt_bits, token) || load_l2(row.counts + token) != 0)) {
    x = x > 0 ? __fdiv_rn(x, row.repetition) : __fmul_rn(x, row.repetition);
  }
  if (row.frequency != 0 || row.presence != 0) {
    if (const uint32_t count = load_l2(row.counts + token); count != 0) {
      x = __fsub_rn(x, __fmul_rn(row.frequency, static_cast<float>(count)));
      x = __fsub_rn(x, row.presence);
    }
  }
  if (row.allowed != kNone && !in_bits(a.allowed + row.allowed, token)) {
    x = -INFINITY;
  }
  return x;
}

__global__ void __launch_bounds__(kThreads) adjust_kernel(SampleArgs a) {
  __shared__ float slice[kSliceTokens];
  __shared__ Best scratch[kThreads / 32];
  wait_for_predecessors();
  start_successors();
  const SampleRow row = a.table[blockIdx.y];
  const uint32_t first = blockIdx.x * kSliceTokens;
  const uint32_t count = min(kSliceTokens, a.vocab - first);
  Best best{-INFINITY, -1, 1};
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const float x = load_l2(a.logits + size_t{row.logits_row} * a.vocab + first + i);
    best.usable &= isfinite(x) ? 1 : 0;
    slice[i] = x;
  }
  if (row.bias_count != 0) {
    __syncthreads();
    if (threadIdx.x == 0) {  // in order: a token may be there twice
      for (uint32_t i = 0; i < row.bias_count; ++i) {
        const BiasEntry entry = a.bias[row.first_bias + i];
        if (static_cast<uint32_t>(entry.token) - first < count) {
          slice[entry.token - first] = __fadd_rn(slice[entry.token - first], entry.bias);
        }
      }
    }
    __syncthreads();
  }
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const float x = row.mode == 0 ? slice[i] : adjusted_logit(row, a, first + i, slice[i]);
    best.usable &= isnan(x) || x == INFINITY ? 0 : 1;
    if (x > best.value) {
      best.value = x;
      best.id = static_cast<int32_t>(first + i);
    }
    if (row.mode == 2) {
      a.adjusted[size_t{blockIdx.y} * a.vocab + first + i] = __fdiv_rn(x, row.temperature);
    }
  }
  best = best_of_block(best, scratch);
  if (threadIdx.x == 0) {
    a.best[size_t{blockIdx.y} * gridDim.x + blockIdx.x] = {best.value, best.id, best.usable, 0};
  }
}

// ---- The draw -------------------------------------------------------------------------------------------
struct Choosing {
  uint64_t keys[kBlock];  // of the block, descending: ordered logit, then the complement of the id
  double weights[kBlock];
  uint32_t histogram[256];
  uint32_t count;  // candidates in the block
  uint64_t threshold;
  double partial[kChooseThreads / 32];
  double total, mass, sum;
  uint32_t rank, kept;
  int32_t token;
  uint32_t done;
};

__device__ __forceinline__ uint64_t key_of(float x, uint32_t id) {
  const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));  // -0 is 0
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | (0xffffffffu - id);
}
__device__ __forceinline__ float logit_of(uint64_t key) {
  const uint32_t ordered = static_cast<uint32_t>(key >> 32);
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}
__device__ __forceinline__ int32_t token_of(uint64_t key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

// Sets `threshold` so that at least `least` keys below `below`, but at most kBlock, are not under it; or to 0
// where there are no more than kBlock of them.
__device__ void select(Choosing& c, const float* logits, uint32_t vocab, uint64_t below, uint32_t least) {
  uint64_t prefix = 0;
  uint32_t above = 0;  // keys over the prefix
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (uint32_t i = threadIdx.x; i < 256; i += blockDim.x) {
      c.histogram[i] = 0;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < vocab; i += blockDim.x) {
      const uint64_t key = key_of(logits[i], i);
      if (key < below && (shift == 56 || key >> (shift + 8) == prefix >> (shift + 8))) {
        atomicAdd(&c.histogram[key >> shift & 255], 1u);
      }
    }
    __syncthreads();
    uint32_t digit = 255;  // every thread walks the same way
    uint32_t sum = above;
    while (digit > 0 && sum + c.histogram[digit] < least) {
      sum += c.histogram[digit--];
    }
    prefix |= static_cast<uint64_t>(digit) << shift;
    const bool fits = sum + c.histogram[digit] <= kBlock;
    above = sum;
    __syncthreads();
    if (fits) {
      break;
    }
  }
  if (threadIdx.x == 0) {
    c.threshold = prefix;
  }
  __syncthreads();
}

__device__ void sort_descending(Choosing& c) {
  uint32_t size = 2;
  while (size < c.count) {
    size *= 2;
  }
  for (uint32_t i = c.count + threadIdx.x; i < size; i += blockDim.x) {
    c.keys[i] = 0;
  }
  __syncthreads();
  for (uint32_t run = 2; run <= size; run *= 2) {
    for (uint32_t step = run / 2; step > 0; step /= 2) {
      for (uint32_t i = threadIdx.x; i < size / 2; i += blockDim.x) {
        const uint32_t low = 2 * i - (i & (step - 1));
        const uint32_t high = low + step;
        const bool descending = (low & run) == 0;
        const uint64_t a = c.keys[low];
        const uint64_t b = c.keys[high];
        if ((a < b) == descending) {
          c.keys[low] = b;
          c.keys[high] = a;
        }
      }
      __syncthreads();
    }
  }
}

// The next block of candidates below `below`, with their weights; c.count is 0 where there are none left.
__device__ void next_block(Choosing& c, const float* logits, uint32_t vocab, uint64_t below, uint32_t least,
                           float largest) {
  select(c, logits, vocab, below, least);
  if (threadIdx.x == 0) {
    c.count = 0;
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < vocab; i += blockDim.x) {
    const uint64_t key = key_of(logits[i], i);
    if (key < below && key >= c.threshold) {
      const uint32_t at = atomicAdd(&c.count, 1u);
      if (at < kBlock) {
        c.keys[at] = key;
      }
    }
  }
  __syncthreads();
  sort_descending(c);
  for (uint32_t i = threadIdx.x; i < c.count; i += blockDim.x) {
    c.weights[i] = exp(static_cast<double>(logit_of(c.keys[i])) - static_cast<double>(largest));
  }
  __syncthreads();
}

__device__ double sum_of_row(Choosing& c, const float* logits, uint32_t vocab, float largest) {
  double sum = 0;
  for (uint32_t i = threadIdx.x; i < vocab; i += blockDim.x) {
    sum += exp(static_cast<double>(logits[i]) - static_cast<double>(largest));
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(kAll, sum, offset);
  }
  if (threadIdx.x % 32 == 0) {
    c.partial[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  sum = 0;
  for (uint32_t w = 0; w < blockDim.x / 32; ++w) {
    sum += c.partial[w];
  }
  __syncthreads();
  return sum;
}

enum class Walk { total, keep, draw };

// One block of a walk over the candidates, by thread 0.
__device__ void walk_block(Choosing& c, Walk walk, const SampleRow& row, uint32_t most, double target) {
  for (uint32_t i = 0; i < c.count; ++i) {
    const double weight = c.weights[i];
    if (c.rank >= most) {
      c.done = 1;
      return;
    }
    if (walk == Walk::keep && c.rank > 0 && (weight < static_cast<double>(row.min_p) || weight == 0)) {
      c.done = 1;
      return;
    }
    if (walk == Walk::draw) {
      if (weight == 0) {
        c.done = 1;
        return;
      }
      c.token = token_of(c.keys[i]);
    }
    c.sum += weight;
    ++c.rank;
    if ((walk == Walk::keep && row.top_p < 1.0f && c.sum >= target) ||
        (walk == Walk::draw && target < c.sum)) {
      c.done = 1;
      return;
    }
  }
}

// What a walk goes over, and how far.
struct Course {
  const SampleRow& row;
  const float* logits;
  uint32_t vocab;
  float largest;
  uint32_t most;
  double target;
};

// Walks over candidates in descending order until the walk says that it is done, at most `most` of them.
// Leaves how many in c.rank and their mass in c.sum. `fresh` says that the first block is already there.
__device__ void walk_all(Choosing& c, Walk walk, const Course& course, bool& fresh) {
  const SampleRow& row = course.row;
  const float* const logits = course.logits;
  const uint32_t vocab = course.vocab;
  const float largest = course.largest;
  const uint32_t most = course.most;
  const double target = course.target;
  const uint32_t least = row.top_k != 0 && row.top_k < kBlock / 2 ? row.top_k : kFirstPrefix;
  if (threadIdx.x == 0) {
    c.rank = 0;
    c.sum = 0;
    c.done = 0;
  }
  __syncthreads();
  uint64_t below = ~uint64_t{0};
  for (bool first = true;; first = false) {
    if (!first || !fresh) {
      next_block(c, logits, vocab, below, least, largest);
      fresh = first;
    }
    if (c.count == 0) {
      break;
    }
    below = c.keys[c.count - 1];
    if (threadIdx.x == 0) {
      walk_block(c, walk, row, most, target);
      if (c.rank >= most) {
        c.done = 1;
      }
    }
    __syncthreads();
    const bool done = c.done != 0;
    __syncthreads();
    if (done) {
      break;
    }
  }
}

// Philox 4x32-10: the first two output words of counter `position` and key `seed`.
__device__ double philox_uniform(uint64_t seed, uint64_t position) {
  uint32_t x[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0};
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * x[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * x[2];
    const uint32_t y[4] = {static_cast<uint32_t>(b >> 32) ^ x[1] ^ key0, static_cast<uint32_t>(b),
                           static_cast<uint32_t>(a >> 32) ^ x[3] ^ key1, static_cast<uint32_t>(a)};
    x[0] = y[0], x[1] = y[1], x[2] = y[2], x[3] = y[3];
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const uint64_t bits = static_cast<uint64_t>(x[0]) << 32 | x[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

__device__ int32_t draw(Choosing& c, const SampleRow& row, const float* logits, uint32_t vocab,
                        int32_t best) {
  const float largest = logits[best];
  if (!isfinite(largest)) {
    return best;
  }
  bool fresh = false;
  uint32_t kept = vocab;
  double mass = 0;
  if (row.top_k != 0 && row.top_k < vocab) {
    kept = row.top_k;
    walk_all(c, Walk::total, {row, logits, vocab, largest, kept, 0}, fresh);
    mass = c.sum;
  } else {
    mass = sum_of_row(c, logits, vocab, largest);
  }
  __syncthreads();
  if (row.top_p < 1.0f || row.min_p > 0) {
    walk_all(c, Walk::keep, {row, logits, vocab, largest, kept, static_cast<double>(row.top_p) * mass},
             fresh);
    kept = c.rank;
    mass = c.sum;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    c.token = best;
  }
  walk_all(c, Walk::draw, {row, logits, vocab, largest, kept, philox_uniform(row.seed, row.position) * mass},
           fresh);
  return c.token;
}

__global__ void __launch_bounds__(kChooseThreads) choose_kernel(SampleArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  Choosing& c = *reinterpret_cast<Choosing*>(shared);
  __shared__ Best scratch[kChooseThreads / 32];
  __shared__ Best all;
  wait_for_predecessors();
  start_successors();
  if (blockIdx.x >= a.rows) {
    if (a.report.to != nullptr && blockIdx.x == a.rows) {
      copy_host(a.report);
    }
    unwrite(a.unwrite, blockIdx.x - a.rows, gridDim.x - a.rows);
    return;
  }
  const SampleRow row = a.table[blockIdx.x];
  const uint32_t slices = slices_of(a.vocab);
  Best best{-INFINITY, -1, 1};
  for (uint32_t i = threadIdx.x; i < slices; i += blockDim.x) {
    const float4 raw = load_l2(reinterpret_cast<const float4*>(a.best + size_t{blockIdx.x} * slices + i));
    best = better(best, {raw.x, static_cast<int32_t>(__float_as_uint(raw.y)), __float_as_uint(raw.z)});
  }
  best = best_of_block(best, scratch);
  if (threadIdx.x == 0) {
    all = best;
  }
  __syncthreads();
  best = all;
  const bool usable = best.usable != 0 && (row.mode == 0 || best.id >= 0);
  int32_t token = row.mode == 0 || !usable ? -1 : best.id;
  if (usable && row.mode == 2) {
    token = draw(c, row, a.adjusted + size_t{blockIdx.x} * a.vocab, a.vocab, best.id);
  }
  if (threadIdx.x == 0) {
    a.tokens[blockIdx.x] = token;
    a.finite[blockIdx.x] = usable ? 1 : 0;
    if (row.mode != 0) {
      *row.sampled = token < 0 ? 0 : token;
      if (token >= 0) {
        row.counts[token] += 1;
      }
    }
  }
}

__global__ void count_kernel(CountArgs a) {
  if (threadIdx.x != 0) {
    return;
  }
  for (uint32_t i = 0; i < a.count; ++i) {
    a.counts[a.tokens[i]] += static_cast<uint32_t>(a.change);
  }
  if (a.sampled != nullptr) {
    a.counts[*a.sampled] += static_cast<uint32_t>(a.change);
  }
}

}  // namespace

int prepare_sample() {
  const int e = prepare_kernel(adjust_kernel, 0);
  return e != 0 ? e : prepare_kernel(choose_kernel, sizeof(Choosing));
}

int launch_count(const CountArgs& args, Stream queue) {
  count_kernel<<<1, 32, 0, queue>>>(args);
  return cudaGetLastError();
}

int launch_sample(const SampleArgs& args, Stream queue) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(slices_of(args.vocab), args.rows);
  config.blockDim = dim3(kThreads);
  config.stream = queue;
  int e = launch_dependent(adjust_kernel, config, args);
  config.gridDim = dim3(args.rows + (args.unwrite.memory != nullptr ? kUnwriteBlocks
                                     : args.report.to != nullptr    ? 1
                                                                    : 0));
  config.blockDim = dim3(kChooseThreads);
  config.dynamicSmemBytes = sizeof(Choosing);
  return e != 0 ? e : launch_dependent(choose_kernel, config, args);
}

}  // namespace lily::cuda
