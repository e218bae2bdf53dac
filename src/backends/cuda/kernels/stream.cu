// Token ids to the residual stream, the stream to the feed of a product, and the table of rotations.
#include "backends/cuda/kernels/embed.cuh"
#include "backends/cuda/kernels/tiles.cuh"

namespace lily::cuda {
namespace {

// A block has 256 values of a row; hidden is a multiple of that.
constexpr uint32_t kEmbedThreads = 256;
__global__ void __launch_bounds__(kEmbedThreads) embed_kernel(EmbedArgs a) {
  wait_for_predecessors();
  start_successors();
  const uint32_t row = blockIdx.y;
  if (row == 0 && blockIdx.x == 0) {
    for (uint32_t i = threadIdx.x; i < a.clear_count; i += kEmbedThreads) {
      a.clear[i] = 0;
    }
  }
  const uint32_t i = blockIdx.x * kEmbedThreads + threadIdx.x;
  const float value = embedding(a, token_of(a, row), i, a.to.hidden);
  add_to_stream<true>(a.to, row, i, value, true, {0, a.to.next_norm[i]});
}

__global__ void __launch_bounds__(256) unwrite_kernel(UnwriteArgs a) {
  wait_for_predecessors();
  start_successors();
  unwrite(a, blockIdx.x, gridDim.x);
}

__global__ void __launch_bounds__(256) host_copy_kernel(HostCopyArgs a) {
  wait_for_predecessors();
  start_successors();
  copy_host(a);
}

struct PrepareArgs {
  StreamArgs to;
  const uint32_t* rows_of;
};
__global__ void __launch_bounds__(256) feed_kernel(PrepareArgs a) {
  wait_for_predecessors();
  start_successors();
  const uint32_t row = blockIdx.x;
  const uint32_t from = a.rows_of != nullptr ? load_l2(a.rows_of + row) : row;
  for (uint32_t i = threadIdx.x; i < a.to.hidden; i += blockDim.x) {
    const float x = load_l2(a.to.stream + size_t{from} * a.to.hidden + i);
    put_input<false>(a.to.feed.x + size_t{row} * a.to.hidden, i, x * a.to.next_norm[i], true);
    const float square = sum_lanes<kFeedBlock>(x * x);
    if (i % kFeedBlock == 0) {
      a.to.feed.squares[size_t{row} * (a.to.hidden / kFeedBlock) + i / kFeedBlock] = square;
    }
  }
}

// The angle is rounded to float32, its cosine and sine are those of the rounded angle (model/rope.h).
__global__ void rotary_kernel(float2* table, const float* frequencies, uint32_t positions) {
  constexpr uint32_t kPairs = kRotaryDim / 2;
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < positions * kPairs) {
    const float angle = __fmul_rn(static_cast<float>(i / kPairs), frequencies[i % kPairs]);
    double sine = 0;
    double cosine = 0;
    sincos(static_cast<double>(angle), &sine, &cosine);
    table[i] = make_float2(static_cast<float>(cosine), static_cast<float>(sine));
  }
}

}  // namespace

int prepare_stream() {
  int e = prepare_kernel(embed_kernel, 0);
  e = e != 0 ? e : prepare_kernel(feed_kernel, 0);
  e = e != 0 ? e : prepare_kernel(host_copy_kernel, 0);
  return e != 0 ? e : prepare_kernel(unwrite_kernel, 0);
}

int launch_host_copy(const HostCopyArgs& args, Stream queue) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(256);
  config.stream = queue;
  return launch_dependent(host_copy_kernel, config, args);
}

int launch_unwrite(const UnwriteArgs& args, Stream queue) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kUnwriteBlocks);
  config.blockDim = dim3(256);
  config.stream = queue;
  return launch_dependent(unwrite_kernel, config, args);
}

int launch_embed(const EmbedArgs& args, Stream queue) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(args.to.hidden / kEmbedThreads, args.rows);
  config.blockDim = dim3(kEmbedThreads);
  config.stream = queue;
  return launch_dependent(embed_kernel, config, args);
}

int launch_prepare(const StreamArgs& to, const uint32_t* rows_of, uint32_t rows, Stream queue) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(rows);
  config.blockDim = dim3(256);
  config.stream = queue;
  return launch_dependent(feed_kernel, config, PrepareArgs{to, rows_of});
}

int launch_rotary(float* table, const float* frequencies, uint32_t positions, Stream queue) {
  const uint32_t count = positions * (kRotaryDim / 2);
  rotary_kernel<<<(count + 255) / 256, 256, 0, queue>>>(reinterpret_cast<float2*>(table), frequencies,
                                                        positions);
  return cudaGetLastError();
}

}  // namespace lily::cuda
