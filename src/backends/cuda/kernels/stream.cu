// Token ids to the residual stream, the stream to the feed of a product, and the table of rotations.
#include "backends/cuda/kernels/embed.cuh"
#include "backends/cuda/kernels/tiles.cuh"

namespace lily::cuda {
namespace {

// One block a row; hidden is a multiple of its threads.
__global__ void __launch_bounds__(256) embed_kernel(EmbedArgs a) {
  wait_for_predecessors();
  start_successors();
  const uint32_t row = blockIdx.x;
  if (row == 0) {
    for (uint32_t i = threadIdx.x; i < a.clear_count; i += blockDim.x) {
      a.clear[i] = 0;
    }
  }
  const int32_t id = token_of(a, row);
  const uint32_t hidden = a.to.hidden;
  for (uint32_t i = threadIdx.x; i < hidden; i += blockDim.x) {
    add_to_stream(a.to, row, i, embedding(a, id, i, hidden), true, {0, a.to.next_norm[i]});
  }
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
    a.to.feed.x[size_t{row} * a.to.hidden + fragment_position(i)] = to_bf16(x * a.to.next_norm[i]);
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
  const int e = prepare_kernel(embed_kernel, 0);
  return e != 0 ? e : prepare_kernel(feed_kernel, 0);
}

int launch_embed(const EmbedArgs& args, Stream queue) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(args.rows);
  config.blockDim = dim3(256);
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
