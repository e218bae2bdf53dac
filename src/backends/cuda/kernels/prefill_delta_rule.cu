// The delta rule (equations 13 and 15) in chunks. In a chunk that starts with state S, with G_i the sum of g
// up to token i, d_i the change of token i and everything about j <= i:
//   d_i = beta_i (v_i - exp(G_i) S^T k_i - sum_{j<i} exp(G_i - G_j) (k_i.k_j) d_j)
//   o_i = exp(G_i) S^T q_i + sum_{j<=i} exp(G_i - G_j) (q_i.k_j) d_j
//   S  <- exp(G_last) S + sum_j exp(G_last - G_j) k_j d_j^T
// The first line is (I + A) d = beta v - beta exp(G) k S with A strictly lower triangular. prepare_kernel
// finds T = (I + A)^-1 in float32 and from it u = T beta v and w = T beta exp(G) k, for all chunks at once;
// states_kernel goes from chunk to chunk with d = u - w S. Decays are only ever exponentials of differences
// <= 0.
//
// Products are mma.m16n8k16 in bf16. Where an error would stay in the state (T, S, d) the factor is a pair of
// bf16, high part and rest; the other factor is then a value that is stored in bf16 anyway.
#include "backends/cuda/kernels/prefill_delta.cuh"
#include "backends/cuda/kernels/prefill_mma.cuh"

namespace lily::cuda::prefill {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kPanel = kChunk * 128;  // bytes of 64 tokens x 64 values

// Copies [kChunk][128] values of bf16 into two panels; rows from `count` on become zeros.
__device__ __forceinline__ void copy_head(uint32_t to, const uint16_t* from, uint32_t stride,
                                          uint32_t count) {
#pragma unroll
  for (uint32_t i = 0; i < kChunk * 16 / kThreads; ++i) {
    const uint32_t row = threadIdx.x / 16 + i * (kThreads / 16);
    const uint32_t chunk = threadIdx.x % 16;
    const bool valid = row < count;
    copy_async(to + chunk / 8 * kPanel + swizzled(row, chunk % 8),
               from + (valid ? size_t{row} * stride : 0) + chunk * 8, valid);
  }
}

// Address of a 16-byte chunk of a [kChunk][128] matrix in two panels.
__device__ __forceinline__ uint32_t head_chunk(uint32_t base, uint32_t row, uint32_t chunk) {
  return base + chunk / 8 * kPanel + swizzled(row, chunk % 8);
}

// A fragment: rows [16 m, +16) x columns [16 step, +16) of a row-major matrix of tokens.
__device__ __forceinline__ void load_a(uint32_t* a, uint32_t base, uint32_t m, uint32_t step) {
  const uint32_t lane = threadIdx.x % 32;
  load_matrix_x4(a, head_chunk(base, m * 16 + lane % 16, step * 2 + lane / 16));
}

// ---- prepare
// ----------------------------------------------------------------------------------------------------------

constexpr uint32_t kRowFloats =
    72;  // of a 64 x 64 matrix of floats in shared memory: pairs of a warp miss no bank
struct PrepareShared {
  uint8_t q[2 * kPanel];
  uint8_t k[2 * kPanel];
  uint8_t v[2 * kPanel];
  float a[kChunk * kRowFloats];
  float t[kChunk * kRowFloats];
  float rest[3 * 256];  // blocks of 16 x 16 on the way
  float log_decay[kChunk];
  float beta[kChunk];
  float carry;
};

// Equation 13 for the chunk: beta and the running sums of g. Tokens that are not there change nothing.
__device__ __forceinline__ void load_gates(const DeltaArgs& args, const ChunkRows& chunk, uint32_t head,
                                           PrepareShared& shared) {
  const uint32_t heads = args.dims.v_heads;
  float g = 0;
  if (threadIdx.x < kChunk) {
    float beta = 0;
    if (threadIdx.x < chunk.count) {
      const float* gates = args.gates + size_t{chunk.row + threadIdx.x} * 2 * heads + head;
      const float x = gates[0] + args.dt_bias[head];
      g = -args.decay_rate[head] * (x > 20.0F ? x : log1pf(expf(x)));
      beta = 1.0F / (1.0F + expf(-gates[heads]));
    }
#pragma unroll
    for (uint32_t offset = 1; offset < 32; offset *= 2) {
      const float other = __shfl_up_sync(0xFFFFFFFFU, g, offset);
      g += threadIdx.x % 32 >= offset ? other : 0;
    }
    if (threadIdx.x == 31) {
      shared.carry = g;
    }
    shared.beta[threadIdx.x] = beta;
  }
  __syncthreads();
  if (threadIdx.x < kChunk) {
    g += threadIdx.x >= 32 ? shared.carry : 0;
    shared.log_decay[threadIdx.x] = g;
    if (threadIdx.x < chunk.count) {
      args.log_decays[size_t{chunk.row + threadIdx.x} * heads + head] = g;
    }
  }
  __syncthreads();
}

// A in shared memory, and the scores. Warp w has rows [16 (w % 4), +16) and columns [32 (w / 4), +32).
__device__ __forceinline__ void multiply_keys(const DeltaArgs& args, const ChunkRows& chunk, uint32_t head,
                                              PrepareShared& shared) {
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t m = warp % 4;
  const uint32_t n = warp / 4;
  const uint32_t keys = shared_address(shared.k);
  const uint32_t queries = shared_address(shared.q);
  float kk[4][4] = {};
  float qk[4][4] = {};
#pragma unroll
  for (uint32_t step = 0; step < 8; ++step) {
    uint32_t ka[4];
    uint32_t qa[4];
    load_a(ka, keys, m, step);
    load_a(qa, queries, m, step);
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      uint32_t b[4];
      const uint32_t row = n * 32 + j * 16 + lane % 8 + lane / 16 * 8;
      load_matrix_x4(b, head_chunk(keys, row, step * 2 + lane / 8 % 2));
      mma(kk[2 * j], ka, b[0], b[1]);
      mma(kk[2 * j + 1], ka, b[2], b[3]);
      mma(qk[2 * j], qa, b[0], b[1]);
      mma(qk[2 * j + 1], qa, b[2], b[3]);
    }
  }
  uint16_t* scores = args.scores + (size_t{chunk.row} * args.dims.v_heads + head) * kChunk;
#pragma unroll
  for (uint32_t j = 0; j < 4; ++j) {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t row = m * 16 + half * 8 + lane / 4;
      const uint32_t column = n * 32 + j * 8 + lane % 4 * 2;
      float score[2];
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        const float decay = __expf(shared.log_decay[row] - shared.log_decay[min(row, column + i)]);
        shared.a[row * kRowFloats + column + i] =
            column + i < row ? shared.beta[row] * decay * kk[j][2 * half + i] : 0;
        score[i] = column + i <= row ? decay * qk[j][2 * half + i] : 0;
      }
      if (row < chunk.count) {
        *reinterpret_cast<uint32_t*>(scores + size_t{row} * args.dims.v_heads * kChunk + column) =
            pack_bf16(score[0], score[1]);
      }
    }
  }
}

