#include "backends/cuda/kernels/whole_step.cuh"

namespace lily::cuda {
namespace {

template <class W>
__global__ void __launch_bounds__(step::kWarps * 32, 1) step_kernel(StepArgs a) {
#if !defined(__CUDA_ARCH__) || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
  step::whole_step<W>(a, dynamic_shared());
#endif  // others have too little shared memory: step_takes()
}

using Kernel = void (*)(StepArgs);

template <template <uint32_t> class W>
bool has_widths(const Dims& d) {
  constexpr Dims w = W<1>::dims();
  return d.hidden == w.hidden && d.vocab == w.vocab && d.q_heads == w.q_heads && d.kv_heads == w.kv_heads &&
         d.k_heads == w.k_heads && d.v_heads == w.v_heads && d.experts == w.experts && d.ffn == w.ffn;
}
template <template <uint32_t> class W, class Out, class Call>
Out with_rows(uint32_t rows, Out none, Call&& call) {
  switch (rows) {
    case 1:
      return call.template operator()<W<1>>();
    case 2:
      return call.template operator()<W<2>>();
    case 3:
      return call.template operator()<W<3>>();
    case 4:
      return call.template operator()<W<4>>();
    case 5:
      return call.template operator()<W<5>>();
    case 6:
      return call.template operator()<W<6>>();
    case 7:
      return call.template operator()<W<7>>();
    case 8:
      return call.template operator()<W<8>>();
    default:
      return none;
  }
}
// Calls f.template operator()<Widths>() for the widths of `d`, or returns `none`.
template <class Call, class Out>
Out with_widths(const Dims& d, uint32_t rows, Out none, Call&& call) {
  if (has_widths<step::FullWidths>(d)) {
    return with_rows<step::FullWidths>(rows, none, call);
  }
  if (has_widths<step::TinyWidths>(d)) {
    return with_rows<step::TinyWidths>(rows, none, call);
  }
  return none;
}
Kernel kernel_of(const Dims& d, uint32_t rows) {
  return with_widths(d, rows, Kernel{nullptr}, [&]<class W>() -> Kernel { return step_kernel<W>; });
}

}  // namespace

uint64_t step_board_bytes(const Dims& dims, uint32_t rows) {
  const step::Board board = step::board_of(dims, rows);
  return (uint64_t{board.layer} * dims.layers + board.mixed) * 8;  // the head has a feed, too
}

uint32_t step_shared_bytes(const Dims& dims, uint32_t rows, uint32_t blocks) {
  return with_widths(dims, rows, 0u, [&]<class W>() {
    return step::shared_of<W>(step::gate_units(W::dims(), W::kRows, blocks)).total;
  });
}

bool step_takes(const Dims& d, uint32_t blocks) {
  // A block keeps at most one unit of the stream and of the router, and has a part in every projection in.
  return kernel_of(d, 1) != nullptr && d.layers <= step::kMostLayers && blocks >= d.hidden / kTileRows &&
         blocks >= step::blocks_of(d.experts + 1) && blocks <= step::blocks_of(step::delta_outputs(d)) &&
         blocks <= step::blocks_of(step::attend_outputs(d));
}

int prepare_step(const Dims& dims, uint32_t rows, const StepLaunch& launch, bool& resident) {
  const Kernel kernel = kernel_of(dims, rows);
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
  const Kernel kernel = kernel_of(args.dims, args.rows);
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

#ifdef LILY_STEP_TRACE
int read_step_trace(void* marks) {
  return cudaMemcpyFromSymbol(marks, step::trace_marks, sizeof(step::trace_marks));
}
#endif

}  // namespace lily::cuda
