#include "backends/cuda/kernels/whole_step.cuh"

namespace lily::cuda {
namespace {

template <class W>
__global__ void __launch_bounds__(step::kWarps * 32, 1) step_kernel(StepArgs a) {
  step::whole_step<W>(a, dynamic_shared());
}

using Kernel = void (*)(StepArgs);

bool has_widths(const Dims& d, uint32_t hidden, uint32_t delta_out, uint32_t attend_out, uint32_t ffn) {
  return d.hidden == hidden * kTileCols && value_width(d) == delta_out * kTileCols &&
         q_width(d) == attend_out * kTileCols && d.ffn == ffn * kTileCols;
}
template <class W>
bool fits(const Dims& d) {
  return has_widths(d, W::kHidden, W::kDeltaOut, W::kAttendOut, W::kFfn);
}
Kernel kernel_of(const Dims& d) {
  return fits<step::FullWidths>(d)   ? step_kernel<step::FullWidths>
         : fits<step::TinyWidths>(d) ? step_kernel<step::TinyWidths>
                                     : nullptr;
}

}  // namespace

uint64_t step_board_bytes(const Dims& dims, uint32_t rows) {
  const step::Board board = step::board_of(dims, rows);
  return (uint64_t{board.layer} * dims.layers + board.mixed) * 8;  // the head has a feed, too
}

uint32_t step_shared_bytes(const Dims& dims, uint32_t rows, uint32_t blocks) {
  const uint32_t units = step::gate_units(dims, rows, blocks);
  return fits<step::FullWidths>(dims) ? step::shared_of<step::FullWidths>(rows, units).total
                                      : step::shared_of<step::TinyWidths>(rows, units).total;
}

bool step_takes(const Dims& d, uint32_t blocks) {
  // A block keeps at most one unit of the stream and of the router, and has a part in every projection in.
  return kernel_of(d) != nullptr && d.layers <= step::kMostLayers && d.experts <= kMostExperts &&
         d.experts % Logits::kEach == 0 && d.q_heads == attend::kHeads * d.kv_heads &&
         step::delta_outputs(d) % kTileRows == 0 && step::attend_outputs(d) % kTileRows == 0 &&
         d.vocab % kTileRows == 0 && blocks >= d.hidden / kTileRows &&
         blocks >= step::blocks_of(d.experts + 1) && blocks <= step::blocks_of(step::delta_outputs(d)) &&
         blocks <= step::blocks_of(step::attend_outputs(d));
}

int prepare_step(const Dims& dims, const StepLaunch& launch, bool& resident) {
  const Kernel kernel = kernel_of(dims);
  resident = false;
  int device = 0;
  int cooperative = 0;
  int blocks = 0;
  cudaError_t e = cudaGetDevice(&device);
  e = e != cudaSuccess ? e : cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device);
  e = e != cudaSuccess ? e : static_cast<cudaError_t>(prepare_kernel(kernel, launch.shared));
  e = e != cudaSuccess
          ? e
          : cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, step::kWarps * 32, launch.shared);
  resident = e == cudaSuccess && cooperative != 0 && blocks >= 1;
  return e;
}

int launch_step(const StepArgs& args, const StepLaunch& launch, Stream queue) {
  const Kernel kernel = kernel_of(args.dims);
  if (kernel == nullptr || args.rows == 0 || args.rows > kStepRows || args.tag == 0) {
    return cudaErrorInvalidValue;
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(launch.blocks);
  config.blockDim = dim3(step::kWarps * 32);
  config.dynamicSmemBytes = launch.shared;
  config.stream = queue;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace lily::cuda