// t = (I + a)^-1 in float32. First the four blocks of 16 x 16 on the diagonal, one thread a column; then the
// blocks at distance 1, 2, 3 from it: t_ij = -t_ii sum_{j<=m<i} a_im t_mj.
__device__ void invert(PrepareShared& shared) {
  for (uint32_t i = threadIdx.x; i < kChunk * kRowFloats; i += kThreads) {
    shared.t[i] = 0;
  }
  __syncthreads();
  if (threadIdx.x < kChunk) {
    const uint32_t first = threadIdx.x / 16 * 16;
    const uint32_t column = threadIdx.x % 16;
    float x[16];
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i) {
      float sum = i == column ? 1.0F : 0.0F;
#pragma unroll
      for (uint32_t j = 0; j < i; ++j) {
        sum -= shared.a[(first + i) * kRowFloats + first + j] * x[j];
      }
      x[i] = i < column ? 0.0F : sum;
      shared.t[(first + i) * kRowFloats + threadIdx.x] = x[i];
    }
  }
  __syncthreads();
  const uint32_t row = threadIdx.x / 16;
  const uint32_t column = threadIdx.x % 16;
#pragma unroll
  for (uint32_t distance = 1; distance < 4; ++distance) {
#pragma unroll
    for (uint32_t block = 0; block < 4 - distance; ++block) {
      const float* a = shared.a + ((block + distance) * 16 + row) * kRowFloats + block * 16;
      const float* t = shared.t + block * 16 * kRowFloats + block * 16 + column;
      float sum = 0;
#pragma unroll 16
      for (uint32_t i = 0; i < distance * 16; ++i) {
        sum += a[i] * t[i * kRowFloats];
      }
      shared.rest[block * 256 + threadIdx.x] = sum;
    }
    __syncthreads();
#pragma unroll
    for (uint32_t block = 0; block < 4 - distance; ++block) {
      const uint32_t at = ((block + distance) * 16 + row) * kRowFloats;
      const float* t = shared.t + at + (block + distance) * 16;
      float sum = 0;
#pragma unroll
      for (uint32_t i = 0; i < 16; ++i) {
        sum += t[i] * shared.rest[block * 256 + i * 16 + column];
      }
      shared.t[at + block * 16 + column] = -sum;
    }
    __syncthreads();
  }
}

// u (warps 0 to 3) or w (4 to 7), 16 tokens a warp: t times the rows of v or k, columns of t scaled first.
__device__ __forceinline__ void apply_inverse(const DeltaArgs& args, const ChunkRows& chunk, uint32_t head,
                                              PrepareShared& shared) {
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t m = warp % 4;
  const bool keys = warp >= 4;
  const uint32_t rows = shared_address(keys ? shared.k : shared.v);
  float sums[16][4] = {};
  for (uint32_t step = 0; step <= m; ++step) {
    uint32_t high[4];
    uint32_t rest[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t row = m * 16 + lane / 4 + i % 2 * 8;
      const uint32_t column = step * 16 + lane % 4 * 2 + i / 2 * 8;
      const float2 t = *reinterpret_cast<const float2*>(shared.t + row * kRowFloats + column);
      const float x = shared.beta[column] * (keys ? __expf(shared.log_decay[column]) : 1.0F);
      const float y = shared.beta[column + 1] * (keys ? __expf(shared.log_decay[column + 1]) : 1.0F);
      split_bf16(t.x * x, t.y * y, high[i], rest[i]);
    }
#pragma unroll
    for (uint32_t n = 0; n < 8; ++n) {
      uint32_t b[4];
      load_matrix_x4_transposed(b, head_chunk(rows, step * 16 + lane % 16, n * 2 + lane / 16));
      mma(sums[2 * n], rest, b[0], b[1]);
      mma(sums[2 * n], high, b[0], b[1]);
      mma(sums[2 * n + 1], rest, b[2], b[3]);
      mma(sums[2 * n + 1], high, b[2], b[3]);
    }
  }
  const uint32_t width = value_width(args.dims);
  uint16_t* to = (keys ? args.w : args.u) + size_t{chunk.row} * width + head * kDeltaDim + lane % 4 * 2;
#pragma unroll
  for (uint32_t n = 0; n < 16; ++n) {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t row = m * 16 + lane / 4 + half * 8;
      if (row < chunk.count) {
        *reinterpret_cast<uint32_t*>(to + size_t{row} * width + n * 8) =
            pack_bf16(sums[n][2 * half], sums[n][2 * half + 1]);
      }
    }
  }
}

// One block a chunk and value head.
__global__ void __launch_bounds__(kThreads) prepare_kernel(const DeltaArgs args) {
  extern __shared__ __align__(1024) uint8_t memory[];
  PrepareShared& shared = *reinterpret_cast<PrepareShared*>(memory);
  const ChunkRows chunk = find_chunk(args, blockIdx.x);
  const uint32_t head = blockIdx.y;
  const uint32_t key_head = head / (args.dims.v_heads / args.dims.k_heads);
  const uint32_t key_width = args.dims.k_heads * kDeltaDim;
  const size_t keys_at = size_t{chunk.row} * key_width + key_head * kDeltaDim;
  copy_head(shared_address(shared.q), args.q + keys_at, key_width, chunk.count);
  copy_head(shared_address(shared.k), args.k + keys_at, key_width, chunk.count);
  copy_head(shared_address(shared.v), args.v + size_t{chunk.row} * value_width(args.dims) + head * kDeltaDim,
            value_width(args.dims), chunk.count);
  copy_commit();
  load_gates(args, chunk, head, shared);
  copy_wait<0>();
  __syncthreads();
  multiply_keys(args, chunk, head, shared);
  __syncthreads();
  invert(shared);
  apply_inverse(args, chunk, head, shared);
}

// ---- states
// -----------------------------------------------------------------------------------------------------------

constexpr uint32_t kStrip = 32;                   // value columns of a block
constexpr uint32_t kStripRow = kStrip * 2;        // bytes
constexpr uint32_t kStrips = kDeltaDim / kStrip;  // of a head

struct StateStage {
  uint8_t w[2 * kPanel];
  uint8_t q[2 * kPanel];
  uint8_t k[2 * kPanel];
  uint8_t scores[kPanel];
  uint8_t u[kChunk * kStripRow];
  float log_decay[kChunk];
  uint8_t pad[1024 - kChunk * 4];
};
// Matrices of kStrip columns, as B operands.
struct StateShared {
  uint8_t state[2][kDeltaDim * kStripRow];  // high parts and rests of S
  uint8_t changes[kChunk * kStripRow];      // d
  uint8_t kept[2][kChunk * kStripRow];      // exp(G_last - G) d, high parts and rests
};

// Address of 16-byte chunk `chunk` (0..3) of a row of kStrip values: rows of 64 bytes, free of bank
// conflicts.
__device__ __forceinline__ uint32_t strip_chunk(uint32_t base, uint32_t row, uint32_t chunk) {
  return base + row * kStripRow + ((chunk ^ (row / 2 % 4)) << 4);
}

struct StateBlock {
  uint32_t head;
  uint32_t key_head;
  uint32_t column;  // first of the strip, within the head
};

__device__ __forceinline__ void copy_stage(const DeltaArgs& args, const ChunkRows& chunk,
                                           const StateBlock& block, StateStage& stage) {
  const uint32_t key_width = args.dims.k_heads * kDeltaDim;
  const uint32_t width = value_width(args.dims);
  const size_t keys_at = size_t{chunk.row} * key_width + block.key_head * kDeltaDim;
  const size_t values_at = size_t{chunk.row} * width + block.head * kDeltaDim;
  const uint16_t* scores = args.scores + (size_t{chunk.row} * args.dims.v_heads + block.head) * kChunk;
  copy_head(shared_address(stage.w), args.w + values_at, width, chunk.count);
  copy_head(shared_address(stage.q), args.q + keys_at, key_width, chunk.count);
  copy_head(shared_address(stage.k), args.k + keys_at, key_width, chunk.count);
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t row = threadIdx.x / 8 + i * 32;
    const bool valid = row < chunk.count;
    copy_async(shared_address(stage.scores) + swizzled(row, threadIdx.x % 8),
               scores + (valid ? size_t{row} * args.dims.v_heads * kChunk : 0) + threadIdx.x % 8 * 8, valid);
  }
  const uint32_t row = threadIdx.x / 4;
  const bool valid = row < chunk.count;
  copy_async(strip_chunk(shared_address(stage.u), row, threadIdx.x % 4),
             args.u + values_at + (valid ? size_t{row} * width : 0) + block.column + threadIdx.x % 4 * 8,
             valid);
  if (threadIdx.x < kChunk) {  // tokens that are not there: g is 0
    copy_word_async(shared_address(stage.log_decay) + threadIdx.x * 4,
                    args.log_decays +
                        size_t{chunk.row + min(threadIdx.x, chunk.count - 1)} * args.dims.v_heads +
                        block.head);
  }
  copy_commit();
}

// Writes a pair of neighbouring columns of a strip.
__device__ __forceinline__ void store_strip(uint32_t base, uint32_t row, uint32_t column, uint32_t pair) {
  const uint32_t at = strip_chunk(base, row, column / 8) + column % 8 * 2;
  asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(at), "r"(pair) : "memory");
}
__device__ __forceinline__ uint32_t load_strip(uint32_t base, uint32_t row, uint32_t column) {
  uint32_t pair;
  asm volatile("ld.shared.b32 %0, [%1];\n"
               : "=r"(pair)
               : "r"(strip_chunk(base, row, column / 8) + column % 8 * 2)
               : "memory");
  return pair;
}

// B fragments of 16 rows and 16 columns of a strip.
__device__ __forceinline__ void load_strip_b(uint32_t* b, uint32_t base, uint32_t step, uint32_t half) {
  const uint32_t lane = threadIdx.x % 32;
  load_matrix_x4_transposed(b, strip_chunk(base, step * 16 + lane % 16, half * 2 + lane / 16));
}

// A warp's part of the state: rows (keys) [16 warp, +16), all columns of the strip.
using StatePart = float[kStrip / 8][4];

// d and S^T q of 16 tokens x 16 columns; d goes to shared memory, `out` is exp(G) S^T q.
__device__ __forceinline__ void find_changes(const StateStage& stage, StateShared& shared,
                                             float (&out)[2][4]) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t m = threadIdx.x / 32 % 4;
  const uint32_t half = threadIdx.x / 128;
  float ws[2][4] = {};
#pragma unroll
  for (uint32_t step = 0; step < kDeltaDim / 16; ++step) {
    uint32_t w[4];
    uint32_t q[4];
    uint32_t high[4];
    uint32_t rest[4];
    load_a(w, shared_address(stage.w), m, step);
    load_a(q, shared_address(stage.q), m, step);
    load_strip_b(high, shared_address(shared.state[0]), step, half);
    load_strip_b(rest, shared_address(shared.state[1]), step, half);
#pragma unroll
    for (uint32_t n = 0; n < 2; ++n) {
      mma(ws[n], w, rest[2 * n], rest[2 * n + 1]);
      mma(ws[n], w, high[2 * n], high[2 * n + 1]);
      mma(out[n], q, high[2 * n], high[2 * n + 1]);
    }
  }
  const float last = stage.log_decay[kChunk - 1];
#pragma unroll
  for (uint32_t row_half = 0; row_half < 2; ++row_half) {
    const uint32_t row = m * 16 + row_half * 8 + lane / 4;
    const float log_decay = stage.log_decay[row];
    const float from_start = __expf(log_decay);
    const float to_end = __expf(last - log_decay);
#pragma unroll
    for (uint32_t n = 0; n < 2; ++n) {
      const uint32_t column = half * 16 + n * 8 + lane % 4 * 2;
      const uint32_t u = load_strip(shared_address(stage.u), row, column);
      const float x = low_bf16(u) - ws[n][2 * row_half];
      const float y = high_bf16(u) - ws[n][2 * row_half + 1];
      uint32_t high;
      uint32_t rest;
      split_bf16(x * to_end, y * to_end, high, rest);
      store_strip(shared_address(shared.changes), row, column, pack_bf16(x, y));
      store_strip(shared_address(shared.kept[0]), row, column, high);
      store_strip(shared_address(shared.kept[1]), row, column, rest);
      out[n][2 * row_half] *= from_start;
      out[n][2 * row_half + 1] *= from_start;
    }
  }
}

// out += scores d, and the store of it.
__device__ __forceinline__ void finish_out(const StateStage& stage, const StateShared& shared,
                                           float (&out)[2][4], uint16_t* to, uint32_t width, uint32_t count) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t m = threadIdx.x / 32 % 4;
  const uint32_t half = threadIdx.x / 128;
  for (uint32_t step = 0; step <= m; ++step) {
    uint32_t a[4];
    uint32_t b[4];
    load_matrix_x4(a, shared_address(stage.scores) + swizzled(m * 16 + lane % 16, step * 2 + lane / 16));
    load_strip_b(b, shared_address(shared.changes), step, half);
    mma(out[0], a, b[0], b[1]);
    mma(out[1], a, b[2], b[3]);
  }
#pragma unroll
  for (uint32_t row_half = 0; row_half < 2; ++row_half) {
    const uint32_t row = m * 16 + row_half * 8 + lane / 4;
    if (row < count) {
#pragma unroll
      for (uint32_t n = 0; n < 2; ++n) {
        *reinterpret_cast<uint32_t*>(to + size_t{row} * width + half * 16 + n * 8 + lane % 4 * 2) =
            pack_bf16(out[n][2 * row_half], out[n][2 * row_half + 1]);
      }
    }
  }
}

// S <- exp(G_last) S + k^T kept.
__device__ __forceinline__ void advance(const StateStage& stage, const StateShared& shared,
                                        StatePart& state) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  const float decay = __expf(stage.log_decay[kChunk - 1]);
#pragma unroll
  for (uint32_t n = 0; n < kStrip / 8; ++n) {
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      state[n][i] *= decay;
    }
  }
#pragma unroll
  for (uint32_t step = 0; step < kChunk / 16; ++step) {
    uint32_t a[4];  // keys as rows: k transposed
    load_matrix_x4_transposed(a, head_chunk(shared_address(stage.k), step * 16 + lane % 8 + lane / 16 * 8,
                                            warp * 2 + lane / 8 % 2));
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      uint32_t high[4];
      uint32_t rest[4];
      load_strip_b(high, shared_address(shared.kept[0]), step, half);
      load_strip_b(rest, shared_address(shared.kept[1]), step, half);
#pragma unroll
      for (uint32_t n = 0; n < 2; ++n) {
        mma(state[2 * half + n], a, rest[2 * n], rest[2 * n + 1]);
        mma(state[2 * half + n], a, high[2 * n], high[2 * n + 1]);
      }
    }
  }
}

__device__ __forceinline__ void publish_state(StateShared& shared, const StatePart& state) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t n = 0; n < kStrip / 8; ++n) {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t row = threadIdx.x / 32 * 16 + half * 8 + lane / 4;
      uint32_t high;
      uint32_t rest;
      split_bf16(state[n][2 * half], state[n][2 * half + 1], high, rest);
      store_strip(shared_address(shared.state[0]), row, n * 8 + lane % 4 * 2, high);
      store_strip(shared_address(shared.state[1]), row, n * 8 + lane % 4 * 2, rest);
    }
  }
}

// A lane's pairs of the state in memory: calls move(address of the pair, its two registers).
template <typename Move>
__device__ __forceinline__ void for_each_state_pair(float* delta, StatePart& state, const Move& move) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t n = 0; n < kStrip / 8; ++n) {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t row = threadIdx.x / 32 * 16 + half * 8 + lane / 4;
      move(reinterpret_cast<float2*>(delta + row * kDeltaDim + n * 8 + lane % 4 * 2), state[n][2 * half],
           state[n][2 * half + 1]);
    }
  }
}

// One block a strip of a head of a sequence, through all its chunks. kStages: chunks in shared memory.
template <uint32_t kStages>
__global__ void __launch_bounds__(kThreads) states_kernel(const DeltaArgs args) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto* stages = reinterpret_cast<StateStage*>(memory);
  StateShared& shared = *reinterpret_cast<StateShared*>(memory + kStages * sizeof(StateStage));
  const uint32_t head = blockIdx.x / kStrips;
  const StateBlock block{head, head / (args.dims.v_heads / args.dims.k_heads), blockIdx.x % kStrips * kStrip};
  const Segment segment = args.segments[blockIdx.y];
  float* delta = layer_state(args, segment) + size_t{head} * kDeltaDim * kDeltaDim + block.column;
  StatePart state;
  for_each_state_pair(delta, state, [](const float2* at, float& x, float& y) {
    x = at->x;
    y = at->y;
  });
  const uint32_t chunks = chunks_of(segment);
  const uint32_t width = value_width(args.dims);
  copy_stage(args, chunk_of(segment, blockIdx.y, 0), block, stages[0]);
  for (uint32_t index = 0; index < chunks; ++index) {
    StateStage& stage = stages[index % kStages];
    const ChunkRows chunk = chunk_of(segment, blockIdx.y, index);
    publish_state(shared, state);
    copy_wait<0>();
    __syncthreads();  // the chunk and the state are there, and all have finished the chunk before
    if (kStages > 1 && index + 1 < chunks) {
      copy_stage(args, chunk_of(segment, blockIdx.y, index + 1), block, stages[(index + 1) % kStages]);
    }
    float out[2][4] = {};
    find_changes(stage, shared, out);
    __syncthreads();
    finish_out(stage, shared, out, args.out + size_t{chunk.row} * width + head * kDeltaDim + block.column,
               width, chunk.count);
    advance(stage, shared, state);
    if (kStages == 1 && index + 1 < chunks) {
      __syncthreads();
      copy_stage(args, chunk_of(segment, blockIdx.y, index + 1), block, stages[0]);
    }
  }
  for_each_state_pair(delta, state, [](float2* at, float x, float y) { *at = {x, y}; });
}

template <uint32_t kStages>
void launch_states(const DeltaArgs& args, Device device) {
  constexpr int kShared = kStages * sizeof(StateStage) + sizeof(StateShared);
  const dim3 grid(args.dims.v_heads * kStrips, args.segment_count);
  cudaFuncSetAttribute(states_kernel<kStages>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  states_kernel<kStages><<<grid, kThreads, kShared, device.queue>>>(args);
}

}  // namespace

void delta_prepare(const DeltaArgs& args, Device device) {
  constexpr int kShared = sizeof(PrepareShared);
  cudaFuncSetAttribute(prepare_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  prepare_kernel<<<dim3(args.chunks, args.dims.v_heads), kThreads, kShared, device.queue>>>(args);
}

void delta_pass_states(const DeltaArgs& args, Device device) {
  if (device.shared_bytes >= 2 * sizeof(StateStage) + sizeof(StateShared)) {
    launch_states<2>(args, device);
  } else {
    launch_states<1>(args, device);
  }
}

}  // namespace lily::cuda::prefill
